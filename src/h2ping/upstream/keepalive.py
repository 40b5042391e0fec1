"""When to PING, and when a connection is dead. Sans-IO: time is an argument, the answer is what to do next.

Theory of operation
-------------------
1. PINGs only while a stream is open: servers police idle ones (gRPC bans a peer after two).
2. Any received byte proves life, not only the acknowledgement: data may flow while a PING reply queues behind it.
3. After `interval` without a received byte a PING is due; it is sent at once, ahead of queued DATA.
4. The deadline is `timeout` after the PING was *due*, so a write that is blocked does not postpone it.
5. From the moment a reply is late (a quarter of the timeout) until the next received byte the connection takes no
   new stream.
6. Nothing within the timeout: dead.
7. ENHANCE_YOUR_CALM doubles the interval for the upstream, never past nine tenths of the idle limit; `Cadence` is
   what the connections of one upstream share.
8. A timer that fires late says that this process stood still, not the peer: what it lost is added to the deadline.

The interval is jittered by 10 % downwards only, so that connections do not PING in step and the promise "at least
every interval" holds. This module knows no timers, no sockets and no HTTP/2 library.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Interval and timeout are one value, so half a setting cannot exist. Seconds, both above 0."""

    interval: float
    timeout: float


LATE_FRACTION = 0.25
"""Share of the timeout after which a reply is late; long enough for a slow round trip, short enough to matter."""
JITTER = 0.1
LONGEST_FRACTION = 0.9
"""Of the idle limit, the longest interval that ENHANCE_YOUR_CALM leads to."""


class Cadence:
    """The schedule that the connections of one upstream share; None means no PING at all."""

    __slots__ = ("_longest", "schedule")

    def __init__(self, schedule: Schedule | None, idle_limit: float) -> None:
        self.schedule = schedule
        self._longest = idle_limit * LONGEST_FRACTION

    def calm_down(self) -> float | None:
        """The peer said ENHANCE_YOUR_CALM: double the interval. The new one, or None when it cannot grow."""
        if self.schedule is None or self.schedule.interval >= self._longest:
            return None
        interval = min(self.schedule.interval * 2, self._longest)
        self.schedule = Schedule(interval, self.schedule.timeout)
        return interval


class Action(enum.Enum):
    """What the connection does now."""

    NOTHING = enum.auto()
    PING = enum.auto()
    LATE = enum.auto()
    DEAD = enum.auto()


class KeepAlive:
    """The PING schedule of one connection."""

    __slots__ = ("_cadence", "_due", "_expected", "_interval", "_pinged", "last_received", "late", "streams")

    def __init__(self, cadence: Cadence, now: float) -> None:
        self._cadence = cadence
        self.last_received = now
        self.streams = 0
        self.late = False
        """A PING reply is late: no new stream (rule 5)."""
        self._pinged = False
        self._due = 0.0
        self._expected = 0.0
        self._interval = 0.0

    def on_received(self, now: float) -> None:
        """A byte arrived (rule 2)."""
        self.last_received = now
        self._pinged = False
        self.late = False

    def on_streams(self, count: int, now: float) -> bool:
        """`count` streams are open. True when the schedule begins, so that a timer must be armed (rule 1)."""
        began = count > 0 and self.streams == 0 and self._cadence.schedule is not None
        self.streams = count
        if began:
            # An idle connection may have been silent for long; it gets one interval from here, as in rule 3.
            self._pinged = False
            self.last_received = max(self.last_received, now)
            assert self._cadence.schedule is not None
            self._interval = self._jittered(self._cadence.schedule.interval)
        return began

    def on_timer(self, now: float) -> tuple[Action, float | None]:
        """What to do at `now`, and in how many seconds to ask again (None: not before `on_streams` says so)."""
        schedule = self._cadence.schedule
        if schedule is None or self.streams == 0:
            return Action.NOTHING, None
        if not self._pinged:
            return self._before_ping(now, schedule)
        if now - self._expected > schedule.timeout * LATE_FRACTION:
            self._due += now - self._expected
        late, dead = self._due + schedule.timeout * LATE_FRACTION, self._due + schedule.timeout
        if now >= dead:
            return Action.DEAD, None
        if now >= late:
            action = Action.NOTHING if self.late else Action.LATE
            self.late = True
            return action, self._ask_again(now, dead)
        return Action.NOTHING, self._ask_again(now, late)

    def _before_ping(self, now: float, schedule: Schedule) -> tuple[Action, float]:
        due = self.last_received + self._interval
        if now < due:
            return Action.NOTHING, due - now
        self._pinged = True
        self._due = due if now - due <= schedule.timeout * LATE_FRACTION else now
        self._interval = self._jittered(schedule.interval)
        return Action.PING, self._ask_again(now, self._due + schedule.timeout * LATE_FRACTION)

    def _ask_again(self, now: float, at: float) -> float:
        # Never later than an interval from now: the reply may come meanwhile, and the next PING is then due
        # before this deadline, where the interval is shorter than the timeout.
        self._expected = min(at, now + self._interval)
        return self._expected - now

    @staticmethod
    def _jittered(interval: float) -> float:
        return interval * (1 - random.random() * JITTER)
