"""HTTP/2 frames as the lab's origin writes them (RFC 9113 sections 4.1 and 6): pure functions over bytes."""

from __future__ import annotations

import enum
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES = 9
DEFAULT_WINDOW_BYTES = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_STREAM_ID = 2**31 - 1

_HEAD = struct.Struct(">BHBBI")
_U32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")
_TWO_U32 = struct.Struct(">II")


class FrameType(enum.IntEnum):
    """RFC 9113 section 6."""

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


class Flag(enum.IntFlag):
    """Frame flags; ACK and END_STREAM share a bit (RFC 9113 section 6)."""

    NONE = 0
    ACK = 0x1
    END_STREAM = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(enum.IntEnum):
    """RFC 9113 section 6.5.2."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Code(enum.IntEnum):
    """RFC 9113 section 7."""

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
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One whole frame."""
    size = len(payload)
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id) + payload


def frame_head(size: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes in front of a payload of `size` bytes."""
    return _HEAD.pack(size >> 16, size & 0xFFFF, kind, flags, stream_id)


def read_head(data: bytes, at: int) -> tuple[int, int, int, int]:
    """(size, type, flags, stream id) of the frame head at `at`."""
    high, low, kind, flags, stream_id = _HEAD.unpack_from(data, at)
    return (high << 16) | low, kind, flags, stream_id & MAX_STREAM_ID


def settings(values: dict[int, int]) -> bytes:
    """SETTINGS with `values`, in their order."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The (identifier, value) pairs of a SETTINGS payload."""
    return list(_SETTING.iter_unpack(payload))


def ping(data: bytes, *, ack: bool = False) -> bytes:
    """PING; `data` is exactly eight bytes (RFC 9113 section 6.7)."""
    return frame(FrameType.PING, Flag.ACK if ack else 0, 0, data)


def goaway(last: int, code: int, debug: bytes = b"") -> bytes:
    """GOAWAY (RFC 9113 section 6.8)."""
    return frame(FrameType.GOAWAY, 0, 0, _TWO_U32.pack(last, code) + debug)


def read_goaway(payload: bytes) -> tuple[int, int]:
    """(last stream id, code) of a GOAWAY payload."""
    last, code = _TWO_U32.unpack_from(payload)
    return last & MAX_STREAM_ID, code


def rst_stream(stream_id: int, code: int) -> bytes:
    """RST_STREAM (RFC 9113 section 6.4)."""
    return frame(FrameType.RST_STREAM, 0, stream_id, _U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE (RFC 9113 section 6.9)."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def read_u32(payload: bytes) -> int:
    """The 31-bit number of a WINDOW_UPDATE, or the code of a RST_STREAM."""
    value: int = _U32.unpack_from(payload)[0]
    return value


def unpad(payload: bytes, flags: int, *, priority: bool) -> bytes | None:
    """`payload` without padding and priority fields; None when the padding is longer than the frame."""
    padding = 0
    start = 0
    if flags & Flag.PADDED:
        if not payload:
            return None
        padding, start = payload[0], 1
    if priority:
        start += 5
    end = len(payload) - padding
    return payload[start:end] if start <= end else None
