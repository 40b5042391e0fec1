"""HTTP/2 frames for tests: build any, well-formed or not, as a server; read what a client sent.

Written apart from the engines, on purpose: what they and this file have in common is RFC 9113 only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
NAMES = [
    "DATA",
    "HEADERS",
    "PRIORITY",
    "RST_STREAM",
    "SETTINGS",
    "PUSH_PROMISE",
    "PING",
    "GOAWAY",
    "WINDOW_UPDATE",
    "CONTINUATION",
]

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, SETTINGS_TIMEOUT, STREAM_CLOSED = range(6)
FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, CONNECT_ERROR, ENHANCE_YOUR_CALM = range(6, 12)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(1, 6)


def frame(
    kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, length: int | None = None
) -> bytes:
    """Any frame at all; `length` lies about the payload's size."""
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def number(value: int) -> bytes:
    """Four bytes."""
    return value.to_bytes(4, "big")


class FrameFactory:
    """The server's frames, with its HPACK encoder."""

    def __init__(self) -> None:
        self.encoder = hpack.Encoder()

    def block(self, *fields: tuple[bytes | str, bytes | str]) -> bytes:
        """A field block. Nothing is checked, so that malformed ones can be made."""
        return self.encoder.encode([(_octets(name), _octets(value)) for name, value in fields])

    def headers(
        self,
        stream: int,
        *fields: tuple[bytes | str, bytes | str],
        end: bool = False,
        end_headers: bool = True,
        pad: int | None = None,
        priority: tuple[int, int] | None = None,
        block: bytes | None = None,
    ) -> bytes:
        """HEADERS; `priority` is (depends on, weight)."""
        flags = (0x1 if end else 0) | (0x4 if end_headers else 0)
        payload = self.block(*fields) if block is None else block
        if priority is not None:
            flags |= 0x20
            payload = number(priority[0]) + bytes((priority[1],)) + payload
        if pad is not None:
            flags |= 0x8
            payload = bytes((pad,)) + payload + bytes(pad)
        return frame(HEADERS, flags, stream, payload)

    def response(
        self, stream: int, status: int = 200, *fields: tuple[bytes | str, bytes | str], end: bool = False
    ) -> bytes:
        """HEADERS of a response."""
        return self.headers(stream, (":status", str(status)), *fields, end=end)

    def continuation(self, stream: int, block: bytes = b"", *, end_headers: bool = False) -> bytes:
        """CONTINUATION."""
        return frame(CONTINUATION, 0x4 if end_headers else 0, stream, block)

    def data(self, stream: int, content: bytes = b"", *, end: bool = False, pad: int | None = None) -> bytes:
        """DATA."""
        flags = 0x1 if end else 0
        if pad is not None:
            flags |= 0x8
            content = bytes((pad,)) + content + bytes(pad)
        return frame(DATA, flags, stream, content)

    def settings(self, *pairs: tuple[int, int]) -> bytes:
        """SETTINGS."""
        payload = b"".join(key.to_bytes(2, "big") + number(value) for key, value in pairs)
        return frame(SETTINGS, 0, 0, payload)

    def settings_ack(self) -> bytes:
        """The acknowledgement of SETTINGS."""
        return frame(SETTINGS, 0x1)

    def ping(self, payload: bytes = b"12345678", *, ack: bool = False) -> bytes:
        """PING."""
        return frame(PING, 0x1 if ack else 0, 0, payload)

    def goaway(self, last: int, code: int = NO_ERROR, debug: bytes = b"") -> bytes:
        """GOAWAY."""
        return frame(GOAWAY, 0, 0, number(last) + number(code) + debug)

    def reset(self, stream: int, code: int = CANCEL) -> bytes:
        """RST_STREAM."""
        return frame(RST_STREAM, 0, stream, number(code))

    def window(self, stream: int, increment: int) -> bytes:
        """WINDOW_UPDATE."""
        return frame(WINDOW_UPDATE, 0, stream, number(increment))

    def priority(self, stream: int, depends_on: int = 0, weight: int = 15) -> bytes:
        """PRIORITY."""
        return frame(PRIORITY, 0, stream, number(depends_on) + bytes((weight,)))

    def promise(
        self, stream: int, promised: int, *fields: tuple[bytes | str, bytes | str], end_headers: bool = True
    ) -> bytes:
        """PUSH_PROMISE."""
        flags = 0x4 if end_headers else 0
        return frame(PUSH_PROMISE, flags, stream, number(promised) + self.block(*fields))


def _octets(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


@dataclass(frozen=True)
class Sent:
    """A frame the client sent; of a field block that was cut up, all of it."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    fields: list[tuple[bytes, bytes]] = field(default_factory=list, compare=False)
    never_indexed: set[bytes] = field(default_factory=set, compare=False)

    @property
    def end(self) -> bool:
        """END_STREAM (of DATA and HEADERS), ACK (of SETTINGS and PING)."""
        return bool(self.flags & 0x1)

    @property
    def code(self) -> int:
        """Error code of RST_STREAM and GOAWAY, increment of WINDOW_UPDATE."""
        at = 4 if self.kind == GOAWAY else 0
        return int.from_bytes(self.payload[at : at + 4], "big")

    @property
    def settings(self) -> dict[int, int]:
        """What SETTINGS says."""
        return {
            int.from_bytes(self.payload[at : at + 2], "big"): int.from_bytes(
                self.payload[at + 2 : at + 6], "big"
            )
            for at in range(0, len(self.payload), 6)
        }

    def __repr__(self) -> str:
        return f"{NAMES[self.kind]}({self.stream}, flags={self.flags:#x}, {self.payload[:24]!r})"


class FrameReader:
    """A strict server's ears: whole frames only, field blocks decoded in order."""

    def __init__(self) -> None:
        self.decoder = hpack.Decoder()
        self.table_updates: list[int] = []
        """Sizes that the block decoded last began with (RFC 7541 section 6.3)."""
        self._bytes = bytearray()
        self._preface = False
        self._open: list[Sent] = []

    def read(self, data: bytes) -> list[Sent]:
        """Frames of what was sent; raises AssertionError when it does not end with a whole frame."""
        self._bytes += data
        if not self._preface:
            assert self._bytes[: len(PREFACE)] == PREFACE
            del self._bytes[: len(PREFACE)]
            self._preface = True
        frames = []
        while self._bytes:
            size = int.from_bytes(self._bytes[:3], "big")
            assert size <= 16_384, "a frame above the default SETTINGS_MAX_FRAME_SIZE"
            assert len(self._bytes) >= 9 + size, "output ends inside a frame"
            kind, flags = self._bytes[3], self._bytes[4]
            stream = int.from_bytes(self._bytes[5:9], "big")
            payload = bytes(self._bytes[9 : 9 + size])
            del self._bytes[: 9 + size]
            whole = self._join(Sent(kind, flags, stream, payload))
            if whole is not None:
                frames.append(whole)
        return frames

    def _join(self, sent: Sent) -> Sent | None:
        if self._open:
            assert sent.kind == CONTINUATION, "a frame inside a field block"
            assert sent.stream == self._open[0].stream
        if sent.kind not in (HEADERS, CONTINUATION):
            return sent
        assert sent.kind == (CONTINUATION if self._open else HEADERS)
        assert not sent.flags & 0x28, "neither padding nor priority is sent"
        self._open.append(sent)
        if not sent.flags & 0x4:
            return None
        block = b"".join(part.payload for part in self._open)
        first = self._open[0]
        self._open = []
        self.table_updates = _table_updates(block)
        fields = list(self.decoder.decode(block, raw=True))
        return Sent(
            HEADERS,
            first.flags,
            first.stream,
            block,
            [(bytes(name), bytes(value)) for name, value in fields],
            {bytes(item[0]) for item in fields if not item.indexable},
        )


def _table_updates(block: bytes) -> list[int]:
    """Sizes of the dynamic table size updates at the front of a block."""
    sizes = []
    while block and block[0] & 0xE0 == 0x20:
        size, shift = block[0] & 0x1F, 0
        block = block[1:]
        if size == 0x1F:
            more = True
            while more:
                size += (block[0] & 0x7F) << shift
                more = bool(block[0] & 0x80)
                shift += 7
                block = block[1:]
        sizes.append(size)
    return sizes
