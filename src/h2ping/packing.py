"""Bodies that wait for minutes, held compressed (`-compress-waiting-bodies`).

Theory of operation
-------------------
1. A copy is compressed in pieces of a stream's window, each a zstd frame of its own: a re-send reads it piece by
   piece through that window, and a hundred re-sends at a time share one decompressor instead of having one each.
2. Compressing is the work of one thread beside the loop, and zstd lets go of the interpreter's lock meanwhile. One
   body at a time: the loop is never behind by more than the copy of one piece.
3. Once what was read so far did not become 20 % smaller the attempt ends: most bodies that cannot be compressed cost
   one piece.
4. What comes out goes back into the arena, so the limit, the resident memory and its return to the system are those
   of any other body.

This module decides nothing: which bodies, and when, is in memory.py. Reading is done in the loop's thread.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from h2ping import log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h2ping._fast.arena_py import Arena, Body
    from h2ping.upstream.wire import Fields

LEVEL = 1
"""1.5 to 1.9 ms for 512 KiB of JSON; level 3 takes 1.6 times as long for a twentieth less."""
CELLS_A_PIECE = 16
"""256 KiB, a stream's window. Smaller pieces compress worse (128 KiB: by 5 %), larger ones do not fit through it."""
WORTH_IT = 0.8
"""Largest share of its size that a copy may keep."""


class Packer:
    """Compresses and expands, whatever the format. `zstd_packer` makes one."""

    def __init__(self, pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes]) -> None:
        self.unpack = unpack
        """One piece; in the loop's thread only."""
        self._pack = pack
        self._thread = ThreadPoolExecutor(1, "h2ping-packing")

    def pack(self, body: Body, on_packed: Callable[[list[bytes] | None], None]) -> None:
        """Calls back, once, from the loop, with the pieces; with None when it is not worth it.

        The body may be released meanwhile: the views that are read keep its cells.
        """
        views = cells_of(body)

        def settle(done: asyncio.Future[list[bytes] | None]) -> None:
            # Here, not in the thread, the last views go: the arena belongs to the loop's thread.
            views.clear()
            if done.cancelled():
                return
            if (error := done.exception()) is not None:
                log.defect("a body could not be compressed", error)
            on_packed(None if error is not None else done.result())

        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._thread, self._pieces, views).add_done_callback(settle)

    def _pieces(self, views: Sequence[memoryview]) -> list[bytes] | None:
        """In the thread."""
        pieces = []
        before = after = 0
        for start in range(0, len(views), CELLS_A_PIECE):
            plain = b"".join(views[start : start + CELLS_A_PIECE])
            piece = self._pack(plain)
            before += len(plain)
            after += len(piece)
            if after > before * WORTH_IT:
                return None
            pieces.append(piece)
        return pieces

    def close(self) -> None:
        """Wait for the thread: one body at most."""
        self._thread.shutdown(wait=True)


def zstd_packer() -> Packer:
    """Needs the package zstandard; config.check has seen to it that it is there."""
    import zstandard

    pack, unpack = zstandard.ZstdCompressor(level=LEVEL), zstandard.ZstdDecompressor()
    return Packer(pack.compress, unpack.decompress)


def cells_of(body: Body) -> list[memoryview]:
    """Views of all that a kept body holds."""
    views, offset = [], 0
    while offset < body.received:
        views.append(body.peek(offset, body.received))
        offset += len(views[-1])
    return views


class PackedCopy:
    """A body that was sent whole, compressed, in the arena."""

    def __init__(
        self,
        arena: Arena,
        pieces: Sequence[bytes],
        unpack: Callable[[bytes], bytes],
        size: int,
        trailers: Fields | None,
    ) -> None:
        self.size = size
        self.trailers = trailers
        self._arena = arena
        self._unpack = unpack
        self._sizes = [len(piece) for piece in pieces]
        self._charged = 0
        self._loose: Sequence[bytes] = ()
        self._body = arena.open(sum(self._sizes), True)
        if self._body is None:
            # Transports still hold the cells that these bytes came from: they stay where they are, and are counted.
            self._loose = pieces
            self._charged = sum(self._sizes)
            arena.charge(self._charged)
        else:
            for piece in pieces:
                self._body.append(piece)
            self._body.finish()

    def __len__(self) -> int:
        """Pieces."""
        return len(self._sizes)

    def piece(self, number: int) -> bytes:
        """The plain bytes of one."""
        if self._body is None:
            return self._unpack(self._loose[number])
        offset = sum(self._sizes[:number])
        end = offset + self._sizes[number]
        parts = []
        while offset < end:
            parts.append(self._body.peek(offset, end - offset))
            offset += len(parts[-1])
        return self._unpack(b"".join(parts))

    def release(self) -> None:
        """Free it."""
        self._arena.refund(self._charged)
        self._charged = 0
        self._loose = ()
        if self._body is not None:
            self._body.release()


class Unpacking:
    """One re-send's way through a packed copy."""

    def __init__(self, copy: PackedCopy, body: Body) -> None:
        self._copy = copy
        self._body = body
        self._next = 0
        self._rest = memoryview(b"")

    def fill(self) -> None:
        """Put into the body what it has room for; finish it after the last piece."""
        body = self._body
        while not body.complete:
            if not self._rest and self._next < len(self._copy):
                self._rest = memoryview(self._copy.piece(self._next))
                self._next += 1
            self._rest = self._rest[body.append(self._rest) :]
            if self._rest:
                return
            if self._next == len(self._copy):
                body.trailers = self._copy.trailers
                body.finish()
