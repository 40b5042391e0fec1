"""Who gets the next stream, when to open one more connection, and who waits.

Theory of operation
-------------------
1. A request takes the least loaded open connection with room, or waits. Waiting is first in, first out: nobody
   overtakes the queue.
2. A connection has room for `streams_per_conn` streams while more connections may be opened, and for as many as the
   peer allows once they may not (`max_conns` are open, or the upstream cannot be reached just now, or takes no stream
   on one that is idle). One that has as many as the peer allows stands in nobody's way.
3. There are never more dials in flight than connections are missing for those who wait.
4. After a failed dial the next one waits, doubling from DIAL_DELAY to DIAL_DELAY_MAX with jitter, and is one only.
   Dials that were under way together fail as one. A connection that takes no stream when it comes (GOAWAY, end) is a
   failed dial, too. While an idle connection takes no stream (the peer's limit is 0) there is no further dial.
5. While a connection is open or a dial is under way, those who wait go on waiting. Otherwise a permanent fault
   (certificate, ALPN) of all addresses fails them at once, and any other is counted for each: DIAL_ATTEMPTS of them,
   or `connect_timeout` spent waiting, and the request fails.
6. A connection is retired at 90-100 % of `max_conn_age` and of `max_requests_per_conn`, from its own birth. When it
   has streams its replacement is dialled first, RETIRE_LEAD before. The last one is kept while nobody can be reached.
   One too many, because a late PING was answered after all, is retired at once.
7. An idle connection is closed before the path could have dropped it silently: after IDLE_CLOSE, at most half the
   idle limit, and sooner where the PING interval is short. Where more than KEPT_IDLE, and more than half of all, were
   idle at any moment of SURPLUS_CLOSE, a burst is over: all connections are retired, and requests that go on dial. All
   of them, because one that stays has objects from the midst of the burst, and pages with them.
8. When more than KEPT_IDLE connections have ended, for whatever reason, the memory they and their requests took goes
   back to the system, and again as those end that take no new stream. That stops the process for some milliseconds,
   so not while more than TIDY_STREAMS are open or waited for.

Every change costs the same however many requests are open: connections are kept in slots by their load. The pool
neither sends nor receives a byte.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

from h2ping import log
from h2ping.clock import Deadlines
from h2ping.errors import (
    CONNECTION_LOST,
    GOAWAY_REFUSED,
    INTERNAL,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    DownstreamError,
    H2pingError,
    Processed,
    UpstreamError,
)
from h2ping.upstream.connection import Connection
from h2ping.upstream.dial import dial
from h2ping.upstream.keepalive import Cadence, Schedule
from h2ping.upstream.reach import Reach
from h2ping.upstream.wire import WireLimits

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from h2ping.clock import Clock, Timer
    from h2ping.config import Settings
    from h2ping.errors import Cause

DIAL_DELAY = 0.1
DIAL_DELAY_MAX = 1.0
DIAL_ATTEMPTS = 8
"""About 4.5 s: a restarting endpoint is waited for, and Gym's probe of 5 s still gets its answer."""
SHORT_LIFE = 1.0
"""Seconds. Who ends a connection that soon is on its way out: its address is tried after the others."""
RETIRE_LEAD = 0.02
IDLE_CLOSE = 90.0
"""What Go's client does; the shortest idle limit on the path that PING does not move is an ALB's 60 s, which answers
with a FIN, and the accelerator's 340 s is silent."""

KEPT_IDLE = 8
"""For 128 requests at 16 each without a dial. Each keeps 150 to 270 KB, of TLS for the most part."""
SURPLUS_CLOSE = 5.0
"""Seconds; half of idle_close where that is less."""
TIDY_DELAY = 0.5
"""Seconds from the loss of a connection until nothing refers to it any more."""
CLOSE_PATIENCE = 0.1
"""Seconds for the peer's close_notify when the program ends; ours and GOAWAY are written by then."""
TIDY_STREAMS = 512
"""The collector takes 6 ms with as many requests in flight, and 50 ms with 8,000."""

SHORTEST_IDLE_CLOSE = 2.0
"""Whatever the interval: calls that follow one another must find their connection still there."""


def idle_close(settings: Settings) -> float:
    """Seconds after which an idle connection is closed. A short PING interval says that the path forgets soon, and
    no PING keeps an idle connection: half as long again is the most that it may be silent."""
    if not settings.ping_interval:
        return min(IDLE_CLOSE, settings.idle_limit / 2)
    by_interval = max(SHORTEST_IDLE_CLOSE, 1.5 * settings.ping_interval)
    return min(IDLE_CLOSE, settings.idle_limit / 2, by_interval)


NEVER = 2**31
"""As a number of requests: more than there are stream ids."""
UNREAD_RESPONSES = 4096
"""Half of the memory may be held by clients that do not read: several hundred of them fit, with the receive buffers
that they keep beside their windows, before anybody is cut off."""
SMALLEST_WINDOW_BYTES = 65_535
"""What RFC 9113 section 6.9.2 starts with; less would only cost round trips."""
ENHANCE_YOUR_CALM = 0xB
"""RFC 9113 section 7."""


class Waiter(Protocol):
    """A request that wants a stream (exchange.Exchange). Hashable by identity."""

    def on_connection(self, connection: Connection) -> None:
        """Here is one with room: open a stream on it now."""

    def on_no_connection(self, error: H2pingError) -> None:
        """There is none, and waiting longer does not help."""


class Slots:
    """Connections by load: adding, moving and finding the least loaded are O(1)."""

    __slots__ = ("_least", "_slots")

    def __init__(self) -> None:
        self._slots: list[dict[Connection, None]] = []
        self._least = 0

    def place(self, connection: Connection, load: int) -> None:
        """Put it where its load says, or nowhere (load -1)."""
        old = connection.load_slot
        if old == load:
            return
        if old >= 0:
            del self._slots[old][connection]
        connection.load_slot = load
        if load >= 0:
            while len(self._slots) <= load:
                self._slots.append({})
            self._slots[load][connection] = None
            self._least = min(self._least, load)

    def shrink(self) -> None:
        """Drop the slots above the highest load."""
        while self._slots and not self._slots[-1]:
            self._slots.pop()
        self._least = 0

    def least(self) -> Connection | None:
        """The connection with the fewest streams, the oldest of them first."""
        while self._least < len(self._slots):
            if slot := self._slots[self._least]:
                return next(iter(slot))
            self._least += 1
        return None


def first_window(max_memory: int) -> int:
    """First receive window of a stream, in bytes: UNREAD_RESPONSES of them are the limit."""
    if not max_memory:
        return WireLimits.stream_window_bytes
    return min(WireLimits.stream_window_bytes, max(SMALLEST_WINDOW_BYTES, max_memory // UNREAD_RESPONSES))


def section_limits(max_header_bytes: int) -> dict[str, int]:
    """The WireLimits of a response's field sections, which grow with the setting where that is above the default."""
    section = max(max_header_bytes, WireLimits.max_field_section_bytes)
    times = -(-section // WireLimits.max_field_section_bytes)
    return {
        "max_field_section_bytes": section,
        "max_field_block_bytes": times * WireLimits.max_field_block_bytes,
        "max_continuations": times * WireLimits.max_continuations,
    }


class Pool:
    """The connections to one upstream."""

    def __init__(
        self,
        settings: Settings,
        context: ssl.SSLContext,
        clock: Clock,
        on_round_trip: Callable[[float], None],
        on_connection_lost: Callable[[str], None],
        on_burst_over: Callable[[], None],
    ) -> None:
        schedule = Schedule(settings.ping_interval, settings.ping_timeout) if settings.ping_interval else None
        self.cadence = Cadence(schedule, settings.idle_limit)
        self.connections: dict[Connection, _Term] = {}
        self.dialled = 0
        self.dials_failed = 0
        self._settings = settings
        self._context = context
        self._clock = clock
        self._on_round_trip = on_round_trip
        self._on_connection_lost = on_connection_lost
        self._on_burst_over = on_burst_over
        # -max-header-bytes is about requests; where it is raised, longer responses are taken too.
        self.limits = WireLimits(
            stream_window_bytes=first_window(settings.max_memory), **section_limits(settings.max_header_bytes)
        )
        self._slots = Slots()
        self._usable = 0
        self._peer_limit = settings.streams_per_conn
        self._peer_max = -1
        self._waiting: dict[Waiter, _Wait] = {}
        self._assigning = False
        self._deadlines = Deadlines(clock, settings.queue_timeout, self._on_queue_timeout)
        self._idle = Deadlines(clock, idle_close(settings), self._on_idle)
        self._surplus_timer: Timer | None = None
        self._least_idle = 0
        """Connections that were idle at once, the fewest since that timer was set."""
        self._ended = 0
        """Connections whose memory did not go back yet (rule 8)."""
        self._tidy_timer: Timer | None = None
        self._dials: set[asyncio.Task[None]] = set()
        self._delay = 0.0
        self._delay_timer: Timer | None = None
        self._dial_error: UpstreamError | None = None
        self._reach = Reach()
        self._burst = 0
        """Dials that were under way together have the same number (rule 4)."""
        self._unreachable = False
        """The last dial that ended has failed."""
        self._closed: asyncio.Future[None] | None = None

    # --- what an exchange calls ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that wait for a stream."""
        return len(self._waiting)

    def acquire(self, waiter: Waiter) -> None:
        """Calls `on_connection` or `on_no_connection` once, perhaps before it returns."""
        if not self._waiting:
            connection = self._find()
            if connection is not None:
                waiter.on_connection(connection)
                return
        error = self._dial_error
        if error is not None and self._is_final(error) and not self._has_hope():
            waiter.on_no_connection(error)
        elif self._settings.max_queue and len(self._waiting) >= self._settings.max_queue:
            waiter.on_no_connection(
                DownstreamError(QUEUE_FULL, f"{len(self._waiting)} requests wait for a stream")
            )
        else:
            self._waiting[waiter] = _Wait(self._clock.now())
            self._deadlines.add(waiter)
            self._dial_missing()

    def cancel(self, waiter: Waiter) -> None:
        """The waiter no longer wants a stream."""
        if self._waiting.pop(waiter, None) is not None:
            self._deadlines.discard(waiter)

    async def close(self) -> None:
        """Close every connection, gracefully where no stream is open, and wait for it."""
        for task in self._dials:
            task.cancel()
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        self._deadlines.close()
        self._idle.close()
        for timer in (self._surplus_timer, self._tidy_timer):
            if timer is not None:
                timer.cancel()
        self._closed = asyncio.get_running_loop().create_future()
        for connection in list(self.connections):
            if connection.load:
                connection.abort()
            else:
                connection.retire()
        if self.connections or self._dials:
            await asyncio.wait([self._closed], timeout=CLOSE_PATIENCE)
        for connection in list(self.connections):
            connection.abort()

    # --- ConnectionOwner ----------------------------------------------------------------------------------------

    def on_load(self, connection: Connection) -> None:
        self._place(connection)
        if connection.load == 0 and not connection.retired and connection in self.connections:
            self._idle.add(connection)
            if self._surplus_timer is None:
                self._watch_idle()
        else:
            self._no_longer_idle(connection)
        if self._waiting:
            self._assign()

    def on_lost(self, connection: Connection) -> None:
        self._slots.place(connection, -1)
        self._no_longer_idle(connection)
        term = self.connections.pop(connection, None)
        if term is not None and term.timer is not None:
            term.timer.cancel()
        if term is not None and (failure := connection.failure) is not None and self._closed is None:
            self._on_connection_lost(failure.cause.token)
            log.connection_lost(self._settings, connection.ident, failure)
            self._note_short_life(connection)
        self._count_usable()
        self._assign()
        self._settle_close()
        self._ended += 1
        if self._ended > KEPT_IDLE and self._tidy_timer is None and self._closed is None:
            self._tidy_timer = self._clock.call_later(TIDY_DELAY, self._tidy)

    def on_goaway(self, connection: Connection, last_stream_id: int, code: int, debug: bytes) -> None:
        log.goaway(self._settings, connection.ident, last_stream_id, code, debug)
        self._note_short_life(connection)
        if code == ENHANCE_YOUR_CALM and (interval := self.cadence.calm_down()) is not None:
            log.calm_down(self._settings, connection.ident, interval)

    def _note_short_life(self, connection: Connection) -> None:
        if self._clock.now() - connection.born < SHORT_LIFE and connection.address is not None:
            self._reach.on_failed(connection.address)

    def on_round_trip(self, connection: Connection, seconds: float) -> None:
        self._on_round_trip(seconds)

    # --- assignment ---------------------------------------------------------------------------------------------

    def _place(self, connection: Connection) -> None:
        term = self.connections.get(connection)
        usable = term is not None and connection.is_open
        if term is None or not usable:
            self._slots.place(connection, -1)
        elif connection.requests >= term.requests:
            log.retired_by_count(self._settings, connection.requests)
            connection.retire()
            return
        else:
            limit = connection.wire.max_streams
            self._slots.place(connection, connection.load if connection.load < limit else -1)
            if connection.requests >= term.replace_at:
                term.replace_at = NEVER
                if connection.load and self._may_grow():
                    self._dial()
            if limit != self._peer_max:
                self._peer_max = limit
                if limit:  # none just now says nothing of new connections
                    self._peer_limit = min(self._settings.streams_per_conn, limit)
        if term is not None and term.usable != usable:
            term.usable = usable
            self._count_usable()
            if self._usable > self._settings.max_conns:
                log.retired_as_surplus(self._settings, self._settings.max_conns)
                connection.retire()  # rule 6

    def _count_usable(self) -> None:
        self._usable = sum(term.usable for term in self.connections.values())

    def _has_hope(self) -> bool:
        """A connection that is open, or perhaps soon, may take those who wait (rule 5)."""
        return self._usable > 0 or len(self._dials) > 0

    def _may_grow(self) -> bool:
        return self._usable + len(self._dials) < self._settings.max_conns and self._delay_timer is None

    def _find(self) -> Connection | None:
        # A connection fails its streams before it says that it is closed, and they come here to be sent again.
        while (connection := self._slots.least()) is not None and not connection.is_open:
            self._slots.place(connection, -1)
            self.connections[connection].usable = False
            self._count_usable()
        if connection is None or connection.load < self._settings.streams_per_conn:
            return connection
        # With dials in flight the connections they bring have room of their own: do not overfill for them.
        if self._dials or (self._may_grow() and not self._is_refused()):
            return None
        return connection

    def _is_refused(self) -> bool:
        """The peer takes no stream on an idle connection (rule 4)."""
        return any(
            connection.is_open and connection.load == 0 and connection.wire.max_streams == 0
            for connection in self.connections
        )

    def _assign(self) -> None:
        if self._assigning:  # a stream opened by the loop below changed a load: the loop goes on with it
            return
        self._assigning = True
        try:
            while self._waiting:
                connection = self._find()
                if connection is None:
                    self._dial_missing()
                    return
                waiter = next(iter(self._waiting))
                self.cancel(waiter)
                waiter.on_connection(connection)
        finally:
            self._assigning = False

    def _on_queue_timeout(self, waiter: Waiter) -> None:
        wait = self._waiting.pop(waiter, None)
        if wait is not None:
            spent = self._clock.now() - wait.since
            why = f"; the last dial: {self._dial_error}" if self._dial_error is not None else ""
            waiter.on_no_connection(DownstreamError(QUEUE_TIMEOUT, f"no stream within {spent:.3g}s{why}"))

    # --- dialling -----------------------------------------------------------------------------------------------

    def _dial_missing(self) -> None:
        if self._delay_timer is not None or not self._waiting:
            return
        missing = -(-len(self._waiting) // self._peer_limit)
        if self._dial_error is not None:
            missing = 1
        room = self._settings.max_conns - self._usable
        wanted = min(missing, room) - len(self._dials)
        if wanted <= 0 or self._is_refused():  # it will take some soon (RFC 9113 section 6.5.2), or closes
            return
        for _ in range(wanted):
            self._dial()

    def _dial(self) -> None:
        self.dialled += 1
        task = asyncio.get_running_loop().create_task(self._attempt(self.dialled, self._burst))
        self._dials.add(task)

    async def _attempt(self, ident: int, burst: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        result: Connection | UpstreamError
        try:
            result = await dial(
                self._settings,
                self._context,
                self._reach,
                lambda: Connection(ident, self, self._clock, self.cadence, self.limits),
            )
        except UpstreamError as error:
            result = error
        except Exception as error:  # those who wait must hear of it like of any other failure
            log.defect("a dial ended in a defect", error)
            result = UpstreamError(INTERNAL, type(error).__name__, processed=Processed.NEVER_SENT)
        finally:
            # Whatever it was: a dial that is over must not stand in the next one's way.
            self._dials.discard(task)
            self._settle_close()
        if isinstance(result, UpstreamError):
            self._on_dial_failed(result, burst)
        else:
            self._on_dialled(result, burst)

    def _on_dialled(self, connection: Connection, burst: int) -> None:
        if connection.lost:
            self._on_dial_failed(_useless(CONNECTION_LOST), burst)
            return
        term = self.connections[connection] = _Term(self._settings.max_requests_per_conn)
        if not connection.is_open:  # it closes by itself
            self._on_dial_failed(_useless(GOAWAY_REFUSED), burst)
            return
        self._dial_error = None
        self._delay = 0.0
        self._unreachable = False
        if self._settings.max_conn_age:
            age = self._settings.max_conn_age * random.uniform(0.9, 1.0)
            lead = age * RETIRE_LEAD
            term.timer = self._clock.call_later(age - lead, lambda: self._on_nearly_old(connection, lead))
        self.on_load(connection)

    def _on_dial_failed(self, error: UpstreamError, burst: int) -> None:
        self.dials_failed += 1
        self._dial_error = error
        self._unreachable = True
        if burst == self._burst:
            self._burst += 1
            self._delay = min(DIAL_DELAY_MAX, self._delay * 2 or DIAL_DELAY)
            if self._delay_timer is None:
                delay = self._delay * random.uniform(0.75, 1.0)
                self._delay_timer = self._clock.call_later(delay, self._on_delay_over)
            for wait in self._waiting.values():
                wait.failures += 1
        log.dial_failed(self._settings, error, self._delay)
        if not self._has_hope():
            self._fail_hopeless(error)
        self._assign()

    def _is_final(self, error: UpstreamError) -> bool:
        """Another dial would end like this one."""
        return error.cause.permanent and not self._reach.has_others

    def _fail_hopeless(self, error: UpstreamError) -> None:
        now = self._clock.now()
        for waiter, wait in list(self._waiting.items()):
            too_long = now - wait.since >= self._settings.connect_timeout
            if self._is_final(error) or wait.failures >= DIAL_ATTEMPTS or too_long:
                self.cancel(waiter)
                waiter.on_no_connection(error)

    def _on_delay_over(self) -> None:
        self._delay_timer = None
        if self._waiting:
            self._dial_missing()
        else:
            # Nobody asks: the next request finds out for itself whether the upstream is back.
            self._dial_error = None

    # --- retirement ---------------------------------------------------------------------------------------------

    def _on_nearly_old(self, connection: Connection, lead: float) -> None:
        if connection.load and self._may_grow():
            self._dial()
        self.connections[connection].timer = self._clock.call_later(
            lead, lambda: self._on_old(connection, lead)
        )

    def _on_old(self, connection: Connection, lead: float) -> None:
        if self._unreachable and self._usable <= 1 and connection.load and connection.is_open:
            self._on_nearly_old(connection, lead)
            return
        if connection.is_open:
            log.retired(self._settings, self._clock.now() - connection.born)
        connection.retire()

    def _no_longer_idle(self, connection: Connection) -> None:
        self._idle.discard(connection)
        self._least_idle = min(self._least_idle, len(self._idle))

    def _on_idle(self, connection: Connection) -> None:
        connection.retire()

    def _most_idle(self) -> int:
        """Connections that may be idle for long (rule 7)."""
        return max(KEPT_IDLE, self._usable // 2)

    def _watch_idle(self) -> None:
        if len(self._idle) > self._most_idle() and self._closed is None:
            self._least_idle = len(self._idle)
            delay = min(SURPLUS_CLOSE, self._idle.timeout / 2)
            self._surplus_timer = self._clock.call_later(delay, self._on_surplus)

    def _on_surplus(self) -> None:
        self._surplus_timer = None
        if self._least_idle > self._most_idle() and not self._unreachable:
            log.retired_after_burst(self._settings, len(self.connections), self._least_idle)
            for connection in list(self.connections):
                connection.retire()
        else:
            self._watch_idle()

    def _tidy(self) -> None:
        self._tidy_timer = None
        if len(self._waiting) + sum(connection.load for connection in self.connections) > TIDY_STREAMS:
            self._tidy_timer = self._clock.call_later(TIDY_DELAY, self._tidy)
            return
        if all(connection.is_open for connection in self.connections):
            self._ended = 0
        self._slots.shrink()
        self._on_burst_over()

    def _settle_close(self) -> None:
        if self._closed is not None and not self._closed.done() and not self.connections and not self._dials:
            self._closed.set_result(None)


def _useless(cause: Cause) -> UpstreamError:
    """Why a connection took no stream from the beginning."""
    return UpstreamError(cause, "on a new connection, before any request", processed=Processed.NEVER_SENT)


class _Term:
    """How long one connection is used (rule 6); `most` requests at the most, 0: any number."""

    __slots__ = ("replace_at", "requests", "timer", "usable")

    def __init__(self, most: int) -> None:
        self.requests = max(1, round(most * random.uniform(0.9, 1.0))) if most else NEVER
        self.replace_at = self.requests - max(1, round(self.requests * RETIRE_LEAD))
        """Number of requests at which the replacement is dialled; NEVER once it is."""
        self.timer: Timer | None = None
        """What its age brings next."""
        self.usable = False
        """It takes new streams, now or when others end."""


class _Wait:
    """One who waits: since when, and how many dials failed meanwhile."""

    __slots__ = ("failures", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.failures = 0
