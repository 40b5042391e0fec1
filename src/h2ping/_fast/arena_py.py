"""Plain twin of the arena: the same books, cells of ordinary bytes. What it means is told in arena.pyx.

Not the same: a cell that is given up while a view of it is out does not count as used (the interpreter frees
it with the view), and there are no pages to give back, so `trim` has nothing to do, nothing is `spare`, and
`resident` is what bodies hold.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

STREAM_WINDOW_BYTES = 256 << 10
"""What is reserved for a body that streams through: as much as is on its way while the upstream's window is open."""

BLOCK = 16_384
HEADER = 9
PAYLOAD = BLOCK - HEADER

UNLIMITED_BYTES = 64 << 30


def _cell_bytes(payload: int) -> int:
    """Size of the smallest cell for so many bytes."""
    return next(size for size in (1092, 2340, 5461, BLOCK) if payload + HEADER <= size)


def _bytes_for(payload: int) -> int:
    """Bytes of the cells of a body of known size that is held whole."""
    whole, rest = divmod(payload, PAYLOAD)
    return whole * BLOCK + (_cell_bytes(rest) if rest else 0)


_WINDOW = -(-STREAM_WINDOW_BYTES // PAYLOAD) * BLOCK


def _reservation(size: int | None, kept: bool) -> int:
    if size is None or (size > STREAM_WINDOW_BYTES and not kept):
        return _WINDOW
    return _bytes_for(size)


class Arena:
    """All request bodies of the process. `limit_bytes` 0: no limit, but still counted."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError("limit_bytes is negative")
        self.limit = limit_bytes
        self.used = 0
        self.resident = 0
        self.spare = self.least_spare = 0
        self.live = 0
        self.ceiling = limit_bytes or UNLIMITED_BYTES

    def open(self, size: int | None, kept: bool) -> Body | None:
        """A body of `size` bytes (None: not known), its cells reserved; None when it does not fit now."""
        if size is not None and size < 0:
            raise ValueError("size is negative")
        need = _reservation(size, kept)
        if self.used + need > self.ceiling:
            return None
        self.used += need
        self.live += 1
        return Body(self, size, kept, need)

    def could_fit(self, size: int | None, kept: bool) -> bool:
        """Whether such a body fits while nothing else is there."""
        return _reservation(size, kept) <= self.ceiling

    def charge(self, size: int) -> None:
        """Count bytes that are held elsewhere; may pass the limit."""
        self.used += size

    def refund(self, size: int) -> None:
        """Take back a charge."""
        self.used -= size

    def trim(self, max_bytes: int) -> int:
        """Nothing: what is free went back already."""
        return 0

    def watch(self) -> None:
        """Nothing is spare."""


def trim_heap() -> None:
    """Ask the C library (glibc) to give what it keeps free back to the system."""
    import ctypes  # the compiled engine, which reads this module's constants, has no use for it

    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


class Body:
    """One request body. Offsets count from its first byte, also where the first cells are gone."""

    def __init__(self, arena: Arena, size: int | None, kept: bool, reserved: int) -> None:
        self.kept = kept
        self.complete = False
        self.received = 0
        self.sent = 0
        self.reserved = reserved
        self.on_room: Callable[[], None] | None = None
        self.trailers: list[tuple[bytes, bytes]] | None = None
        self._arena = arena
        self._size = size
        self._released = False
        self._window_only = size is None or (size > STREAM_WINDOW_BYTES and not kept)
        self._cells: deque[bytearray] = deque()
        self._first = 0
        """Number of the first cell in hand."""
        self._held = 0
        """Bytes of the cells in hand, their header room included; never above `reserved`."""

    # --- in: from the client's socket
    def writable(self) -> memoryview | None:
        """Room for the next bytes, to the end of one cell; None while there is none."""
        if not self._has_room():
            return None
        number, inside = divmod(self.received, PAYLOAD)
        if number >= self._first + len(self._cells):
            size = self._cell_size(number)
            self._cells.append(bytearray(size - HEADER))
            self._hold(size)
        return memoryview(self._cells[number - self._first])[inside : self._end_of(number)]

    def commit(self, size: int) -> None:
        """`size` bytes were written to what `writable` gave."""
        if size == 0:
            return
        number, inside = divmod(self.received, PAYLOAD)
        if size < 0 or self._released or self.complete or number >= self._first + len(self._cells):
            raise ValueError("no room was handed out for these bytes")
        if size > self._end_of(number) - inside:
            raise ValueError("more bytes than there was room for")
        self.received += size

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Copy in as much as there is room for; returns how much that was."""
        source = memoryview(data)
        taken = 0
        while taken < len(source) and (room := self.writable()) is not None:
            piece = source[taken : taken + len(room)]
            room[: len(piece)] = piece
            self.commit(len(piece))
            taken += len(piece)
        return taken

    def finish(self) -> None:
        """No more bytes come; what was reserved for them goes back."""
        if self._released or self.complete:
            return
        self.complete = True
        if not self.kept:
            self._drop_below(self.sent)
        if self._size is None and len(self._cells) == 1 and self._first == self.sent == 0:
            # A small body whose size was not known before moves to the cell it would have had.
            self._size = self.received
            self._cells[0] = self._cells[0][: self._cell_size(0) - HEADER]
            self._hold(self._cell_size(0) - BLOCK)
        self._reserve(self._held)

    def grow(self) -> bool:
        """One more cell for a kept body of unknown size, if the arena has it."""
        if self._released or self.complete or self._arena.used + BLOCK > self._arena.ceiling:
            return False
        self._reserve(self.reserved + BLOCK)
        return True

    # --- out: to the upstream
    def peek(self, offset: int, size: int) -> memoryview:
        """At most `size` received bytes from `offset` on, to the end of one cell."""
        number, inside = divmod(offset, PAYLOAD)
        if self._released or offset < 0 or number < self._first:
            raise ValueError("these bytes are gone")
        size = min(size, (number + 1) * PAYLOAD - offset, self.received - offset)
        if size <= 0:
            return memoryview(b"")
        return memoryview(self._cells[number - self._first])[inside : inside + size].toreadonly()

    def sent_to(self, offset: int) -> None:
        """Bytes below `offset` were handed out. A body that is not kept frees their cells."""
        if offset > self.received:
            raise ValueError("sent more than was received")
        if offset <= self.sent:
            return
        self.sent = offset
        if self.kept or self._released:
            return
        stalled = not self._has_room()
        self._drop_below(offset)
        if stalled and self.on_room is not None and self._has_room():
            self.on_room()

    def drop_copy(self) -> None:
        """Give up the second attempt: everything sent is freed now, the rest as it is sent."""
        if self._released or not self.kept:
            return
        self.kept = False
        self._drop_below(self.sent)
        if self.complete:
            self._reserve(self._held)
        elif self._size is None or self._size - self._first * PAYLOAD > STREAM_WINDOW_BYTES:
            self._window_only = True
            self._reserve(max(self._held, min(self.reserved, _WINDOW)))
        else:
            self._reserve(_bytes_for(self._size - self._first * PAYLOAD))

    def release(self) -> None:
        """Free everything. Views that are out stay valid."""
        self.on_room = None
        if self._released:
            return
        self._released = True
        self._reserve(0)
        self._hold(-self._held)
        self._first += len(self._cells)
        self._cells.clear()
        self._arena.live -= 1

    def __del__(self) -> None:
        self.release()

    # --- inside
    def _cell_size(self, number: int) -> int:
        """Bytes of the body's cell of that number."""
        if self._size is None or self._size >= (number + 1) * PAYLOAD:
            return BLOCK
        return _cell_bytes(self._size - number * PAYLOAD)

    def _end_of(self, number: int) -> int:
        """Where that cell's content ends at the latest, from the cell's start."""
        if self._size is None:
            return PAYLOAD
        return min(PAYLOAD, self._size - number * PAYLOAD)

    def _has_room(self) -> bool:
        if self._released or self.complete or (self._size is not None and self.received >= self._size):
            return False
        number = self.received // PAYLOAD
        return (
            number < self._first + len(self._cells) or self._held + self._cell_size(number) <= self.reserved
        )

    def _drop_below(self, offset: int) -> None:
        """Free the cells that end at or below `offset`; all of them when the body was sent to its end."""
        whole = self.complete and offset == self.received
        gone = 0
        while self._cells and (whole or (self._first + 1) * PAYLOAD <= offset):
            self._hold(-self._cell_size(self._first))
            self._cells.popleft()
            self._first += 1
            gone += 1
        if not gone:
            return
        if self.complete:
            self._reserve(self._held)
        elif not self._window_only:
            # A body of known size below a window: no cell of these comes again.
            assert self._size is not None
            self._reserve(_bytes_for(max(self._size - self._first * PAYLOAD, 0)))
        else:
            # What a kept copy had above the window goes back as it is sent.
            self._reserve(max(self._held, min(self.reserved, _WINDOW)))

    def _hold(self, change: int) -> None:
        self._held += change
        self._arena.resident += change

    def _reserve(self, size: int) -> None:
        self._arena.used += size - self.reserved
        self.reserved = size
