"""HTTP/2 frames as a test's origin writes and reads them: the lab's, and those that only tests send."""

from __future__ import annotations

from dataclasses import dataclass, field

from h2ping.lab.frames import (
    FRAME_HEAD_BYTES,
    PREFACE,
    Code,
    Flag,
    Setting,
    frame,
    ping,
    read_goaway,
    read_head,
    read_settings,
    read_u32,
    rst_stream,
    settings,
    unpad,
    window_update,
)
from h2ping.lab.frames import FrameType as Kind
from h2ping.lab.frames import goaway as _goaway

__all__ = [
    "FRAME_HEAD_BYTES", "PREFACE", "Code", "Flag", "Frame", "Kind", "Setting", "continuation", "data",
    "frame", "goaway", "headers", "ping", "push_promise", "read_head", "read_settings", "rst_stream", "settings",
    "settings_ack", "split", "unpad", "window_update",
]  # fmt: skip


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
        return self.kind in (Kind.DATA, Kind.HEADERS) and bool(self.flags & Flag.END_STREAM)

    @property
    def ack(self) -> bool:
        return bool(self.flags & Flag.ACK)

    @property
    def number(self) -> int:
        """The one number that RST_STREAM and WINDOW_UPDATE carry."""
        return read_u32(self.payload)

    @property
    def goaway(self) -> tuple[int, int]:
        """Last stream id and error code."""
        return read_goaway(self.payload)


def data(stream: int, payload: bytes, *, end: bool = False) -> bytes:
    return frame(Kind.DATA, Flag.END_STREAM if end else 0, stream, payload)


def headers(stream: int, block: bytes, *, end: bool = False, end_headers: bool = True) -> bytes:
    flags = (Flag.END_STREAM if end else 0) | (Flag.END_HEADERS if end_headers else 0)
    return frame(Kind.HEADERS, flags, stream, block)


def continuation(stream: int, block: bytes, *, end_headers: bool) -> bytes:
    return frame(Kind.CONTINUATION, Flag.END_HEADERS if end_headers else 0, stream, block)


def push_promise(stream: int, promised: int, block: bytes) -> bytes:
    return frame(Kind.PUSH_PROMISE, Flag.END_HEADERS, stream, promised.to_bytes(4, "big") + block)


def goaway(last: int, code: int = Code.NO_ERROR, debug: bytes = b"") -> bytes:
    return _goaway(last, code, debug)


def settings_ack() -> bytes:
    return frame(Kind.SETTINGS, Flag.ACK, 0)


def split(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """Whole frames as (kind, flags, stream, payload)."""
    found, at = [], 0
    while at + FRAME_HEAD_BYTES <= len(data):
        size, kind, flags, stream = read_head(data, at)
        at += FRAME_HEAD_BYTES + size
        found.append((kind, flags, stream, data[at - size : at]))
    return found
