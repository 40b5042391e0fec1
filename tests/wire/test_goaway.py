"""GOAWAY in both directions (RFC 9113 section 6.8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import CONNECTION_LOST, GOAWAY_REFUSED, STREAM_RESET, Processed, UpstreamError
from tests.support.frames import (
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    INTERNAL_ERROR,
    NO_ERROR,
    PING,
    PROTOCOL_ERROR,
    RST_STREAM,
)

if TYPE_CHECKING:
    from tests.support.wires import Ears, Rig


@pytest.mark.parametrize("code", [NO_ERROR, INTERNAL_ERROR, ENHANCE_YOUR_CALM, 0xFACE])
def test_streams_above_the_last_id_are_refused_at_once(rig: Rig, code: int) -> None:
    """RFC 9113 section 8.7, case goaway-batch-above-last-id: streams 1 to 15, last is 9."""
    ears = [rig.open() for _ in range(8)]
    rig.sent()
    rig.serve(rig.peer.goaway(9, code, b"max_age"))
    for one in ears[5:]:
        assert one.failure.cause is GOAWAY_REFUSED
        assert one.failure.processed is Processed.REFUSED
        assert one.failure.code == code
    assert rig.log[-1] == (0, "goaway", 9, code, b"max_age"), "the owner hears after the streams"
    assert rig.log.count((0, "stream_closed")) == 3
    assert rig.wire.open_streams == 5
    assert not rig.wire.can_open
    assert rig.sent() == [], "the server ignores those streams; there is nothing to tell it"
    for one in ears[:5]:
        rig.serve(rig.peer.response(one.stream.id, 200), rig.peer.data(one.stream.id, b"done", end=True))
        assert one.calls == ["response", "end"]
    assert rig.wire.open_streams == 0


def test_last_id_zero_refuses_everything(rig: Rig) -> None:
    """Case goaway-refused-post-resent: body sent whole, and nothing of it was processed."""
    ears = rig.open(rig.body(b"hello"), method=b"POST")
    rig.sent()
    assert ears.calls == ["upload_done"]
    rig.serve(rig.peer.goaway(0))
    assert ears.failure.processed is Processed.REFUSED
    assert rig.wire.open_streams == 0


def test_streams_up_to_the_last_id_go_on_sending_and_receiving(rig: Rig) -> None:
    """Case goaway-accepted-streams-finish: WINDOW_UPDATE and PING are still sent and answered."""
    ears = rig.open(rig.body(b"x" * 10, size=100_000, complete=False), method=b"POST")
    rig.sent()
    rig.serve(rig.peer.goaway(1))
    ears.body.append(b"y" * 99_990)
    ears.body.finish()
    ears.stream.body_ready()
    assert rig.uploaded() == {1: 65_535 - 10}
    rig.serve(rig.peer.window(0, 100_000), rig.peer.window(1, 100_000))
    assert rig.uploaded() == {1: 100_000 - 65_535}
    rig.wire.ping(b"01234567")
    rig.serve(rig.peer.ping(b"76543210"))
    assert [(one.kind, one.flags, one.payload) for one in rig.sent()] == [
        (PING, 0, b"01234567"),
        (PING, 1, b"76543210"),
    ]
    rig.serve(rig.peer.ping(b"01234567", ack=True))
    assert rig.log[-1] == (0, "ping_ack", b"01234567")
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, bytes(10_000)) for _ in range(7)])
    assert len(ears.data) == 70_000
    ears.stream.reset(8)
    assert rig.resets() == [(1, 8)]


def test_in_two_steps_the_second_refuses_what_the_first_let_live(rig: Rig) -> None:
    """RFC 9113 section 6.8: first 2^31-1 as a warning, then the real last id."""
    first, second, third = rig.open(), rig.open(), rig.open()
    rig.sent()
    rig.serve(rig.peer.goaway(2**31 - 1))
    assert (rig.wire.open_streams, rig.wire.can_open) == (3, False)
    assert [one.calls for one in (first, second, third)] == [[], [], []]
    rig.serve(rig.peer.goaway(3))
    assert third.failure.cause is GOAWAY_REFUSED
    rig.serve(rig.peer.goaway(1, INTERNAL_ERROR))
    assert second.failure.processed is Processed.REFUSED
    assert second.failure.code == INTERNAL_ERROR
    rig.serve(rig.peer.response(1, end=True))
    assert first.calls == ["response"]
    assert [entry[1:3] for entry in rig.log if entry[1] == "goaway"] == [
        ("goaway", 2**31 - 1),
        ("goaway", 3),
        ("goaway", 1),
    ]


def test_a_later_goaway_with_a_higher_id_brings_nothing_back(rig: Rig) -> None:
    """RFC 9113 section 6.8: a server must not raise it; what was refused stays refused."""
    rig.open()
    second = rig.open()
    rig.serve(rig.peer.goaway(1), rig.peer.goaway(3))
    assert second.calls == ["failed"]
    assert not rig.wire.can_open
    assert rig.wire.open_streams == 1


def test_what_a_refused_stream_still_gets_is_dropped(rig: Rig) -> None:
    """A server that answers what it said it would not: ignored, the HPACK table keeps step."""
    first, second = rig.open(), rig.open()
    rig.serve(rig.peer.goaway(1))
    rig.serve(
        rig.peer.response(3, 200, ("x-a", "b")),
        rig.peer.data(3, b"late", end=True),
        rig.peer.reset(3),
        rig.peer.response(1, 200, ("x-a", "b"), end=True),
    )
    assert second.calls == ["failed"]
    assert first.heard == [("response", 200, [(b"x-a", b"b")], True)]


def test_a_refused_upload_sends_no_more(rig: Rig) -> None:
    ears = rig.open(rig.body(b"x" * 200_000), method=b"POST")
    assert ears.stream.id == 1
    rig.take()
    rig.serve(rig.peer.goaway(0), rig.peer.window(0, 1 << 20))
    assert rig.sent(DATA, RST_STREAM) == []
    assert ears.stream.upload_done


def test_a_refused_request_whose_head_was_not_taken_yet_does_not_break_the_tables(rig: Rig) -> None:
    """RFC 7541 section 2.2: a block that was encoded must be sent, or never encoded."""
    rig.open(fields=[(b"x-first", b"1")])
    rig.serve(rig.peer.goaway(0))
    for one in rig.sent():  # decoding is the test
        assert one.kind not in (DATA, RST_STREAM)


def test_frames_before_goaway_in_the_same_read_count(rig: Rig) -> None:
    """Case goaway-and-fin-in-one-read: everything in the buffer is taken in order."""
    first, second = rig.open(), rig.open()
    rig.serve(
        rig.peer.response(1, end=True),
        rig.peer.response(3, end=True),
        rig.peer.goaway(0, INTERNAL_ERROR),
    )
    assert (first.calls, second.calls) == (["response"], ["response"])
    assert rig.log[-1] == (0, "goaway", 0, INTERNAL_ERROR, b"")


def test_a_receiver_may_start_over_elsewhere_while_goaway_is_told(rig: Rig) -> None:
    """`on_failed` runs while the Wire still goes through its streams: it may reset another one."""
    first, second, third = rig.open(), rig.open(), rig.open()
    second.hooks["failed"] = lambda ears: third.stream.reset(8)
    rig.serve(rig.peer.goaway(1))
    assert second.calls == ["failed"]
    assert third.calls == []
    assert rig.wire.open_streams == 1
    rig.serve(rig.peer.response(1, end=True))
    assert first.calls == ["response"]


def test_our_goaway_stops_new_streams_and_lets_open_ones_finish(rig: Rig) -> None:
    """RFC 9113 section 6.8; the last stream id of a client's GOAWAY is 0, no push was accepted."""
    ears = rig.open(rig.body(b"", size=5, complete=False), method=b"POST")
    rig.sent()
    rig.wire.goaway(NO_ERROR)
    assert not rig.wire.can_open
    (goaway,) = rig.sent()
    assert (goaway.kind, goaway.stream, goaway.payload) == (GOAWAY, 0, bytes(8))
    ears.body.append(b"hello")
    ears.body.finish()
    ears.stream.body_ready()
    assert rig.uploaded() == {1: 5}
    rig.serve(rig.peer.ping(), rig.peer.settings())
    assert len(rig.sent()) == 2
    rig.serve(rig.peer.response(1, end=True))
    assert "response" in ears.calls


def test_goaway_both_ways_is_no_fault(rig: Rig) -> None:
    rig.open()
    rig.wire.goaway(NO_ERROR)
    rig.serve(rig.peer.goaway(1), rig.peer.response(1, end=True))
    assert rig.wire.open_streams == 0


def test_abandon_fails_what_is_open_and_nothing_else(rig: Rig) -> None:
    """The connection is gone: the owner's error goes to every stream without a complete response."""
    waiting, half, complete, uploading = rig.open(), rig.open(), rig.open(), None
    uploading = rig.open(rig.body(b"", size=5, complete=False), method=b"POST")
    rig.sent()
    rig.serve(rig.peer.response(3), rig.peer.data(3, b"ab"), rig.peer.response(5, end=True))
    rig.serve(rig.peer.response(7, end=True))
    lost = UpstreamError(CONNECTION_LOST, "closed by the peer")
    rig.wire.abandon(lost)
    assert waiting.failure is lost
    assert half.failure is lost
    assert complete.calls == ["response"]
    assert uploading.calls == ["response"]
    assert (rig.wire.open_streams, rig.wire.can_open) == (0, False)
    rig.wire.abandon(lost)
    waiting.stream.reset(8)
    waiting.stream.body_ready()
    half.stream.credit(2)
    rig.serve(rig.peer.response(1, end=True))
    assert waiting.calls == ["failed"]


def test_a_request_whose_headers_never_left_was_never_sent(rig: Rig) -> None:
    """RFC 9113 section 8.7: not even the transport had it, so it may be sent again whatever its method."""
    sent = rig.open()
    rig.sent()
    kept = rig.open(rig.body(b"x" * 100))
    lost = UpstreamError(CONNECTION_LOST, "reset by the peer")
    rig.wire.abandon(lost)
    assert sent.failure is lost
    assert kept.failure.processed is Processed.NEVER_SENT
    assert (kept.failure.cause, kept.failure.detail) == (CONNECTION_LOST, "reset by the peer")


@pytest.mark.parametrize("status", [103, 200])
def test_goaway_below_a_stream_that_was_being_answered_proves_nothing(rig: Rig, status: int) -> None:
    """RFC 9113 section 6.8 with 8.7: as with REFUSED_STREAM, a server that has answered has processed."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, status), rig.peer.goaway(0))
    assert ears.failure.cause is STREAM_RESET
    assert ears.failure.processed is Processed.MAYBE


def test_a_receiver_that_raises_keeps_no_other_from_hearing_that_all_is_over(rig: Rig) -> None:
    """A defect in one request is that request's; what was raised comes out once all have heard."""
    first, second, third = rig.open(), rig.open(), rig.open()
    for ears in (first, second):
        ears.hooks["failed"] = lambda ears: [][ears.stream.id]
    with pytest.raises(IndexError):
        rig.wire.abandon(UpstreamError(CONNECTION_LOST))
    assert [ears.calls for ears in (first, second, third)] == [["failed"]] * 3
    assert rig.wire.open_streams == 0


def test_a_receiver_may_reset_another_stream_while_all_are_abandoned(rig: Rig) -> None:
    first, second = rig.open(), rig.open()
    first.hooks["failed"] = lambda ears: second.stream.reset(8)
    rig.wire.abandon(UpstreamError(CONNECTION_LOST))
    assert first.calls == ["failed"]
    assert second.calls == []
    assert rig.wire.open_streams == 0


@pytest.mark.parametrize("when", ["response", "data", "end"])
def test_abandoning_inside_a_call_tells_every_receiver_its_end_once(rig: Rig, when: str) -> None:
    """A receiver may drop the whole connection; Ears fail on a call after the last."""
    first, second = rig.open(), rig.open()

    def drop(ears: Ears) -> None:
        rig.wire.abandon(UpstreamError(CONNECTION_LOST))

    first.hooks[when] = drop
    rig.serve(rig.peer.response(1), rig.peer.data(1, b"x"), rig.peer.data(1, b"y", end=True))
    assert first.calls[-1] in ("end", "failed")
    assert second.calls == ["failed"]


def test_goaway_with_a_malformed_frame_behind_it_counts_first(rig: Rig) -> None:
    ears: Any = rig.open()
    assert rig.fault(rig.peer.goaway(0), rig.peer.window(0, 0))[1] == PROTOCOL_ERROR
    assert ears.failure.processed is Processed.REFUSED
