"""Flow control, both directions (RFC 9113 sections 5.2 and 6.9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.upstream.wire import WireLimits
from tests.support.frames import (
    DATA,
    FLOW_CONTROL_ERROR,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PING,
    RST_STREAM,
    WINDOW_UPDATE,
)

if TYPE_CHECKING:
    from tests.support.wires import Ears, Rig

DEFAULT = 65_535


def upload(rig: Rig, content: bytes, *, complete: bool = True) -> Ears:
    return rig.open(rig.body(content, complete=complete), method=b"POST")


# --- ours to send


def test_an_upload_stops_at_the_default_windows_and_goes_on_with_credit_for_both(rig: Rig) -> None:
    """RFC 9113 section 6.9.1: the smaller of the two windows."""
    ears = upload(rig, bytes(200_000))
    assert rig.uploaded() == {1: DEFAULT}
    assert ears.body.sent == DEFAULT
    rig.serve(rig.peer.window(1, 50_000))
    assert rig.uploaded() == {}
    rig.serve(rig.peer.window(0, 20_000))
    assert rig.uploaded() == {1: 20_000}
    rig.serve(rig.peer.window(0, 1_000_000))
    assert rig.uploaded() == {1: 30_000}
    assert not ears.stream.upload_done
    rig.serve(rig.peer.window(1, 1_000_000))
    frames = rig.sent(DATA)
    assert sum(len(one.payload) for one in frames) == 200_000 - DEFAULT - 50_000
    assert [one.end for one in frames[-2:]] == [False, True]
    assert ears.calls == ["upload_done"]


@pytest.mark.parametrize("size", [1, 16_374, 16_375, 16_376, 32_750, 65_535])
def test_the_bytes_of_a_body_arrive_as_they_were(rig: Rig, size: int) -> None:
    content = bytes(range(256)) * 256
    upload(rig, content[:size])
    frames = rig.sent(DATA)
    assert b"".join(one.payload for one in frames) == content[:size]
    assert [one.end for one in frames] == [False] * (len(frames) - 1) + [True]
    assert max(len(one.payload) for one in frames) <= 16_384


@pytest.mark.parametrize("window", [1, 100, 16_374, 16_375, 16_376, 20_000])
def test_a_frame_is_cut_where_the_window_ends_and_the_rest_follows(new_rig: Any, window: int) -> None:
    """RFC 9113 section 6.9.1: cells and windows do not end in the same places."""
    rig = new_rig(None, (INITIAL_WINDOW_SIZE, window)).start()
    content = bytes(range(251)) * 200
    ears = upload(rig, content[:50_000])
    got = b"".join(one.payload for one in rig.sent(DATA))
    assert got == content[:window]
    while not ears.stream.upload_done:
        rig.serve(rig.peer.window(1, 7_001))
        more = b"".join(one.payload for one in rig.sent(DATA))
        assert len(more) == min(7_001, 50_000 - len(got))
        got += more
    assert got == content[:50_000]
    # And again from the first byte: what was cut and stamped before must not show.
    second = rig.open(ears.body, method=b"POST")
    rig.serve(rig.peer.window(3, 100_000), rig.peer.window(0, 100_000))
    again = b"".join(one.payload for one in rig.sent(DATA) if one.stream == second.stream.id)
    assert again == content[:50_000]


def test_a_kept_body_is_sent_again_as_it_was(rig: Rig) -> None:
    """RFC 9113 section 8.7: the second attempt sends what the first one sent."""
    content = bytes(range(256)) * 200
    body = rig.body(content)
    for stream in (1, 3):
        rig.serve(rig.peer.window(0, 100_000))
        rig.open(body, method=b"POST")
        frames = [one for one in rig.sent(DATA) if one.stream == stream]
        assert b"".join(one.payload for one in frames) == content


@pytest.mark.parametrize("window", [1_000_000, 20_000])
def test_output_that_the_transport_still_holds_is_never_written_to(new_rig: Any, window: int) -> None:
    """A second attempt stamps the same cells; what the first one handed out may not be on the wire yet."""
    rig = new_rig(None, (INITIAL_WINDOW_SIZE, window)).start()
    rig.serve(rig.peer.window(0, 10_000_000))
    content = bytes(range(256)) * 300
    body = rig.body(content)
    outputs: list[list[Any]] = []
    copies: list[bytes] = []

    def take() -> None:
        while output := rig.wire.take_output():
            outputs.append(output)
            copies.append(b"".join(bytes(piece) for piece in output))

    ids = []
    for _ in range(3):
        ears = rig.open(body, method=b"POST")
        ids.append(ears.stream.id)
        take()
        while not ears.stream.upload_done:
            rig.serve(rig.peer.window(ears.stream.id, 7_001))
            take()
    body.release()
    other = rig.body(b"o" * len(content))
    frames = rig.reader.read(b"".join(copies))
    for stream in ids:
        assert b"".join(one.payload for one in frames if (one.kind, one.stream) == (DATA, stream)) == content
    assert [b"".join(bytes(piece) for piece in output) for output in outputs] == copies
    other.release()


def test_an_empty_body_is_an_empty_frame_with_end_stream(rig: Rig) -> None:
    """RFC 9113 section 8.1: no window is needed for it (section 6.9)."""
    rig.serve(rig.peer.settings((INITIAL_WINDOW_SIZE, 0)))
    ears = upload(rig, b"")
    head, data = rig.sent(HEADERS, DATA)
    assert (head.end, data.end, data.payload) == (False, True, b"")
    assert ears.calls == ["upload_done"]


def test_a_request_without_a_body_ends_with_its_head(rig: Rig) -> None:
    ears = rig.open()
    (head,) = rig.sent()
    assert head.end
    assert ears.stream.upload_done
    assert ears.calls == [], "on_upload_done is for bodies"


def test_end_stream_needs_no_window(rig: Rig) -> None:
    """RFC 9113 section 6.9: a frame of no content may be sent whatever the windows say."""
    ears = upload(rig, bytes(DEFAULT), complete=False)
    assert rig.uploaded() == {1: DEFAULT}
    ears.body.finish()
    ears.stream.body_ready()
    (last,) = rig.sent()
    assert (last.kind, last.end, last.payload) == (DATA, True, b"")


def test_the_preface_of_edge_servers_opens_the_windows_wide(new_rig: Any) -> None:
    """Case preface-with-huge-windows: 65,535 + 2,147,418,112 is 2^31-1, and legal (section 6.9.2)."""
    rig = new_rig()
    rig.wire.start()
    rig.sent()
    rig.serve(
        rig.peer.settings((3, 128), (INITIAL_WINDOW_SIZE, 2**31 - 1), (MAX_FRAME_SIZE, 2**24 - 1)),
        rig.peer.window(0, 2**31 - 1 - DEFAULT),
    )
    assert rig.wire.max_streams == 128
    upload(rig, bytes(1_000_000))
    frames = rig.sent(DATA)
    assert sum(len(one.payload) for one in frames) == 1_000_000
    assert max(len(one.payload) for one in frames) <= 16_384, "a PING must not wait behind a larger one"
    assert rig.fault(rig.peer.window(0, 1_000_001))[1] == FLOW_CONTROL_ERROR


def test_settings_change_the_windows_of_streams_and_not_the_connections(rig: Rig) -> None:
    """RFC 9113 section 6.9.2."""
    upload(rig, bytes(DEFAULT + 1000))
    rig.sent()
    rig.serve(rig.peer.settings((INITIAL_WINDOW_SIZE, DEFAULT + 500)))
    assert rig.uploaded() == {}, "the connection's window is still used up"
    rig.serve(rig.peer.window(0, 10_000))
    assert rig.uploaded() == {1: 500}


def test_a_window_below_zero_must_be_filled_before_anything_is_sent(rig: Rig) -> None:
    """RFC 9113 section 6.9.2: shrinking INITIAL_WINDOW_SIZE makes it negative."""
    upload(rig, bytes(100_000))
    rig.sent()
    rig.serve(rig.peer.window(0, 1_000_000), rig.peer.settings((INITIAL_WINDOW_SIZE, 10_000)))
    rig.serve(rig.peer.window(1, DEFAULT - 10_000))
    assert rig.uploaded() == {}
    rig.serve(rig.peer.window(1, 1))
    assert rig.uploaded() == {1: 1}
    rig.serve(rig.peer.settings((INITIAL_WINDOW_SIZE, 12_000)))
    assert rig.uploaded() == {1: 2_000}


def test_a_stream_opened_after_settings_starts_with_their_window(rig: Rig) -> None:
    rig.serve(rig.peer.settings((INITIAL_WINDOW_SIZE, 77)))
    upload(rig, bytes(100))
    assert rig.uploaded() == {1: 77}


def test_uploads_share_the_connection_fairly(rig: Rig) -> None:
    """RFC 9113 section 5.2: no stream waits until another is done."""
    for _ in range(4):
        upload(rig, bytes(1_000_000))
    rig.sent()
    rig.serve(*[rig.peer.window(stream, 1_000_000) for stream in (1, 3, 5, 7)])
    rig.serve(rig.peer.window(0, 400_000))
    sizes = rig.uploaded()
    assert sum(sizes.values()) == 400_000
    assert max(sizes.values()) - min(sizes.values()) <= 2 * 16_384


def test_a_stream_without_window_does_not_hold_up_the_others(rig: Rig) -> None:
    rig.serve(rig.peer.settings((INITIAL_WINDOW_SIZE, 0)))
    for _ in range(3):
        upload(rig, bytes(1000))
    assert rig.uploaded() == {}
    rig.serve(rig.peer.window(3, 1000))
    assert rig.uploaded() == {3: 1000}


def test_control_frames_and_heads_go_before_data(rig: Rig) -> None:
    """A PING must not wait behind an upload: control first, then HEADERS, then DATA in bounded batches."""
    rig.serve(rig.peer.window(0, 1 << 24), rig.peer.settings((INITIAL_WINDOW_SIZE, 1 << 24)))
    rig.sent()
    upload(rig, bytes(4 << 20))
    first = rig.take()
    assert first[0].kind == HEADERS
    assert 0 < sum(len(one.payload) for one in first[1:]) <= 1 << 20
    rig.wire.ping(b"in hurry")
    rig.open()
    second = rig.take()
    assert [one.kind for one in second[:2]] == [PING, HEADERS]
    assert second[2].kind == DATA


def test_data_is_held_back_while_the_transport_is_full_and_control_is_not(rig: Rig) -> None:
    upload(rig, bytes(1000))
    rig.wire.hold_data(True)
    rig.wire.ping(b"12345678")
    assert [one.kind for one in rig.sent()] == [HEADERS, PING]
    rig.wire.hold_data(False)
    assert rig.uploaded() == {1: 1000}


def test_the_owner_hears_once_of_output_and_again_when_there_is_more(rig: Rig) -> None:
    """`on_output` means: there are bytes where there were none, or `take_output` left some."""
    rig.sent()
    rig.output_calls = 0
    upload(rig, bytes(100_000))
    rig.wire.ping(b"12345678")
    assert rig.output_calls == 1
    rig.sent()
    before = rig.output_calls
    rig.serve(rig.peer.window(1, 100_000))
    assert rig.output_calls == before, "no window of the connection: nothing to send"
    rig.serve(rig.peer.window(0, 100_000))
    assert rig.output_calls == before + 1


def test_body_ready_without_anything_new_makes_no_output(rig: Rig) -> None:
    ears = upload(rig, b"abc", complete=False)
    rig.sent()
    before = rig.output_calls
    ears.stream.body_ready()
    assert (rig.sent(), rig.output_calls) == ([], before)


def test_a_body_that_grows_is_sent_as_it_grows(rig: Rig) -> None:
    ears = rig.open(rig.body(size=30, complete=False), method=b"POST")
    got = b""
    for piece in (b"abc", b"d" * 20, b"efghijk"):
        ears.body.append(piece)
        ears.stream.body_ready()
        got += b"".join(one.payload for one in rig.sent(DATA))
    assert got == b"abc" + b"d" * 20 + b"efghijk"
    assert not ears.stream.upload_done
    ears.body.finish()
    ears.stream.body_ready()
    assert [one.end for one in rig.sent(DATA)] == [True]


def test_room_made_by_sending_may_be_filled_at_once(rig: Rig) -> None:
    """`sent_to` frees cells, whose owner may append and say `body_ready` from inside `take_output`."""
    body = rig.body(size=400_000, complete=False, kept=False)
    ears = rig.open(body, method=b"POST")
    rig.serve(rig.peer.window(0, 1_000_000), rig.peer.window(1, 1_000_000))

    def refill() -> None:
        body.append(bytes(400_000 - body.received))
        if body.received == 400_000:
            body.finish()
        ears.stream.body_ready()

    body.on_room = refill
    refill()
    assert rig.uploaded() == {1: 400_000}
    assert ears.calls == ["upload_done"]


def test_trailers_of_a_request_follow_its_last_data(rig: Rig) -> None:
    """RFC 9113 section 8.1."""
    body = rig.body(b"hello", complete=False, size=5)
    body.trailers = [(b"x-sum", b"1")]
    body.finish()
    ears = rig.open(body, method=b"POST")
    head, data, trailers = rig.sent()
    assert (head.end, data.end, data.payload) == (False, False, b"hello")
    assert (trailers.kind, trailers.end, trailers.fields) == (HEADERS, True, [(b"x-sum", b"1")])
    assert ears.calls == ["upload_done"]


# --- the peer's to send


def test_bytes_of_the_body_are_credited_when_the_receiver_says_so(new_rig: Any) -> None:
    """RFC 9113 section 6.9: not before the client's socket took them, at most half a window late."""
    rig = new_rig(WireLimits(stream_window_bytes=100_000, connection_window_bytes=200_000)).start()
    ears = rig.open()
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, bytes(10_000)) for _ in range(10)])
    assert rig.credit() == {}
    ears.stream.credit(40_000)
    first = rig.credit()
    assert max(first.values(), default=0) <= 40_000
    ears.stream.credit(60_000)
    second = rig.credit()
    assert 50_000 <= first.get(1, 0) + second.get(1, 0) <= 100_000
    assert first.get(0, 0) + second.get(0, 0) <= 100_000


def test_window_updates_are_not_sent_for_every_byte(rig: Rig) -> None:
    ears = rig.open()
    rig.serve(rig.peer.response(1), rig.peer.data(1, bytes(10_000)))
    for _ in range(10_000):
        ears.stream.credit(1)
    assert len(rig.sent()) <= 2


def test_many_unread_streams_leave_the_connection_open_for_the_next(rig: Rig) -> None:
    """RFC 9113 section 5.2.2: were the connection's window that of a few streams, a few slow clients would stop all."""
    unread = [rig.open() for _ in range(70)]
    for ears in unread:
        stream = ears.stream.id
        frames = rig.wire.limits.stream_window_bytes // 16_384
        rig.serve(rig.peer.response(stream), rig.peer.data(stream, bytes(16_384)) * frames)
    last = rig.open()
    rig.serve(rig.peer.response(last.stream.id), rig.peer.data(last.stream.id, b"x", end=True))
    assert last.data == b"x"
    granted = sum(one.code for one in rig.first if one.kind == WINDOW_UPDATE)
    assert granted > 500 * rig.wire.limits.stream_window_bytes


def test_a_response_of_many_windows_flows(new_rig: Any) -> None:
    """RFC 9113 section 6.9: sums of credit keep up, whatever the peer's windows were."""
    limits = WireLimits(stream_window_bytes=70_000, connection_window_bytes=100_000)
    rig = new_rig(limits).start()
    ears = rig.open()
    rig.serve(rig.peer.response(1))
    stream_window, connection_window = 70_000, 100_000
    for _ in range(500):
        size = min(16_384, stream_window, connection_window)
        assert size > 0, "stalled"
        rig.serve(rig.peer.data(1, bytes(size)))
        stream_window -= size
        connection_window -= size
        ears.stream.credit(size)
        sums = rig.credit()
        stream_window += sums.get(1, 0)
        connection_window += sums.get(0, 0)
        assert 35_000 <= stream_window <= 70_000
        assert 50_000 <= connection_window <= 100_000


def test_padding_is_credited_at_once(new_rig: Any) -> None:
    """RFC 9113 section 6.1: padding counts, and nobody else will give it back."""
    rig = new_rig(WireLimits(stream_window_bytes=70_000, connection_window_bytes=70_000)).start()
    rig.open()
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, pad=255) for _ in range(200)])
    sums = rig.credit()
    assert 200 * 256 - 35_000 <= sums.get(0, 0) <= 200 * 256
    assert 200 * 256 - 35_000 <= sums.get(1, 0) <= 200 * 256


def test_what_arrives_for_a_cancelled_stream_is_credited_to_the_connection(new_rig: Any) -> None:
    """RFC 9113 section 5.1, case cancelled-stream-bytes-credited."""
    rig = new_rig(WireLimits(connection_window_bytes=64 << 20)).start()
    for _ in range(20):
        ears = rig.open()
        rig.serve(rig.peer.response(ears.stream.id), rig.peer.data(ears.stream.id, bytes(10_000)))
        ears.stream.reset(8)
        rig.serve(*[rig.peer.data(ears.stream.id, bytes(10_000)) for _ in range(400)])
    received = 20 * 401 * 10_000
    assert received - (32 << 20) <= rig.credit()[0] <= received


@pytest.mark.parametrize("end", ["reset", "reset by the peer", "complete"])
def test_what_is_credited_after_the_end_of_a_stream_goes_back_to_the_connection_alone(
    new_rig: Any, end: str
) -> None:
    """Whoever resets a stream drops its bytes, and of a complete one a slow client still holds some: the connection's
    window must not shrink for good."""
    rig = new_rig(WireLimits(stream_window_bytes=50_000, connection_window_bytes=65_536)).start()
    got = 0
    for _ in range(100):
        ears = rig.open()
        stream = ears.stream
        rig.serve(rig.peer.response(stream.id), *[rig.peer.data(stream.id, bytes(8_000)) for _ in range(4)])
        if end == "reset":
            stream.reset(8)
        elif end == "reset by the peer":
            rig.serve(rig.peer.reset(stream.id))
        else:
            rig.serve(rig.peer.data(stream.id, end=True))
            assert ears.calls[-1] == "end"
        stream.credit(32_000)
        sums = rig.credit()
        assert stream.id not in sums
        got += sums.get(0, 0)
    assert 100 * 32_000 - 32_768 <= got <= 100 * 32_000


def test_more_credit_than_bytes_is_not_given(new_rig: Any) -> None:
    rig = new_rig(WireLimits(stream_window_bytes=70_000, connection_window_bytes=70_000)).start()
    ears = rig.open()
    rig.serve(rig.peer.response(1), rig.peer.data(1, bytes(1000)))
    ears.stream.credit(10_000_000)
    assert max(rig.credit().values(), default=0) <= 1000


@pytest.mark.parametrize(
    ("stream_window", "connection_window"),
    [(100_000, 200_000), (200_000, 100_000)],
    ids=["stream", "connection"],
)
def test_a_peer_that_overruns_a_window_is_cut_off(
    new_rig: Any, stream_window: int, connection_window: int
) -> None:
    """RFC 9113 section 6.9.1: FLOW_CONTROL_ERROR, of the connection for either window."""
    rig = new_rig(
        WireLimits(stream_window_bytes=stream_window, connection_window_bytes=connection_window)
    ).start()
    rig.open()
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, bytes(10_000)) for _ in range(10)])
    assert rig.fault(rig.peer.data(1, b"x"))[1] == FLOW_CONTROL_ERROR


def test_a_wider_window_is_granted_at_once_and_used(new_rig: Any) -> None:
    """RFC 9113 section 6.9: what `widen` grants comes on top of what is credited."""
    rig = new_rig(WireLimits(stream_window_bytes=20_000)).start()
    ears = rig.open()
    rig.sent()
    rig.serve(rig.peer.response(1), rig.peer.data(1, bytes(10_000)))
    ears.stream.widen(20_000)
    assert [(update.stream, update.code) for update in rig.sent(WINDOW_UPDATE)] == [(1, 20_000)]
    rig.serve(*[rig.peer.data(1, bytes(10_000)) for _ in range(3)])
    assert len(ears.data) == 40_000
    assert rig.fault(rig.peer.data(1, b"x"))[1] == FLOW_CONTROL_ERROR


def test_a_response_and_an_upload_do_not_wait_for_each_other(new_rig: Any) -> None:
    """Case big-upload-while-origin-talks."""
    rig = new_rig(WireLimits(stream_window_bytes=1 << 20)).start()
    ears = upload(rig, bytes(1_000_000))
    rig.sent()
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, bytes(16_000)) for _ in range(60)])
    assert len(ears.data) == 960_000
    rig.serve(rig.peer.window(0, 1_000_000), rig.peer.window(1, 1_000_000))
    assert rig.uploaded() == {1: 1_000_000 - DEFAULT}
    rig.serve(rig.peer.data(1, end=True))
    assert rig.wire.open_streams == 0
    assert rig.sent(RST_STREAM) == []


def test_the_receive_buffer_holds_all_that_waits(new_rig: Any) -> None:
    """Transports throw away at EOF what a read left behind: the end of a response, when the peer closes at once."""
    rig = new_rig(WireLimits(stream_window_bytes=1 << 20)).start()
    for least in (0, 1, 100_000, 262_400, 100_000, 400_000):
        assert len(rig.wire.receive_buffer(least)) >= least
    ears = rig.open()
    sent = rig.peer.response(1) + b"".join(rig.peer.data(1, bytes([n]) * 16_000) for n in range(20))
    rig.wire.receive_buffer(len(sent))[: len(sent)] = sent
    rig.wire.received(len(sent))
    assert ears.data == b"".join(bytes([n]) * 16_000 for n in range(20))
