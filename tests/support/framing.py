"""HTTP/2 frames as bytes (RFC 9113 section 6), right or wrong: nothing here checks anything."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES = 9


class Kind(enum.IntEnum):
    """Frame types (RFC 9113 section 6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Code(enum.IntEnum):
    """Error codes (RFC 9113 section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11


class Setting(enum.IntEnum):
    """SETTINGS parameters (RFC 9113 section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FLAG = 0x20


@dataclass(frozen=True)
class Frame:
    """One frame as it was received. `at` is the loop's time; `index` counts frames of its connection."""

    at: float
    index: int
    kind: int
    flags: int
    stream: int
    payload: bytes = field(repr=False)

    @property
    def ends_stream(self) -> bool:
        return self.kind in (Kind.DATA, Kind.HEADERS) and bool(self.flags & END_STREAM)

    @property
    def ack(self) -> bool:
        return bool(self.flags & ACK)

    @property
    def number(self) -> int:
        """The one number that RST_STREAM and WINDOW_UPDATE carry."""
        return int.from_bytes(self.payload[:4], "big")

    @property
    def goaway(self) -> tuple[int, int]:
        """Last stream id and error code."""
        last, code = struct.unpack(">LL", self.payload[:8])
        return last & 0x7FFFFFFF, code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(Kind.DATA, END_STREAM if end else 0, stream, payload)


def headers(stream: int, block: bytes, *, end: bool = False, end_headers: bool = True) -> bytes:
    flags = (END_STREAM if end else 0) | (END_HEADERS if end_headers else 0)
    return frame(Kind.HEADERS, flags, stream, block)


def continuation(stream: int, block: bytes, *, end_headers: bool) -> bytes:
    return frame(Kind.CONTINUATION, END_HEADERS if end_headers else 0, stream, block)


def push_promise(stream: int, promised: int, block: bytes) -> bytes:
    return frame(Kind.PUSH_PROMISE, END_HEADERS, stream, promised.to_bytes(4, "big") + block)


def rst_stream(stream: int, code: int) -> bytes:
    return frame(Kind.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def settings(values: dict[int, int]) -> bytes:
    return frame(Kind.SETTINGS, 0, 0, b"".join(struct.pack(">HL", key, n) for key, n in values.items()))


def settings_ack() -> bytes:
    return frame(Kind.SETTINGS, ACK, 0)


def ping(payload: bytes, *, ack: bool = False) -> bytes:
    return frame(Kind.PING, ACK if ack else 0, 0, payload)


def goaway(last: int, code: int = Code.NO_ERROR, debug: bytes = b"") -> bytes:
    return frame(Kind.GOAWAY, 0, 0, struct.pack(">LL", last, code) + debug)


def window_update(stream: int, increment: int) -> bytes:
    return frame(Kind.WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def split(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Whole frames as (kind, flags, stream, payload)."""
    found = []
    while len(data) >= FRAME_HEADER_BYTES:
        size = int.from_bytes(data[:3], "big")
        stream = int.from_bytes(data[5:9], "big") & 0x7FFFFFFF
        found.append((data[3], data[4], stream, data[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + size]))
        data = data[FRAME_HEADER_BYTES + size :]
    return found
