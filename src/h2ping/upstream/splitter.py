"""Bytes from the peer -> whole frames whose form is right, for the plain engine.

Theory of operation
-------------------
1. A frame that is too large is refused when its nine bytes of header are there, before its payload is
   (RFC 9113 section 4.2).
2. What a frame must look like by itself (length, stream 0 or not, padding) is checked here; what it may do to
   a stream is not. Two faults that are the stream's only are left to the reader: PRIORITY of a wrong length
   and a WINDOW_UPDATE of zero (RFC 9113 sections 6.3 and 6.9).
3. HEADERS or PUSH_PROMISE and their CONTINUATION frames come out as one frame with the joined block. Nothing
   may stand between them (RFC 9113 section 4.3).
4. Unknown frame types come out, so that they can be counted; unknown flags and reserved bits are ignored
   (RFC 9113 section 4.1).

This module knows neither HPACK nor streams.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from h2ping.errors import FLOOD, PROTOCOL_ERROR

if TYPE_CHECKING:
    from h2ping.errors import Cause
    from h2ping.upstream.wire import WireLimits

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20


class ErrorCode:
    """Error codes of RFC 9113 section 7 that h2ping sends or tells apart."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


MAX_FRAME_BYTES = 16_384
"""SETTINGS_MAX_FRAME_SIZE that we grant: the default, and one TLS record."""


class ConnectionFault(Exception):
    """The peer broke the connection's rules: GOAWAY with `code`, then close (RFC 9113 section 5.4.1)."""

    def __init__(self, code: int, detail: str, cause: Cause = PROTOCOL_ERROR) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.cause = cause


class Frame(NamedTuple):
    """One frame; header blocks are joined."""

    type: int
    flags: int
    stream_id: int
    payload: bytes
    """Content without padding and priority: DATA's bytes, the whole field block, else the payload as it
    came."""
    raw: bytes
    """The frame as it came, header and all (of a joined block: its first frame)."""
    promised_id: int = 0


def build_frame(frame_type: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A frame as bytes (RFC 9113 section 4.1)."""
    return (
        len(payload).to_bytes(3, "big") + bytes((frame_type, flags)) + stream_id.to_bytes(4, "big") + payload
    )


_FIXED_LENGTHS = {RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_ON_CONNECTION = frozenset((SETTINGS, PING, GOAWAY))
_ON_STREAM = frozenset((DATA, HEADERS, PRIORITY, RST_STREAM, PUSH_PROMISE, CONTINUATION))


class Splitter:
    """Collects bytes, hands out frames."""

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._bytes = bytearray()
        self._first: Frame | None = None
        """HEADERS or PUSH_PROMISE that waits for its CONTINUATION frames."""
        self._block = bytearray()
        self._continuations = 0

    def feed(self, data: bytes | memoryview) -> None:
        """More bytes from the peer."""
        self._bytes += data

    def next(self) -> Frame | None:
        """The next whole frame, or None until more bytes come; raises ConnectionFault."""
        while len(self._bytes) >= 9:
            head = self._bytes
            size = int.from_bytes(head[:3], "big")
            frame_type, flags = head[3], head[4]
            stream_id = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
            self._check_header(size, frame_type, flags, stream_id)
            if len(self._bytes) < 9 + size:
                return None
            raw = bytes(self._bytes[: 9 + size])
            del self._bytes[: 9 + size]
            frame = self._assemble(Frame(frame_type, flags, stream_id, raw[9:], raw))
            if frame is not None:
                return frame
        return None

    def _check_header(self, size: int, frame_type: int, flags: int, stream_id: int) -> None:
        if size > MAX_FRAME_BYTES:
            what = "an answer in HTTP/1" if self._bytes.startswith(b"HTTP/") else f"frame of {size} bytes"
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, what)
        if self._first is not None and (frame_type != CONTINUATION or stream_id != self._first.stream_id):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "another frame inside a field block")
        if self._first is None and frame_type == CONTINUATION:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        if (frame_type in _ON_CONNECTION and stream_id) or (frame_type in _ON_STREAM and not stream_id):
            raise ConnectionFault(
                ErrorCode.PROTOCOL_ERROR, f"frame of type {frame_type} on stream {stream_id}"
            )
        if (
            size != _FIXED_LENGTHS.get(frame_type, size)
            or (frame_type == SETTINGS and (size % 6 or (flags & ACK and size)))
            or (frame_type == GOAWAY and size < 8)
        ):
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of type {frame_type} with {size} bytes")

    def _assemble(self, frame: Frame) -> Frame | None:
        if frame.type == DATA:
            return frame._replace(payload=_unpad(frame, 0))
        if frame.type == HEADERS:
            return self._begin_block(frame, _unpad(frame, 5 if frame.flags & HAS_PRIORITY else 0))
        if frame.type == PUSH_PROMISE:
            content = _unpad(frame, 4)
            skip = 1 if frame.flags & PADDED else 0
            promised = int.from_bytes(frame.payload[skip : skip + 4], "big") & 0x7FFFFFFF
            return self._begin_block(frame._replace(promised_id=promised), content)
        if frame.type == CONTINUATION:
            return self._continue_block(frame)
        return frame

    def _begin_block(self, frame: Frame, block: bytes) -> Frame | None:
        if frame.flags & END_HEADERS:
            return frame._replace(payload=block)
        self._first = frame
        self._block[:] = block
        self._continuations = 0
        return None

    def _continue_block(self, frame: Frame) -> Frame | None:
        assert self._first is not None
        self._continuations += 1
        self._block += frame.payload
        # Without a bound the peer makes us hold, or merely count, for ever (CVE-2024-27316 and its kin).
        if (
            self._continuations > self._limits.max_continuations
            or len(self._block) > self._limits.max_field_block_bytes
        ):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "a field block without end", FLOOD)
        if not frame.flags & END_HEADERS:
            return None
        whole = self._first._replace(payload=bytes(self._block))
        self._first = None
        self._block.clear()
        return whole


def _unpad(frame: Frame, fixed: int) -> bytes:
    """Payload without padding and without `fixed` bytes in front (RFC 9113 sections 6.1, 6.2, 6.6)."""
    payload, padding = frame.payload, 0
    if frame.flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "no room for the pad length")
        padding = payload[0]
        payload = payload[1:]
    if len(payload) < fixed:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"frame of type {frame.type} is too short")
    if padding > len(payload) - fixed:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "more padding than payload")
    return payload[fixed : len(payload) - padding]
