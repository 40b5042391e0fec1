"""Bytes mean the same however they are cut: whole, one by one, or in two anywhere (RFC 9113 section 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import CONNECTION_LOST, UpstreamError
from h2ping.upstream.wire import WireLimits
from tests.support.frames import FrameFactory, frame
from tests.support.traces import heard, owner_heard, sent_of, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.wires import Rig

WIDE = WireLimits(stream_window_bytes=4 << 20)


def everyday(p: FrameFactory) -> bytes:
    """One of everything that a well-behaved server sends."""
    return b"".join(
        [
            p.settings((3, 100), (4, 70_000)),
            p.response(1, 103, ("link", "</a>")),
            p.window(0, 1000),
            p.headers(
                1, (":status", "200"), ("content-length", "11"), ("x-a", "b" * 60), pad=5, priority=(0, 1)
            ),
            p.data(1, b"hello "),
            p.ping(b"01234567"),
            frame(0xBE, 0xFF, 77, b"grease"),
            p.data(1, b"world", pad=20),
            p.headers(1, ("x-sum", "1"), end=True),
            p.headers(3, block=p.block((":status", "500"))[:1], end_headers=False),
            p.continuation(3),
            p.continuation(3, end_headers=True),
            p.data(3, b"x" * 300),
            p.priority(3),
            p.data(3, pad=0),
            p.data(3, pad=7),
            p.reset(3, 2),
            p.data(3, b"late", pad=1),
            p.goaway(5, 0, b"bye"),
            p.window(5, 9),
            p.response(5, 204, end=True),
        ]
    )


def stream_faults(p: FrameFactory) -> bytes:
    """A fault on each stream, and the connection goes on."""
    return b"".join(
        [
            p.headers(1, (":status", "200"), ("X-Upper", "1")),
            p.data(1, b"dropped", end=True),
            p.response(3, 200, ("content-length", "3")),
            p.data(3, b"four", end=True),
            p.data(5, b"before the head", pad=9),
            p.response(5, end=True),
            p.ping(),
        ]
    )


def connection_fault(p: FrameFactory) -> bytes:
    """Good frames, a bad one, and more that nobody reads."""
    return b"".join(
        [p.response(1), p.data(1, b"abc"), frame(6, 0, 0, b"short"), p.data(1, b"never", end=True)]
    )


def padding_fault(p: FrameFactory) -> bytes:
    """The pad length comes with the payload's first byte."""
    return p.response(1) + frame(0, 0x8, 1, b"\x09only8888") + p.data(1, b"never")


def oversized(p: FrameFactory) -> bytes:
    """A header that is enough to refuse the frame."""
    return p.response(1) + frame(0, 0, 1, b"x", length=16_385)


def padded_ends(p: FrameFactory) -> bytes:
    """Content that is all there before its frame is (RFC 9113 section 6.1)."""
    return b"".join(
        [
            p.response(1, 200, ("content-length", "2")),
            p.data(1, b"ok", end=True, pad=5),
            p.response(3),
            p.data(3, b"x" * 300, end=True, pad=3),
            p.response(5),
            p.data(5, end=True, pad=4),
        ]
    )


SCRIPTS = [everyday, stream_faults, connection_fault, padding_fault, oversized, padded_ends]


def give(rig: Rig, piece: bytes, *, through_buffer: bool) -> Any:
    """The bytes arrive; the fault they raised."""
    try:
        if through_buffer:
            while piece:
                room = rig.wire.receive_buffer()
                size = min(len(room), len(piece))
                room[:size] = piece[:size]
                rig.wire.received(size)
                piece = piece[size:]
        else:
            rig.wire.receive(piece)
    except UpstreamError as error:
        return told(error)
    return None


def run(rig: Rig, pieces: Iterable[bytes], *, through_buffer: bool = False) -> Any:
    rig.start()
    ears = [rig.open(), rig.open(), rig.open(rig.body(b"upload", size=10, complete=False), method=b"POST")]
    rig.sent()
    fault = None
    for piece in pieces:
        error = give(rig, piece, through_buffer=through_buffer)
        assert fault is None or error is None, "a second fault"
        fault = fault or error
    return {
        "ears": [heard(one) for one in ears],
        "owner": owner_heard(rig),
        "sent": sent_of(rig.sent()),
        "fault": fault,
        "open": (rig.wire.open_streams, rig.wire.can_open, rig.wire.max_streams),
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_byte_stream_means_the_same_cut_anywhere(
    new_rig: Callable[..., Rig], script: Callable[[FrameFactory], bytes]
) -> None:
    def fresh() -> tuple[Rig, bytes]:
        rig = new_rig()
        return rig, script(rig.peer)

    rig, data = fresh()
    whole = run(rig, [data])
    rig, _ = fresh()
    assert run(rig, [data[at : at + 1] for at in range(len(data))]) == whole
    for size in (2, 3, 7, 9, 10, 64):
        rig, _ = fresh()
        assert run(rig, [data[at : at + size] for at in range(0, len(data), size)]) == whole
    for cut in range(1, len(data)):
        rig, _ = fresh()
        assert run(rig, [data[:cut], data[cut:]]) == whole, f"cut at {cut}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_connection_lost_after_any_byte_gives_every_request_its_outcome(
    new_rig: Callable[..., Rig], script: Callable[[FrameFactory], bytes]
) -> None:
    """RFC 9113 section 8.1: a response is complete with the frame that has END_STREAM, not before."""
    rig = new_rig()
    for cut in range(len(script(rig.peer))):
        rig = new_rig().start()
        ears = [
            rig.open(),
            rig.open(),
            rig.open(rig.body(b"upload", size=10, complete=False), method=b"POST"),
        ]
        give(rig, script(rig.peer)[:cut], through_buffer=False)
        rig.wire.abandon(UpstreamError(CONNECTION_LOST))
        assert all(each.over for each in ears), f"lost after {cut} bytes"
        assert rig.wire.open_streams == 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_receive_buffer_takes_what_receive_takes(
    new_rig: Callable[..., Rig], script: Callable[[FrameFactory], bytes]
) -> None:
    """`receive_buffer` and `received` are what the transport uses."""
    rig = new_rig()
    data = script(rig.peer)
    whole = run(rig, [data])
    for size in (1, 13, 1 << 20):
        rig = new_rig()
        script(rig.peer)
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        assert run(rig, pieces, through_buffer=True) == whole


def test_a_long_response_cut_at_odd_sizes_arrives_whole(new_rig: Callable[..., Rig]) -> None:
    """Longer than any receive buffer, and the receiver keeps all pieces."""
    rig = new_rig(WIDE).start()
    ears = rig.open()
    content = bytes(range(256)) * 4096
    frames = [rig.peer.data(1, content[at : at + 16_000]) for at in range(0, len(content), 16_000)]
    data = rig.peer.response(1) + b"".join(frames) + rig.peer.data(1, end=True)
    at, size = 0, 1
    while at < len(data):
        rig.wire.receive(data[at : at + size])
        at += size
        size = size * 7 % 70_001 + 1
    assert ears.data == content
    assert ears.calls == ["response", "end"]


def test_pieces_of_a_body_stay_as_they_are_while_they_are_held(new_rig: Callable[..., Rig]) -> None:
    """A slow client's bytes wait in the receiver; later ones must not overwrite them."""
    rig = new_rig(WIDE).start()
    held: list[Any] = []
    ears = rig.open()
    ears.on_data = held.append  # type: ignore[method-assign,assignment]
    rig.wire.receive(rig.peer.response(1))
    for turn in range(250):
        rig.wire.receive(rig.peer.data(1, bytes([turn]) * 16_000))
    assert b"".join(bytes(piece) for piece in held) == b"".join(bytes([turn]) * 16_000 for turn in range(250))
