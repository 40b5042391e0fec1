"""The bytes of one client connection, both ways: the plain twin of the compiled module `client`.

Theory of operation
-------------------
1. What came and is not used yet is `held`, and `mode` says what the next byte is: head, body, or
   something that has to wait. `consume` moves on as far as the mode lets it; policy is asked of the `owner`
   (`h2ping.downstream.client`). The two know each other, and forget it when the connection is lost.
2. Heads are read into one buffer shared by all connections. A body of known length is read by the kernel
   straight into its final place (`get_buffer` hands out `body.writable()`).
3. Chunks are decoded here and not by httptools, which cannot say where a message ends: bytes of the next
   request would be lost. A chunk-size line is hexadecimal digits, then perhaps extensions, then CRLF (RFC
   9112 section 7.1); nothing else is, whatever int() may think of it.
4. Where there is no room for a body, bytes are held and reading stops; where a response is owed, reading
   goes on, so that a client that goes away is noticed at once (bytes of a next request are held, up to a
   limit).
5. Output is gathered during one turn of the loop and leaves in one write.

It does not know requests, causes other than a bad framing, or when a connection should end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

from h2ping.errors import BAD_REQUEST, BODY_TOO_LARGE, DownstreamError

if TYPE_CHECKING:
    import asyncio

    from h2ping._fast.arena_py import Body

# What the next byte is.
HEAD = 0
HOLD = 1  # of a body that has no memory yet
LENGTH = 2  # of a body of known length
CHUNKED = 3  # of a chunked body
WAIT = 4  # of a pipelined request, while a response is owed
DISCARD = 5  # of a body that nobody wants, `remaining` of them
SINK = 6  # of anything: the connection is as good as closed; `remaining` is how many are still borne
CLOSED = 7

# How a response body is framed; the numbers of `headers.Framing`.
NONE = 0
LENGTH_FRAMED = 1
CHUNK_FRAMED = 2
UNTIL_CLOSE = 3

READ_BYTES = 64 << 10
HEAD_READ_BYTES = 4 << 10
"""Body bytes that come with a head are held outside the arena until memory is granted: they are kept few."""
PIPELINED_BYTES = 4 << 10
"""A client that is owed a response is read up to here: it is outside the arena too, and that for minutes."""
CHUNK_LINE_BYTES = 4096
"""A chunk-size line with its extensions; nobody sends any."""
CHUNK_EXCESS_BYTES = 16 << 10
"""Framing beyond 16 bytes a chunk plus the bytes it carries: extensions cost us and bring nothing."""
TRAILER_BYTES = 16 << 10
JOIN_BYTES = 4096
"""Up to here copying into one buffer is cheaper than one more element to write."""
FLUSH_BYTES = 64 << 10
"""More gathered output than this is written at once, so that the transport can say when it is full."""

_SCRATCH = bytearray(READ_BYTES)
_SCRATCH_VIEW = memoryview(_SCRATCH)
_HEAD_VIEW = _SCRATCH_VIEW[:HEAD_READ_BYTES]

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([\t\x20-\x7e\x80-\xff]*)")
_CHUNK_START = re.compile(rb"[0-9A-Fa-f]")


class Decisions(Protocol):
    """What `ClientBytes` leaves to its owner. After `on_lost` nothing more is asked: CLOSED decides by itself."""

    def on_connected(self, transport: asyncio.Transport) -> None:
        """The client is there."""

    def on_lost(self) -> None:
        """The connection is over."""

    def on_eof(self) -> bool:
        """The client sends no more. True keeps our half open."""

    def on_write_paused(self) -> None:
        """The socket takes no more for now."""

    def on_write_resumed(self) -> None:
        """It does again."""

    def on_head(self, raw: bytes) -> None:
        """A whole head, from its request line to its empty line."""

    def on_partial_head(self, held: bytearray, start: int) -> bool:
        """A head has begun; bytes from `start` on are new. False: it is refused."""

    def on_body(self) -> None:
        """Body bytes were committed."""

    def usable_trailers(self, trailers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]] | None:
        """Those that may go up."""

    def on_body_end(self, trailers: list[tuple[bytes, bytes]] | None) -> None:
        """The body is complete."""

    def on_body_stalled(self) -> None:
        """There is no room for the next body byte."""

    def on_discarded(self) -> None:
        """The rest of an unwanted body is read."""

    def on_bad_input(self, error: DownstreamError) -> None:
        """What came cannot be read as HTTP/1.1."""

    def on_sink_full(self) -> None:
        """More came after the end than is borne."""

    def schedule_flush(self) -> None:
        """Call `flush` at the end of this turn of the loop."""


class ClientBytes:
    """Input and output of one client connection: the methods of an asyncio.BufferedProtocol."""

    __slots__ = (
        "_excess", "_left", "_lent", "_out", "_out_bytes", "_scanned", "_trailer_bytes", "_trailers", "body",
        "framing", "held", "max_body", "mode", "owner", "paused", "remaining", "stalled", "transport",
    )  # fmt: skip

    def __init__(self, owner: Decisions) -> None:
        self.owner = owner
        self.transport: asyncio.Transport | None = None
        self.mode = HEAD
        self.held: bytearray | None = None
        self.body: Body | None = None
        self.remaining = 0
        """LENGTH, DISCARD: bytes to come; SINK: bytes that are still borne."""
        self._left = 0
        """CHUNKED: bytes of this chunk to come; -1: its CRLF; -2: a chunk-size line; -3: trailers."""
        self.max_body = 0
        self.stalled = False
        self.framing = NONE
        self._scanned = 0
        self.paused = False
        self._excess = 0
        self._trailers: list[tuple[bytes, bytes]] = []
        self._trailer_bytes = 0
        self._out: list[memoryview | bytes] = []
        self._lent: list[memoryview | bytes] = []
        """What is being written just now."""
        self._out_bytes = 0

    # --- the connection -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio.BaseProtocol."""
        self.transport = transport  # type: ignore[assignment]
        self.owner.on_connected(transport)  # type: ignore[arg-type]

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio.BaseProtocol."""
        self.transport = None
        self.mode = CLOSED
        self.held = None
        self.body = None
        owner, self.owner = self.owner, None  # type: ignore[assignment]
        owner.on_lost()

    def eof_received(self) -> bool:
        """asyncio.BufferedProtocol."""
        return self.owner.on_eof()

    def pause_writing(self) -> None:
        """asyncio.BaseProtocol."""
        self.owner.on_write_paused()

    def resume_writing(self) -> None:
        """asyncio.BaseProtocol."""
        self.owner.on_write_resumed()

    # --- in -------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the kernel writes next (asyncio.BufferedProtocol)."""
        if self.mode == LENGTH and self.held is None:
            assert self.body is not None
            view = self.body.writable()
            if view is not None:
                return view[: self.remaining]
        return _HEAD_VIEW if self.mode in (HEAD, WAIT) else _SCRATCH_VIEW

    def buffer_updated(self, size: int) -> None:
        """`size` bytes were written to what `get_buffer` gave."""
        if self.mode == LENGTH and self.held is None:
            body = self.body
            assert body is not None
            if body.writable() is not None:
                body.commit(size)
                self.remaining -= size
                self._body_moved()
                self.regulate()
                return
        if self.held is None:
            self.held = bytearray()
        self.held += _SCRATCH_VIEW[:size]
        self.consume()

    def consume(self) -> None:
        """Use what is held, as far as the mode lets us."""
        while self.held and self._take():
            pass
        if not self.held:
            self.held = None
        self.regulate()

    def _take(self) -> bool:
        """Use some of `held`; False when that has to wait."""
        held = self.held
        assert held is not None
        if self.mode == HEAD:
            return self._take_head(held)
        if self.mode == LENGTH:
            return self._take_length(held)
        if self.mode == CHUNKED:
            return self._take_chunk(held)
        if self.mode == WAIT:
            _drop_empty_lines(held)
            return False
        if self.mode == DISCARD:
            size = min(len(held), self.remaining)
            del held[:size]
            self.remaining -= size
            if not self.remaining:
                self.owner.on_discarded()
            return True
        if self.mode == SINK:
            self.remaining -= len(held)
            held.clear()
            if self.remaining < 0:
                self.owner.on_sink_full()
            return False
        if self.mode == CLOSED:
            held.clear()
        return False

    def _take_head(self, held: bytearray) -> bool:
        if not self._scanned:
            # RFC 9112 section 2.2: empty lines before a request line are ignored.
            _drop_empty_lines(held)
            if not held or held == b"\r":
                return False
        end = held.find(b"\r\n\r\n", max(self._scanned - 3, 0))
        if end < 0:
            start = self._scanned
            self._scanned = len(held)
            self.owner.on_partial_head(held, max(start - 1, 0))
            return False
        raw = bytes(held[: end + 4])
        del held[: end + 4]
        self._scanned = 0
        self.owner.on_head(raw)
        return True

    def _take_length(self, held: bytearray) -> bool:
        body = self.body
        assert body is not None
        with memoryview(held) as view:
            taken = body.append(view[: self.remaining])
        del held[:taken]
        self.remaining -= taken
        return self._body_moved()

    def _body_moved(self) -> bool:
        """Tell that bytes were committed, and find out whether there is room for more."""
        body = self.body
        assert body is not None
        if not self.remaining:
            self._body_complete(None)
            return True
        self.owner.on_body()
        if self.mode == LENGTH and body is self.body and body.writable() is None:
            self._stall()
        return not self.stalled

    def _stall(self) -> None:
        self.stalled = True
        self.owner.on_body_stalled()

    def _body_complete(self, trailers: list[tuple[bytes, bytes]] | None) -> None:
        body, self.body = self.body, None
        assert body is not None
        self.mode = WAIT
        usable = self.owner.usable_trailers(trailers) if trailers else None
        body.trailers = usable
        body.finish()
        self.owner.on_body_end(usable)

    def start_chunks(self) -> None:
        """The body that comes is chunked."""
        self._left = -2
        self._excess = 0
        self._trailers = []
        self._trailer_bytes = 0

    def _take_chunk(self, held: bytearray) -> bool:
        body = self.body
        assert body is not None
        if self._left > 0:
            with memoryview(held) as view:
                size = min(len(view), self._left)
                taken = body.append(view[:size])
            del held[:taken]
            self._left -= taken
            if not self._left:
                self._left = -1
            if taken:
                self.owner.on_body()
            if taken < size and self.mode == CHUNKED:
                self._stall()
                return not self.stalled
            return True
        if self._left == -1:
            if held.startswith(b"\r\n"):
                del held[:2]
                self._left = -2
                return True
            return False if held == b"\r" else self._bad_chunk("a chunk is longer than its size")
        end = held.find(b"\r\n")
        line = bytes(held if end < 0 else held[:end])
        if end < 0:
            if b"\n" in line or b"\r" in line[:-1]:
                return self._bad_chunk("CR or LF alone in the chunk framing")
            if len(line) > CHUNK_LINE_BYTES:
                return self._bad_chunk("chunk framing too long")
            if self._left == -2 and not _CHUNK_START.match(line):
                return self._bad_chunk("malformed chunk size")
            return False
        del held[: end + 2]
        return self._chunk_size(line) if self._left == -2 else self._trailer(line)

    def _chunk_size(self, line: bytes) -> bool:
        found = _CHUNK_SIZE.fullmatch(line)
        if found is None:
            return self._bad_chunk("malformed chunk size")
        size = int(found.group(1), 16)
        self._excess = max(self._excess + len(line) - 14 - 2 * size, 0)
        if len(line) > CHUNK_LINE_BYTES or self._excess > CHUNK_EXCESS_BYTES:
            return self._bad_chunk("too much chunk framing")
        assert self.body is not None
        if self.max_body and self.body.received + size > self.max_body:
            self.owner.on_bad_input(DownstreamError(BODY_TOO_LARGE, f"more than {self.max_body} bytes"))
            return False
        self._left = size or -3
        return True

    def _trailer(self, line: bytes) -> bool:
        """RFC 9112 section 7.1.2: field lines after the last chunk, then an empty line."""
        if not line:
            trailers, self._trailers = self._trailers, []
            self._body_complete(trailers)
            return True
        self._trailer_bytes += len(line) + 2
        if self._trailer_bytes > TRAILER_BYTES:
            return self._bad_chunk("trailers too long")
        found = _TRAILER_LINE.fullmatch(line)
        if found is None:
            return self._bad_chunk("malformed trailer field")
        self._trailers.append((found.group(1), found.group(2)))
        return True

    def _bad_chunk(self, detail: str) -> bool:
        self.owner.on_bad_input(DownstreamError(BAD_REQUEST, detail))
        return False

    def regulate(self) -> None:
        """Read from the socket or not, by what there is to do with the bytes (rule 4)."""
        held = len(self.held) if self.held is not None else 0
        if self.mode == HOLD:
            # A body that is here already needs no reading, and a client that leaves is noticed.
            paused = not 0 < self.remaining <= held <= PIPELINED_BYTES
        elif self.mode in (LENGTH, CHUNKED):
            paused = self.stalled
        elif self.mode == WAIT:
            paused = held > PIPELINED_BYTES
        else:
            paused = False
        if paused is not self.paused and self.transport is not None:
            self.paused = paused
            if paused:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # --- out ------------------------------------------------------------------------------------------------

    def send(self, data: memoryview | bytes, size: int) -> None:
        """Write `data`, at the end of this turn of the loop at the latest."""
        if self.mode == CLOSED:
            return
        if not self._out:
            self.owner.schedule_flush()
        self._out.append(data)
        self._out_bytes += size
        if self._out_bytes > FLUSH_BYTES:
            self.flush()

    def send_data(self, data: memoryview | bytes) -> None:
        """Body bytes of the response, framed."""
        size = len(data)
        if not size or self.framing == NONE:
            return
        if self.framing != CHUNK_FRAMED:
            self.send(data, size)
        elif size <= JOIN_BYTES:
            chunk = b"%x\r\n%b\r\n" % (size, data)  # type: ignore[str-format]
            self.send(chunk, len(chunk))
        else:
            self.send(b"%x\r\n" % size, 8)
            self.send(data, size)
            self.send(b"\r\n", 2)

    def flush(self) -> None:
        """Write what was gathered."""
        out, self._out = self._out, []
        size, self._out_bytes = self._out_bytes, 0
        if not out or self.transport is None:
            return
        if size <= JOIN_BYTES and len(out) > 1:
            out = [b"".join(out)]
        self._lent = out
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
        self._lent = []

    @property
    def lent_bytes(self) -> int:
        """Memory that the write in progress keeps if the socket does not take it."""
        return sum(len(piece) for piece in self._lent)

    @property
    def pending_bytes(self) -> int:
        """Output that the kernel has not taken."""
        transport = self.transport
        return self._out_bytes + (transport.get_write_buffer_size() if transport is not None else 0)


def _drop_empty_lines(held: bytearray) -> None:
    while held.startswith(b"\r\n"):
        del held[:2]
