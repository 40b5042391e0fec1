"""What a peer may not make us do without end (RFC 9113 section 10.5): WireLimits, each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import FLOOD, RESPONSE_HEAD_TOO_LARGE, UpstreamError
from h2ping.upstream.wire import WireLimits
from tests.support.frames import ENHANCE_YOUR_CALM, HEADERS, FrameFactory, frame

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


BUDGET = 200


@pytest.fixture
def frugal(new_rig: Any) -> Rig:
    """A rig that bears BUDGET frames which move nothing on."""
    rig: Rig = new_rig(WireLimits(max_idle_frames=BUDGET)).start()
    return rig


def _two_streams(rig: Rig) -> None:
    """One whose response has begun, one that we reset."""
    rig.open()
    rig.open().stream.reset(8)
    rig.serve(rig.peer.response(1))
    rig.sent()


@pytest.mark.parametrize("script", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_frames_that_move_nothing_on_are_counted_however_they_are_paced(
    frugal: Rig, script: Callable[[FrameFactory], bytes]
) -> None:
    """CVE-2019-9511 to 9518 and their kin, case ping-settings-flood: our output is taken after every ten."""
    rig = frugal
    _two_streams(rig)
    for _ in range(BUDGET // 10):
        rig.serve(script(rig.peer) * 10)
        rig.sent()
    error, code = rig.fault(script(rig.peer) * 100)
    assert (error.cause, code) == (FLOOD, ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("script", [case[1] for case in FLOODS], ids=[case[0] for case in FLOODS])
def test_time_allows_more_of_them(frugal: Rig, script: Callable[[FrameFactory], bytes]) -> None:
    """A connection that lives for days sees many PINGs and WINDOW_UPDATEs, and little else at night."""
    rig = frugal
    _two_streams(rig)
    for _ in range(10 * BUDGET // 10):
        rig.more_frames = 20
        rig.serve(script(rig.peer) * 10)
        rig.sent()
    assert rig.wire.can_open


def test_bytes_of_a_body_allow_more_of_them(frugal: Rig) -> None:
    """A PING and a WINDOW_UPDATE with each 16 KiB, for as long as they flow."""
    rig = frugal
    ears = rig.open()
    rig.serve(rig.peer.response(1))
    for _ in range(BUDGET):
        rig.serve(rig.peer.ping() * 2, rig.peer.window(0, 16_384), rig.peer.data(1, bytes(16_384)))
        ears.stream.credit(16_384)
        rig.sent()
    assert ears.calls == ["response"]


def test_requests_allow_more_of_them(frugal: Rig) -> None:
    """Small requests with small answers, each with its share of control frames."""
    rig = frugal
    for number in range(BUDGET):
        rig.open()
        stream = 2 * number + 1
        rig.serve(rig.peer.ping(), rig.peer.window(0, 1), rig.peer.window(stream, 1))
        rig.serve(rig.peer.response(stream, end=True), rig.peer.reset(stream, 0))
        rig.sent()
    assert rig.wire.can_open


def test_what_bodies_allow_is_not_saved_up(frugal: Rig) -> None:
    """Megabytes that were sent are no licence for a flood afterwards."""
    rig = frugal
    ears = rig.open()
    rig.serve(rig.peer.response(1))
    for _ in range(32):
        rig.serve(rig.peer.data(1, bytes(16_384)) * 4)
        ears.stream.credit(4 * 16_384)
    rig.sent()
    for _ in range(BUDGET // 10):
        rig.serve(rig.peer.settings() * 10)
        rig.sent()
    assert rig.fault(rig.peer.settings() * 20)[0].cause is FLOOD


def test_data_that_dribbles_is_counted(frugal: Rig) -> None:
    """CVE-2019-9511: a byte a frame."""
    rig = frugal
    rig.open()
    rig.serve(rig.peer.response(1))
    error, code = rig.fault(rig.peer.data(1, b"x") * 2000)
    assert (error.cause, code) == (FLOOD, ENHANCE_YOUR_CALM)


def test_tokens_of_two_bytes_are_no_flood(frugal: Rig) -> None:
    rig = frugal
    ears = rig.open()
    rig.serve(rig.peer.response(1))
    for _ in range(20):
        rig.serve(rig.peer.data(1, b"ok") * BUDGET)
        ears.stream.credit(2 * BUDGET)
        rig.sent()
    assert rig.wire.can_open


def test_a_client_that_dribbles_is_no_flood_of_its_upstreams(frugal: Rig) -> None:
    """Each DATA frame is answered with a WINDOW_UPDATE of the stream and one of the connection."""
    rig = frugal
    ears = rig.open(rig.body(b"", complete=False), method=b"POST")
    rig.sent()
    for _ in range(10 * BUDGET):
        ears.body.append(b"x")
        ears.stream.body_ready()
        assert [len(one.payload) for one in rig.sent()] == [1]
        rig.serve(rig.peer.window(0, 1), rig.peer.window(1, 1))
    assert rig.wire.can_open


def test_windows_that_dribble_are_counted(frugal: Rig) -> None:
    """CVE-2019-9511 and 9517: our upload may go byte by byte. What opens within one turn leaves as one frame."""
    rig = frugal
    rig.open(rig.body(bytes(80_000)))
    rig.sent()
    rig.serve(rig.peer.window(0, 65_535), rig.peer.window(1, 1) * 100)
    assert [len(frame.payload) for frame in rig.sent()] == [100]

    def dribble() -> None:
        for _ in range(2 * BUDGET):
            rig.serve(rig.peer.window(1, 1))
            rig.sent()

    with pytest.raises(UpstreamError) as raised:
        dribble()
    assert raised.value.cause is FLOOD


def test_events_of_one_token_on_200_streams_are_no_flood(rig: Rig) -> None:
    """Each event in a frame of its own, the shortest there is, with no time to help: an hour of them is 14 million."""
    ears = [rig.open() for _ in range(200)]
    rig.sent()
    rig.serve(*(rig.peer.response(2 * number + 1) for number in range(200)))
    turn = b"".join(rig.peer.data(2 * number + 1, b"data:x\n\n") for number in range(200))
    for _ in range(100):
        rig.serve(turn)
    assert all(each.calls == ["response"] for each in ears)


def test_answers_the_peer_does_not_read_are_bounded(rig: Rig) -> None:
    """Case ping-settings-flood: the transport is full, and stays it; queued answers stay below 64 KiB."""
    rig.more_frames = 10_000
    rig.wire.hold_data(True)
    for _ in range(7):
        rig.serve(rig.peer.ping() * 500)
        assert len(rig.sent()) == 500
    error, code = rig.fault(rig.peer.ping() * 500)
    assert (error.cause, code) == (FLOOD, ENHANCE_YOUR_CALM)


def test_answers_the_peer_reads_are_not_counted(rig: Rig) -> None:
    for _ in range(20):
        rig.more_frames = 500
        rig.serve(rig.peer.ping() * 500)
        assert len(rig.sent()) == 500
    assert rig.wire.can_open


def test_a_transport_that_was_full_for_a_while_starts_the_count_over(rig: Rig) -> None:
    for _ in range(20):
        rig.more_frames = 500
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


def test_a_block_that_expands_costs_its_stream_and_no_more_than_its_bytes(rig: Rig) -> None:
    """The HPACK bomb (RFC 7541 section 7.3): one entry of 4,000 bytes, named a thousand times in each of many blocks.

    A table's entry is held by reference, and nothing is kept past SETTINGS_MAX_HEADER_LIST_SIZE, so that work and
    memory grow with the bytes that came, not with what they stand for: 400 MB here.
    """
    rig.open()
    long_field = b"\x88\x40\x01a" + b"\x7f\xa1\x1e" + b"b" * 4000
    rig.serve(frame(HEADERS, 0x4, 1, long_field))
    for number in range(100):
        ears = rig.open()
        rig.serve(frame(HEADERS, 0x4, 2 * number + 3, b"\x88" + b"\xbe" * 1000))
        assert ears.failure.cause is RESPONSE_HEAD_TOO_LARGE
        rig.sent()
    assert rig.wire.can_open


def test_blocks_for_nobody_are_counted(rig: Rig) -> None:
    """Each of them may expand."""
    rig.open().stream.reset(8)
    assert rig.fault(rig.peer.headers(1, (":status", "200")) * 5000)[0].cause is FLOOD
