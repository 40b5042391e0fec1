"""Who may keep a body in memory, and who gives way.

Theory of operation
-------------------
1. A body is read only once room for it is reserved: the whole of it when its copy is to be kept for a re-send, a
   small window when it only streams through. So a request that has its place can always finish, and the limit can
   never be exceeded.
2. When there is no room, copies of bodies that were sent whole are given up, the oldest first: those calls are the
   nearest to their answer and lose only their re-send. Not with `--memory-pressure keep`.
3. What still finds no room waits, first in, first out, and its client is not read (TCP back-pressure).
4. Waiting ends with 503 after `queue_timeout`, and at once when not even an empty arena could hold the body.
5. After a burst the pages of free blocks go back to the system in slices, so that no single call is long.

The arena counts bytes; this module decides. It knows no sockets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from h2ping import log
from h2ping.clock import Deadlines
from h2ping.errors import MEMORY_TIMEOUT, DownstreamError

if TYPE_CHECKING:
    from h2ping._fast.arena_py import Arena, Body
    from h2ping.clock import Clock, Timer

TRIM_DELAY = 2.0
"""Seconds after the last release until pages go back: a busy proxy needs them again at once."""
TRIM_EVERY = 0.05
TRIM_SLICE_BYTES = 16 << 20
"""A gigabyte in one call takes 290 ms."""
SAY_AFTER = 1.0
"""Seconds in which given up copies are counted before a line says how many."""
SPARE_BYTES = 8 << 20
"""Resident free blocks that are kept."""


class Claimant(Protocol):
    """A request with a body (exchange.Exchange)."""

    def on_memory(self, body: Body) -> None:
        """Room is reserved."""

    def on_no_memory(self, error: DownstreamError) -> None:
        """There is none."""

    def give_up_copy(self) -> None:
        """Release the kept copy of a body that was sent whole."""


class Memory:
    """The one arena of the process and its queue."""

    def __init__(self, arena: Arena, clock: Clock, queue_timeout: float, *, keep: bool) -> None:
        self.arena = arena
        self.given_up = 0
        """Copies given up so far."""
        self._clock = clock
        self._keep = keep
        self._sent_whole: dict[Claimant, None] = {}
        self._waiting: dict[Claimant, tuple[int | None, bool]] = {}
        self._deadlines: Deadlines[Claimant] = Deadlines(clock, queue_timeout, self._on_timeout)
        self._trim_timer: Timer | None = None
        self._released_at = 0.0
        self._serving = False
        self._said = 0
        self._say_timer: Timer | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return len(self._waiting)

    @property
    def is_roomy(self) -> bool:
        """At most half of the limit is in use."""
        return not self.arena.limit or self.arena.used < self.arena.limit // 2

    def admit(self, claimant: Claimant, size: int | None, *, kept: bool) -> None:
        """Calls `on_memory` or `on_no_memory` once, perhaps before it returns. `size` None: not known (chunked)."""
        if not self.arena.could_fit(size, kept):
            kept = False
        if not self._waiting:
            body = self._open(size, kept)
            if body is not None:
                claimant.on_memory(body)
                return
        if not self.arena.could_fit(size, kept):
            claimant.on_no_memory(DownstreamError(MEMORY_TIMEOUT, "--max-memory is smaller than one window"))
            return
        self._waiting[claimant] = (size, kept)
        self._deadlines.add(claimant)

    def make_room(self, body: Body) -> bool:
        """One more cell for a kept body of unknown size, giving up other copies if it must."""
        while not body.grow():
            if not self._give_up_one():
                return False
        return True

    def on_sent_whole(self, claimant: Claimant) -> None:
        """Its kept copy may be given up from now on (rule 2)."""
        if not self._keep:
            self._sent_whole[claimant] = None
            self._serve()

    def on_released(self, claimant: Claimant) -> None:
        """Its body is gone, or it no longer waits."""
        self._sent_whole.pop(claimant, None)
        if self._waiting.pop(claimant, None) is not None:
            self._deadlines.discard(claimant)
        self._released_at = self._clock.now()
        if self._trim_timer is None:
            self._trim_timer = self._clock.call_later(TRIM_DELAY, self._trim)
        self._serve()

    def close(self) -> None:
        """Stop the timers."""
        self._deadlines.close()
        for timer in (self._trim_timer, self._say_timer):
            if timer is not None:
                timer.cancel()

    def _open(self, size: int | None, kept: bool) -> Body | None:
        while (body := self.arena.open(size, kept)) is None:
            if not self._give_up_one():
                return None
        return body

    def _give_up_one(self) -> bool:
        if not self._sent_whole:
            return False
        oldest = next(iter(self._sent_whole))
        del self._sent_whole[oldest]
        self.given_up += 1
        if self._say_timer is None:
            self._say_timer = self._clock.call_later(SAY_AFTER, self._say)
        oldest.give_up_copy()
        return True

    def _serve(self) -> None:
        if self._serving:  # a release inside on_memory: the loop below goes on with it
            return
        self._serving = True
        try:
            while self._waiting:
                claimant, (size, kept) = next(iter(self._waiting.items()))
                body = self._open(size, kept)
                if body is None:
                    return
                del self._waiting[claimant]
                self._deadlines.discard(claimant)
                claimant.on_memory(body)
        finally:
            self._serving = False

    def _on_timeout(self, claimant: Claimant) -> None:
        if self._waiting.pop(claimant, None) is not None:
            error = DownstreamError(MEMORY_TIMEOUT, f"no memory within {self._deadlines.timeout:g}s")
            claimant.on_no_memory(error)
            self._serve()

    def _say(self) -> None:
        self._say_timer = None
        log.copies_given_up(self.given_up - self._said)
        self._said = self.given_up

    def _trim(self) -> None:
        self._trim_timer = None
        idle = self._clock.now() - self._released_at
        if idle < TRIM_DELAY:
            self._trim_timer = self._clock.call_later(TRIM_DELAY - idle, self._trim)
        elif self.arena.resident - self.arena.used > SPARE_BYTES and self.arena.trim(TRIM_SLICE_BYTES):
            self._trim_timer = self._clock.call_later(TRIM_EVERY, self._trim)
