"""Time as an argument: the clock that everything with a deadline is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


LATE = 0.25
"""Seconds behind its time at which a deadline tells of a loop that stood still (SIGSTOP, a frozen machine)."""
ONE_TURN = 0.001
"""The least that is not "now": the loop looks at its sockets in between."""


class Timer(Protocol):
    """A call that is due later."""

    def cancel(self) -> None:
        """It will not happen."""


class Clock(Protocol):
    """Monotonic time in seconds, and calls in the future."""

    def now(self) -> float:
        """Seconds since some fixed point."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back once, `delay` seconds from now."""


class LoopClock:
    """The event loop's clock, the only one outside tests."""

    __slots__ = ("_loop", "now")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.now = loop.time

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay, callback)


class Deadlines:
    """Many deadlines of one length behind one timer.

    Equal lengths expire in the order they were set, so a dict is the queue: adding, discarding and expiring are
    O(1) each, where a timer of the loop costs 620 bytes. A `timeout` of 0 sets no deadline at all.
    """

    __slots__ = ("_clock", "_due", "_late", "_on_expire", "_timer", "timeout")

    def __init__(self, clock: Clock, timeout: float, on_expire: Callable[[Any], None]) -> None:
        self.timeout = timeout
        self._clock = clock
        self._on_expire = on_expire
        self._due: dict[object, float] = {}
        self._timer: Timer | None = None
        self._late = False

    def __len__(self) -> int:
        return len(self._due)

    def add(self, key: object) -> None:
        """Set the deadline of `key`, from now on."""
        if not self.timeout:
            return
        self._due.pop(key, None)
        self._due[key] = self._clock.now() + self.timeout
        if self._timer is None:
            self._timer = self._clock.call_later(self.timeout, self._fire)

    def discard(self, key: object) -> None:
        """Take the deadline of `key` back; the timer stays armed and finds out when it fires."""
        self._due.pop(key, None)

    def _fire(self) -> None:
        # The timer that fired stands until the end: what a callback adds must not arm one for itself, which would be
        # later than the next due one's.
        now = self._clock.now()
        if not self._late and self._due and now - next(iter(self._due.values())) > LATE:
            # The process stood still. What came meanwhile is read first: it may be what the deadline is about.
            self._late = True
            self._timer = self._clock.call_later(ONE_TURN, self._fire)
            return
        self._late = False
        try:
            while self._due:
                key, due = next(iter(self._due.items()))
                if due > now:
                    break
                del self._due[key]
                self._on_expire(key)
        finally:
            # Also when a callback raised: the deadlines of all others stand.
            self._timer = None
            if self._due:
                self._timer = self._clock.call_later(max(next(iter(self._due.values())) - now, 0), self._fire)

    def close(self) -> None:
        """Forget every deadline."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
