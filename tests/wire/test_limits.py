"""What a peer may not make us do without end (RFC 9113 section 10.5): WireLimits, each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import FLOOD
from h2ping.upstream.wire import WireLimits
from tests.support.frames import ENHANCE_YOUR_CALM, FrameFactory, frame

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.wires import Rig

FLOODS: list[tuple[str, Callable[[FrameFactory], bytes]]] = [
    ("PING", lambda p: p.ping()),
    ("PING ACK", lambda p: p.ping(ack=True)),
    ("SETTINGS", lambda p: p.settings()),
    ("SETTINGS ACK", lambda p: p.settings_ack()),
    ("PRIORITY", lambda p: p.priority(1)),
    ("RST_STREAM of a stream that is over", lambda p: p.reset(3)),
    ("WINDOW_UPDATE", lambda p: p.window(1, 1)),
    ("WINDOW_UPDATE of the connection", lambda p: p.window(0, 1)),
    ("WINDOW_UPDATE of a stream that is over", lambda p: p.window(3, 1)),
    ("empty DATA", lambda p: p.data(1)),
    ("empty DATA with padding", lambda p: p.data(1, pad=1)),
    ("empty DATA of a stream that is over", lambda p: p.data(3)),
    ("unknown frames", lambda p: frame(0xBE, 0, 0)),
]


@pytest.mark.parametrize("script", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_frames_that_move_nothing_on_are_counted(rig: Rig, script: Callable[[FrameFactory], bytes]) -> None:
    """CVE-2019-9511 to 9518 and their kin, case ping-settings-flood."""
    rig.open()
    rig.open().stream.reset(8)
    rig.serve(rig.peer.response(1))
    rig.sent()
    rig.serve(script(rig.peer) * 1000)
    error, code = rig.fault(script(rig.peer) * 2)
    assert (error.cause, code) == (FLOOD, ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("script", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_they_are_not_counted_for_ever(rig: Rig, script: Callable[[FrameFactory], bytes]) -> None:
    """A connection that lives for days sees many: progress and every flush start the count over."""
    ears = rig.open()
    rig.open().stream.reset(8)
    rig.serve(rig.peer.response(1))
    for _ in range(3):
        rig.serve(script(rig.peer) * 900)
        rig.sent()
        rig.serve(script(rig.peer) * 900)
        rig.serve(rig.peer.data(1, b"x"))
    rig.serve(rig.peer.data(1, end=True))
    assert ears.calls == ["response", "end"]


def test_answers_the_peer_does_not_read_are_bounded(rig: Rig) -> None:
    """Case ping-settings-flood: the transport is full, and stays it; queued answers stay below 64 KiB."""
    rig.wire.hold_data(True)
    for _ in range(7):
        rig.serve(rig.peer.ping() * 500)
        assert len(rig.sent()) == 500
    error, code = rig.fault(rig.peer.ping() * 500)
    assert (error.cause, code) == (FLOOD, ENHANCE_YOUR_CALM)


def test_answers_the_peer_reads_are_not_counted(rig: Rig) -> None:
    for _ in range(20):
        rig.serve(rig.peer.ping() * 500)
        assert len(rig.sent()) == 500
    assert rig.wire.can_open


def test_a_transport_that_was_full_for_a_while_starts_the_count_over(rig: Rig) -> None:
    for _ in range(20):
        rig.wire.hold_data(True)
        rig.serve(rig.peer.ping() * 500)
        rig.sent()
        rig.wire.hold_data(False)
    assert rig.wire.can_open


@pytest.mark.parametrize(
    ("count", "block"),
    [(5000, b""), (17, bytes(16_384)), (17, b"\x10" * 16_384)],
    ids=["empty", "full", "opaque"],
)
def test_continuations_without_end_are_cut_off(rig: Rig, count: int, block: bytes) -> None:
    """CVE-2024-27316 and its kin, case continuation-flood: by count and by bytes."""
    rig.open()
    start = rig.peer.headers(1, (":status", "200"), end_headers=False)
    error, code = rig.fault(start, rig.peer.continuation(1, block) * count)
    assert (error.cause, code) == (FLOOD, ENHANCE_YOUR_CALM)


def test_as_many_continuations_as_allowed_are_taken(new_rig: Any) -> None:
    rig = new_rig(WireLimits(max_continuations=5)).start()
    ears = rig.open()
    start = rig.peer.headers(1, (":status", "200"), end=True, end_headers=False)
    rig.serve(start, rig.peer.continuation(1) * 4, rig.peer.continuation(1, end_headers=True))
    assert ears.calls == ["response"]
    rig.open()
    rig.serve(
        rig.peer.headers(3, (":status", "200"), end=True, end_headers=False), rig.peer.continuation(3) * 5
    )
    assert rig.fault(rig.peer.continuation(3, end_headers=True))[1] == ENHANCE_YOUR_CALM


def test_a_continuation_flood_on_a_stream_that_is_over_counts_too(rig: Rig) -> None:
    rig.open().stream.reset(8)
    start = rig.peer.headers(1, (":status", "200"), end_headers=False)
    assert rig.fault(start, rig.peer.continuation(1) * 100)[1] == ENHANCE_YOUR_CALM


def test_small_frames_of_data_are_progress(rig: Rig) -> None:
    """Server-sent events come a few bytes at a time, thousands in one read."""
    ears = rig.open()
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, b"data: x\n\n") for _ in range(10_000)])
    assert len(ears.data) == 90_000


def test_room_made_for_a_large_read_is_let_go_after_it(rig: Rig) -> None:
    """A transport asks for all that it holds; an idle connection must not keep that much."""
    answer = rig.peer.ping()
    rig.wire.receive_buffer(1 << 20)[: len(answer)] = answer
    rig.wire.received(len(answer))
    assert len(rig.wire.receive_buffer()) < 1 << 20
