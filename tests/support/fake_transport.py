"""A transport without a socket: what is written stands in a list, what is read is handed in by the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeSocket:
    """Remembers the options that were set."""

    def __init__(self) -> None:
        self.options: list[tuple[int, int, Any]] = []

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        self.options.append((level, name, value))


class FakeTransport:
    """The calls of asyncio.Transport that protocols of h2ping make."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        """One entry for each write or writelines."""
        self.buffered = 0
        """What `get_write_buffer_size` says; a test sets it."""
        self.paused = False
        self.closed = False
        self.aborted = False
        self.eof_written = False
        self.limit = 65536
        self.socket = FakeSocket()

    @property
    def written(self) -> bytes:
        """All that was written."""
        return b"".join(self.writes)

    def take(self) -> bytes:
        """All that was written since the last call."""
        written = self.written
        self.writes.clear()
        return written

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.eof_written, "write after write_eof"
        self.writes.append(bytes(data))

    def writelines(self, parts: list[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        self.eof_written = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        self.limit = high

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default


def deliver(
    protocol: Any, transport: FakeTransport, data: bytes, is_done: Callable[[], bool] | None = None
) -> int:
    """Hand `data` to a BufferedProtocol as the kernel would, while it reads; returns how much it took."""
    taken = 0
    while taken < len(data) and not transport.paused and not transport.closed:
        room = memoryview(protocol.get_buffer(-1)).cast("B")
        assert len(room) > 0, "an empty buffer to read into"
        piece = data[taken : taken + len(room)]
        room[: len(piece)] = piece
        del room
        protocol.buffer_updated(len(piece))
        taken += len(piece)
        if is_done is not None and is_done():
            break
    return taken
