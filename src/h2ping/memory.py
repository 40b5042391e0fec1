"""Who may keep a body or an unread response in memory, and who gives way.

Theory of operation
-------------------
1. A body is read only once room for it is reserved: the whole of it when its copy is to be kept for a re-send, a
   small window when it only streams through. So a request that has its place can always finish, and the limit can
   never be exceeded.
2. When there is no room, copies of bodies that were sent whole are given up, the oldest first: those calls are the
   nearest to their answer and lose only their re-send. Not with `-memory-pressure keep`.
3. What still finds no room waits, first in, first out, and its client is not read (TCP back-pressure).
4. Waiting ends with 503 after `queue_timeout`, and at once when not even an empty arena could hold the body.
5. With `-compress-waiting-bodies`, once half of the limit is in use, copies of 64 KiB and more of bodies that were
   sent whole are compressed, one at a time, the oldest first. No copy is given up for a new request while one is being
   compressed or can be, nor while much of the memory holds bodies that are about to be sent whole and uploads move.
6. A re-send from a compressed copy needs a window of room only, and goes before new requests. One window is set aside
   for it: when all requests in flight were refused and their copies fill the memory, they still go one by one.
7. Responses are not waited for, they come: what a client does not read is counted as it is held. An eighth of the
   limit is set aside for such bytes (`set_aside`; the arena has the rest for bodies), and they may take up to half of
   all where bodies leave it. Beyond the limit copies go first (rule 2), then the client that has gone longest without
   taking all of what it was given is cut off: its response is lost, and everybody else goes on. So neither the number
   of clients that do not read nor the size of what they asked for can pass the limit or hold up the others for long.
8. Pages that no body needed for TRIM_DELAY go back to the system, whatever else is in flight, in slices so that no
   single call is long. What Python and the C library keep goes with the connections of a burst (upstream/pool.py,
   rule 8).

The arena counts bytes; this module decides. It knows no sockets.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Protocol

from h2ping import log
from h2ping._fast import trim_heap
from h2ping.clock import Deadlines
from h2ping.errors import MEMORY_TIMEOUT, DownstreamError

if TYPE_CHECKING:
    from h2ping._fast.arena_py import Arena, Body
    from h2ping.clock import Clock, Timer
    from h2ping.packing import Packer

TRIM_DELAY = 2.0
"""Seconds for which pages must have been free: those that a busy proxy needs again are not."""
TRIM_EVERY = 0.05
TRIM_SLICE_BYTES = 16 << 20
"""A gigabyte in one call takes 290 ms."""
SAY_AFTER = 1.0
"""Seconds in which given up copies and clients are counted before a line says how many."""
PACK_LEAST_BYTES = 64 << 10
"""Smaller copies free too little for the switch of threads."""
COMING_PARTS = 16
"""A sixteenth of the limit is much (rule 5); a single upload that stands still is not."""
PATIENCE = 2.0
"""Seconds without a body let in, sent whole or compressed after which uploads count as standing still ..."""
IMPATIENCE = 0.5
"""... and seconds for which they then do, so that each new request does not wait for them again."""
RESPONSE_PARTS = 8
"""An eighth of the limit is for responses that their clients do not read at once (rule 7) ..."""
UNREAD_MOST_PARTS = 2
"""... and half of it is the most that they may hold: bodies of new requests find room beside them."""
SET_ASIDE_BYTES = 17 << 14
"""What the arena reserves for a window: 256 KiB in cells."""


class Claimant(Protocol):
    """A request with a body (exchange.Exchange)."""

    def on_memory(self, body: Body) -> None:
        """Room is reserved."""

    def on_no_memory(self, error: DownstreamError) -> None:
        """There is none."""

    def give_up_copy(self) -> None:
        """Release the kept copy of a body that was sent whole."""

    def on_packed(self, pieces: list[bytes]) -> None:
        """Release the kept copy and keep it as these pieces."""


class Reader(Protocol):
    """A response that its client does not read just now (exchange.Exchange)."""

    def on_unread_too_long(self) -> None:
        """Memory is used up and no client is behind for longer: let go of the response and of the client."""


def share_of_bodies(max_memory: int) -> int:
    """What of a limit the arena may give to bodies (rule 7)."""
    return max_memory - max_memory // RESPONSE_PARTS


def give_back_heap() -> None:
    """After a burst: what Python and the C library keep free (rule 8). Takes some milliseconds."""
    # Closed connections are cycles, which the collector hardly ever visits by itself.
    gc.collect()
    trim_heap()


class Memory:
    """The one arena of the process and its queue."""

    def __init__(
        self, arena: Arena, clock: Clock, queue_timeout: float, *, keep: bool, packer: Packer | None = None,
        limit: int | None = None,
    ) -> None:  # fmt: skip
        """`limit`: of bodies and responses together; the arena's own where it is not given."""
        self.arena = arena
        self.limit = arena.limit if limit is None else limit
        self.unread = 0
        """Bytes of responses that their clients did not read yet."""
        self.cut_off = 0
        """Clients cut off for them so far."""
        self._readers: dict[Reader, None] = {}
        """Those that hold unread bytes; the one that has been behind for longest comes first."""
        self.given_up = 0
        """Copies given up so far."""
        self.packed = 0
        """Copies compressed so far."""
        self.packer = packer
        self._clock = clock
        self._keep = keep
        self._sent_whole: dict[Claimant, None] = {}
        self._waiting: dict[Claimant, tuple[int | None, bool]] = {}
        self._packable: dict[Claimant, Body] = {}
        self._packing: Claimant | None = None
        self._packer_busy = False
        """Also when the claimant whose body is packed has left."""
        self._coming: dict[Claimant, int] = {}
        """Those whose bodies can be compressed once they are sent whole, and their sizes."""
        self._coming_bytes = 0
        self._moved_at = 0.0
        self._impatient_until = 0.0
        self._patience_timer: Timer | None = None
        self._again: dict[Claimant, int] = {}
        """Those that wait for a window to be sent again, and their sizes."""
        self._lent_to: Claimant | None = None
        """Who has the window that is set aside."""
        self._aside = SET_ASIDE_BYTES if packer is not None and arena.limit else 0
        arena.charge(self._aside)
        self._deadlines = Deadlines(clock, queue_timeout, self._on_timeout)
        self._trim_timer: Timer | None = None
        self._serving = False
        self._said = 0
        self._said_cut_off = 0
        self._say_timer: Timer | None = None

    @property
    def waiting(self) -> int:
        """Requests that wait for memory."""
        return len(self._waiting) + len(self._again)

    @property
    def is_roomy(self) -> bool:
        """At most half of the limit is in use."""
        return not self.arena.limit or self.arena.used < self.arena.limit // 2

    @property
    def may_widen(self) -> bool:
        """Clients read what they are given: little of what is set aside for responses is in use."""
        return self.unread * (2 * RESPONSE_PARTS) <= self.limit

    def hold(self, reader: Reader, size: int) -> None:
        """`size` bytes more of a response that its client does not read just now; may cut off anybody (rule 7)."""
        self.arena.charge(size)
        self.unread += size
        self._readers[reader] = None
        if self.limit and (self.arena.used > self.limit or self.unread > self.limit // UNREAD_MOST_PARTS):
            self._relieve()

    def let_go(self, reader: Reader, size: int) -> None:
        """All that the reader held: it was read, or nobody will."""
        self.arena.refund(size)
        self.unread -= size
        self._readers.pop(reader, None)
        if self._waiting or self._again:
            self._serve()

    def admit(self, claimant: Claimant, size: int | None, *, kept: bool) -> None:
        """Calls `on_memory` or `on_no_memory` once, perhaps before it returns. `size` None: not known (chunked)."""
        if not self._could_fit(size, kept):
            kept = False
        if not self.waiting:
            body = self._open(size, kept)
            if body is not None:
                self._hand_over(claimant, body, size, kept)
                return
        if not self._could_fit(size, kept):
            claimant.on_no_memory(DownstreamError(MEMORY_TIMEOUT, "-max-memory is smaller than one window"))
            return
        self._waiting[claimant] = (size, kept)
        self._deadlines.add(claimant)

    def admit_again(self, claimant: Claimant, size: int) -> None:
        """Like `admit`, for the window through which a compressed copy is sent again (rule 6)."""
        self._again[claimant] = size
        self._deadlines.add(claimant)
        self._serve()

    def make_room(self, body: Body) -> bool:
        """One more cell for a kept body of unknown size, giving up other copies if it must.

        Its client is in the middle of sending, so this does not wait until others are compressed.
        """
        while not body.grow():
            if not self._sent_whole:
                return False
            self._give_up_oldest()
        return True

    def on_sent_whole(self, claimant: Claimant, body: Body | None = None) -> None:
        """Its kept copy may be given up from now on (rule 2), and `body` be compressed (rule 5)."""
        self._arrived(claimant)
        self._moved_at = self._clock.now()
        if self.packer is not None and body is not None and body.received >= PACK_LEAST_BYTES:
            self._packable[claimant] = body
        if not self._keep:
            self._sent_whole[claimant] = None
        self._take_back(claimant)
        if not self.is_roomy:
            self._pack_oldest()
        self._serve()

    def on_again(self, claimant: Claimant) -> None:
        """It is to be sent again, from its copy: nobody may take that away now."""
        self._forget(claimant)
        self._serve()

    def on_released(self, claimant: Claimant) -> None:
        """Its body is gone, or it no longer waits."""
        self._forget(claimant)
        if self._waiting.pop(claimant, None) is not None or self._again.pop(claimant, None) is not None:
            self._deadlines.discard(claimant)
        self._trim_later()
        self._serve()

    def close(self) -> None:
        """Stop the timers and the packer."""
        self._packable.clear()
        if self.packer is not None:
            self.packer.close()
            self.packer = None
        self._deadlines.close()
        for timer in (self._trim_timer, self._say_timer, self._patience_timer):
            if timer is not None:
                timer.cancel()

    def _could_fit(self, size: int | None, kept: bool) -> bool:
        """Into an otherwise empty arena, beside what is set aside."""
        return self.arena.could_fit(size + self._aside if size is not None else None, kept)

    def _open(self, size: int | None, kept: bool) -> Body | None:
        while (body := self.arena.open(size, kept)) is None:
            if not self._give_up_one():
                return None
        return body

    def _give_up_one(self) -> bool:
        if self._packer_busy or self._packable:
            self._pack_oldest()
            return False  # served again when that is done
        if not self._sent_whole or self._is_patient():
            return False
        self._give_up_oldest()
        return True

    def _relieve(self) -> None:
        while self.arena.used > self.limit or self.unread > self.limit // UNREAD_MOST_PARTS:
            if self._sent_whole and self.unread <= self.limit // UNREAD_MOST_PARTS:
                self._give_up_oldest()
            elif self._readers:
                longest = next(iter(self._readers))
                del self._readers[longest]
                self.cut_off += 1
                self._say_later()
                longest.on_unread_too_long()
            else:
                return

    def _is_patient(self) -> bool:
        now = self._clock.now()
        if now < self._impatient_until or self._coming_bytes * COMING_PARTS < self.arena.limit:
            return False
        left = self._moved_at + PATIENCE - now
        if self._patience_timer is None:
            self._patience_timer = self._clock.call_later(left, self._on_patience)
        return True

    def _on_patience(self) -> None:
        self._patience_timer = None
        now = self._clock.now()
        if now - self._moved_at >= PATIENCE:
            self._impatient_until = now + IMPATIENCE
        self._serve()

    def _hand_over(self, claimant: Claimant, body: Body, size: int | None, kept: bool) -> None:
        if self.packer is not None and kept and size is not None and size >= PACK_LEAST_BYTES:
            self._coming[claimant] = size
            self._coming_bytes += size
            self._moved_at = self._clock.now()
        claimant.on_memory(body)

    def _arrived(self, claimant: Claimant) -> None:
        self._coming_bytes -= self._coming.pop(claimant, 0)

    def _give_up_oldest(self) -> None:
        oldest = next(iter(self._sent_whole))
        self._forget(oldest)
        self.given_up += 1
        self._say_later()
        oldest.give_up_copy()
        self._trim_later()

    def _forget(self, claimant: Claimant) -> None:
        """Its copy is not at anybody's disposal any more."""
        self._arrived(claimant)
        self._sent_whole.pop(claimant, None)
        self._packable.pop(claimant, None)
        if self._packing is claimant:
            self._packing = None
        self._take_back(claimant)

    def _take_back(self, claimant: Claimant) -> None:
        """The window that is set aside, from whoever released it."""
        if self._lent_to is claimant:
            self._lent_to = None
            self.arena.charge(self._aside)

    def _pack_oldest(self) -> None:
        if self.packer is None or self._packer_busy or not self._packable:
            return
        claimant, body = next(iter(self._packable.items()))
        del self._packable[claimant]
        self._packing, self._packer_busy = claimant, True
        self.packer.pack(body, self._on_packed)

    def _on_packed(self, pieces: list[bytes] | None) -> None:
        claimant, self._packing, self._packer_busy = self._packing, None, False
        self._moved_at = self._clock.now()
        if claimant is not None and pieces is not None:
            self.packed += 1
            claimant.on_packed(pieces)
            log.copy_compressed(sum(map(len, pieces)))
            self._trim_later()
        if not self.is_roomy:
            self._pack_oldest()
        self._serve()

    def _open_again(self, claimant: Claimant, size: int) -> Body | None:
        body = self._open(size, kept=False)
        if body is None and self._lent_to is None:
            self.arena.refund(self._aside)
            body = self.arena.open(size, False)
            if body is None:
                self.arena.charge(self._aside)
            else:
                self._lent_to = claimant
        return body

    def _serve(self) -> None:
        if self._serving:  # a release inside on_memory: the loop below goes on with it
            return
        self._serving = True
        try:
            while self._again:
                claimant, most = next(iter(self._again.items()))
                body = self._open_again(claimant, most)
                if body is None:
                    return
                del self._again[claimant]
                self._deadlines.discard(claimant)
                claimant.on_memory(body)
            while self._waiting and not self._again:
                claimant, (size, kept) = next(iter(self._waiting.items()))
                body = self._open(size, kept)
                if body is None:
                    return
                del self._waiting[claimant]
                self._deadlines.discard(claimant)
                self._hand_over(claimant, body, size, kept)
        finally:
            self._serving = False

    def _on_timeout(self, claimant: Claimant) -> None:
        waited = self._waiting.pop(claimant, None) is not None
        if self._again.pop(claimant, None) is not None or waited:
            error = DownstreamError(MEMORY_TIMEOUT, f"no memory within {self._deadlines.timeout:g}s")
            claimant.on_no_memory(error)
            self._serve()

    def _say_later(self) -> None:
        if self._say_timer is None:
            self._say_timer = self._clock.call_later(SAY_AFTER, self._say)

    def _say(self) -> None:
        self._say_timer = None
        if self.given_up > self._said:
            log.copies_given_up(self.given_up - self._said)
        if self.cut_off > self._said_cut_off:
            log.readers_cut_off(self.cut_off - self._said_cut_off)
        self._said, self._said_cut_off = self.given_up, self.cut_off

    def _trim_later(self) -> None:
        if self._trim_timer is None:
            self.arena.watch()
            self._trim_timer = self._clock.call_later(TRIM_DELAY, self._trim)

    def _trim(self) -> None:
        self._trim_timer = None
        if self.arena.trim(min(self.arena.least_spare, TRIM_SLICE_BYTES)):
            self._trim_timer = self._clock.call_later(TRIM_EVERY, self._trim)
        elif self.arena.resident:
            self._trim_later()
