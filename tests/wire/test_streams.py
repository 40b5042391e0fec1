"""Opening, cancelling and counting streams; what goes out in which order (RFC 9113 sections 5.1 and 8.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import CONNECTION_LOST, UpstreamError
from tests.support.frames import CANCEL, DATA, GOAWAY, HEADERS, NO_ERROR, PING, RST_STREAM, SETTINGS

if TYPE_CHECKING:
    from tests.support.wires import Ears, Rig


def test_streams_have_odd_ids_that_rise(rig: Rig) -> None:
    """RFC 9113 section 5.1.1."""
    assert [rig.open().stream.id for _ in range(3)] == [1, 3, 5]
    assert [one.stream for one in rig.requests()] == [1, 3, 5]
    assert rig.wire.open_streams == 3


def test_open_streams_counts_both_directions(rig: Rig) -> None:
    """RFC 9113 section 5.1.2: half-closed streams count."""
    ears = rig.open(rig.body(b"", size=10, complete=False), method=b"POST")
    rig.sent()
    rig.serve(rig.peer.response(1, end=True))
    assert rig.wire.open_streams == 1, "we still send"
    ears.body.append(b"0123456789")
    ears.body.finish()
    ears.stream.body_ready()
    rig.sent()
    assert rig.wire.open_streams == 0
    assert ears.calls == ["response"], "on_upload_done never comes after the last call"
    assert rig.log[-1] == (0, "stream_closed")


def test_an_upload_that_ends_first_is_told_before_the_response(rig: Rig) -> None:
    ears = rig.open(rig.body(b"hello"), method=b"POST")
    rig.sent()
    rig.serve(rig.peer.response(1, end=True))
    assert ears.calls == ["upload_done", "response"]


def test_an_upload_that_ends_inside_the_response_is_told_between(rig: Rig) -> None:
    ears = rig.open(rig.body(b"hel", size=5, complete=False), method=b"POST")
    rig.sent()
    rig.serve(rig.peer.response(1), rig.peer.data(1, b"x"))
    ears.body.append(b"lo")
    ears.body.finish()
    ears.stream.body_ready()
    rig.sent()
    rig.serve(rig.peer.data(1, end=True))
    assert ears.calls == ["response", "upload_done", "end"]


# --- cancelling


@pytest.mark.parametrize("code", [NO_ERROR, CANCEL])
def test_a_reset_stream_hears_nothing_more(rig: Rig, code: int) -> None:
    """RFC 9113 section 5.4.2."""
    ears = rig.open()
    rig.sent()
    rig.serve(rig.peer.response(1), rig.peer.data(1, b"a"))
    ears.stream.reset(code)
    assert rig.log[-1] == (0, "stream_closed")
    rig.serve(rig.peer.data(1, b"b", end=True))
    assert ears.calls == ["response"]
    assert ears.data == b"a"
    assert rig.resets() == [(1, code)]
    assert rig.wire.open_streams == 0


def test_reset_of_a_stream_that_is_over_does_nothing(rig: Rig) -> None:
    ears = rig.open()
    rig.sent()
    rig.serve(rig.peer.response(1, end=True))
    ears.stream.reset(CANCEL)
    ears.stream.reset(CANCEL)
    assert rig.sent() == []
    assert rig.log.count((0, "stream_closed")) == 1


def test_a_stream_reset_before_its_head_was_taken_sends_both(rig: Rig) -> None:
    """RFC 9113 section 5.1: RST_STREAM on an idle stream would be a connection error; RFC 7541: the block
    counts."""
    rig.open(fields=[(b"x-first", b"1")]).stream.reset(CANCEL)
    rig.open(fields=[(b"x-first", b"1")])
    assert [(one.kind, one.stream) for one in rig.sent()] == [(HEADERS, 1), (RST_STREAM, 1), (HEADERS, 3)]


def test_the_reset_goes_out_before_the_next_request(rig: Rig) -> None:
    """Case cancel-then-reuse-slot-order: the server never counts two."""
    rig.serve(rig.peer.settings((3, 1)))
    ears = rig.open()
    rig.sent()
    for turn in range(200):
        ears.stream.reset(CANCEL)
        ears = rig.open()
        frames = rig.sent()
        assert [(one.kind, one.stream) for one in frames] == [
            (RST_STREAM, 2 * turn + 1),
            (HEADERS, 2 * turn + 3),
        ]
    rig.serve(rig.peer.response(ears.stream.id, end=True))
    assert ears.calls == ["response"]


def test_a_reset_upload_sends_whole_frames_then_the_reset(rig: Rig) -> None:
    """Case cancel-midframe-keeps-connection: what was handed out is whole; FrameReader checks."""
    first = rig.open(rig.body(bytes(200_000)), method=b"POST")
    assert rig.take()[-1].kind == DATA
    first.stream.reset(CANCEL)
    rig.serve(rig.peer.window(0, 200_000), rig.peer.window(1, 200_000))
    second = rig.open(rig.body(b"second"), method=b"POST")
    frames = rig.sent()
    assert [(one.kind, one.stream) for one in frames] == [(RST_STREAM, 1), (HEADERS, 3), (DATA, 3)]
    assert first.stream.upload_done
    assert second.calls == ["upload_done"]


def test_a_reset_body_may_be_released_at_once(rig: Rig) -> None:
    """The owner frees a body when it resets its stream; nothing of it is read afterwards."""
    ears = rig.open(rig.body(bytes(200_000)), method=b"POST")
    rig.take()
    ears.stream.reset(CANCEL)
    ears.body.release()
    rig.serve(rig.peer.window(0, 200_000))
    assert rig.sent(DATA) == []


def test_an_answer_before_the_upload_ends_it_without_an_error(rig: Rig) -> None:
    """RFC 9113 section 8.1: the exchange resets with NO_ERROR, and the response is whole."""
    ears = rig.open(rig.body(b"", size=10, complete=False), method=b"POST")
    ears.hooks["end"] = lambda heard: heard.stream.reset(NO_ERROR)
    rig.sent()
    rig.serve(rig.peer.response(1, 413), rig.peer.data(1, b"too large", end=True))
    assert ears.calls == ["response", "end"]
    assert rig.resets() == [(1, NO_ERROR)]
    assert rig.wire.open_streams == 0


# --- calls from inside calls


@pytest.mark.parametrize("when", ["interim", "response", "data"])
def test_a_receiver_may_reset_its_stream_inside_any_call(rig: Rig, when: str) -> None:
    ears, neighbour = rig.open(), rig.open()
    ears.hooks[when] = lambda heard: heard.stream.reset(CANCEL)
    rig.serve(
        rig.peer.response(1, 103),
        rig.peer.response(1),
        rig.peer.data(1, b"x"),
        rig.peer.data(1, b"y", end=True),
        rig.peer.response(3, end=True),
    )
    assert ears.heard[-1][0] == when
    assert neighbour.calls == ["response"]
    assert (1, CANCEL) in rig.resets()
    assert rig.log.count((0, "stream_closed")) == 2


def test_a_receiver_that_resets_on_the_last_bytes_hears_no_end(rig: Rig) -> None:
    """`reset` is a promise: no further call."""
    ears = rig.open()
    ears.hooks["data"] = lambda heard: heard.stream.reset(CANCEL)
    rig.serve(rig.peer.response(1), rig.peer.data(1, b"x", end=True))
    assert ears.calls == ["response"]
    assert rig.log.count((0, "stream_closed")) == 1
    assert rig.wire.open_streams == 0


@pytest.mark.parametrize("when", ["response", "end", "failed"])
def test_a_receiver_may_open_the_next_stream_inside_its_last_call(rig: Rig, when: str) -> None:
    """The stream has left the count by then: under a limit of 1 the next one fits."""
    rig.serve(rig.peer.settings((3, 1)))
    ears = rig.open()
    counted: list[int] = []

    def go_on(heard: Ears) -> None:
        counted.append(rig.wire.open_streams)
        rig.open()

    ears.hooks[when] = go_on
    rig.serve(
        {
            "response": rig.peer.response(1, end=True),
            "end": rig.peer.response(1) + rig.peer.data(1, b"x", end=True),
            "failed": rig.peer.reset(1),
        }[when]
    )
    assert counted == [0]
    assert rig.wire.open_streams == 1
    assert [one.stream for one in rig.requests()] == [1, 3]


def test_the_owner_may_open_a_stream_when_one_closes(rig: Rig) -> None:
    rig.open()
    rig.hooks["stream_closed"] = lambda: rig.open() if rig.wire.open_streams == 0 else None
    rig.serve(rig.peer.response(1, end=True))
    assert rig.wire.open_streams == 1
    assert [one.stream for one in rig.requests()] == [1, 3]


def test_another_streams_receiver_may_be_reset_inside_a_call(rig: Rig) -> None:
    first, second = rig.open(), rig.open()
    first.hooks["data"] = lambda heard: second.stream.reset(CANCEL)
    rig.serve(
        rig.peer.response(1),
        rig.peer.response(3),
        rig.peer.data(1, b"x"),
        rig.peer.data(3, b"y"),
        rig.peer.data(1, end=True),
    )
    assert first.calls == ["response", "end"]
    assert second.calls == ["response"]
    assert second.data == b""


def test_a_receiver_may_credit_inside_on_data(rig: Rig) -> None:
    ears = rig.open()
    ears.hooks["data"] = lambda heard: heard.stream.credit(len(heard.heard[-1][1]))
    rig.serve(rig.peer.response(1), *[rig.peer.data(1, bytes(16_000)) for _ in range(600)])
    assert rig.credit()[1] >= 600 * 16_000 - (2 << 20)


def test_a_fault_inside_a_callback_goes_out_and_the_wire_says_no_more(rig: Rig) -> None:
    """A defect of the receiver is not blamed on the peer."""
    ears = rig.open()

    def fail(heard: Ears) -> None:
        raise RuntimeError("a defect")

    ears.hooks["response"] = fail
    with pytest.raises(RuntimeError, match="a defect"):
        rig.serve(rig.peer.response(1))


# --- PING


@pytest.mark.parametrize("state", ["idle", "open", "goaway received", "goaway sent", "held"])
def test_ping_is_answered_and_sent_in_any_state(rig: Rig, state: str) -> None:
    """RFC 9113 section 6.7: the same eight bytes back, ahead of DATA."""
    if state != "idle":
        rig.open(rig.body(bytes(100_000)), method=b"POST")
    if state == "goaway received":
        rig.serve(rig.peer.goaway(1))
    if state == "goaway sent":
        rig.wire.goaway(NO_ERROR)
    if state == "held":
        rig.wire.hold_data(True)
    rig.serve(rig.peer.ping(b"\0\1\2\3\xff\xfe\r\n"))
    rig.wire.ping(b"ourbytes")
    pings = [(one.flags, one.payload) for one in rig.sent() if one.kind == PING]
    assert pings == [(1, b"\0\1\2\3\xff\xfe\r\n"), (0, b"ourbytes")]
    rig.serve(rig.peer.ping(b"ourbytes", ack=True))
    assert rig.log[-1] == (0, "ping_ack", b"ourbytes")
    assert rig.sent(PING) == [], "an ACK is not answered"


def test_ping_between_the_pieces_of_a_response(rig: Rig) -> None:
    ears = rig.open()
    rig.serve(
        rig.peer.response(1),
        rig.peer.ping(),
        rig.peer.data(1, b"a"),
        rig.peer.ping(),
        rig.peer.data(1, end=True),
    )
    assert ears.calls == ["response", "end"]
    assert len(rig.sent(PING)) == 2


# --- fields


SECRETS = [
    (b"authorization", b"Bearer S3CR3T"),
    (b"proxy-authorization", b"Basic S3CR3T"),
    (b"cookie", b"k=S3CR3T"),
    (b"x-api-key", b"S3CR3T"),
    (b"x-auth-token", b"S3CR3T"),
    (b"x-client-secret", b"S3CR3T"),
]


def test_secrets_are_never_indexed(rig: Rig) -> None:
    """RFC 7541 section 7.1.3: not here, and not at any later hop; the second block shows that none got into a
    table."""
    for _ in range(2):
        rig.open(fields=[*SECRETS, (b"x-plain", b"public")])
        (head,) = rig.requests()
        assert head.never_indexed == {name for name, _ in SECRETS}
        assert [pair for pair in head.fields if pair in SECRETS] == SECRETS
    names_in_table = {bytes(name) for name, _ in rig.reader.decoder.header_table.dynamic_entries}
    assert names_in_table.isdisjoint(name for name, _ in SECRETS)


def test_fields_arrive_in_order_and_octet_by_octet(rig: Rig) -> None:
    """RFC 9110 section 5.3; case latin1-header-bytes."""
    fields = [
        (b"x-user", b"\xe5\xbc\xa0"),
        (b"x-a", b"1"),
        (b"x-b", b""),
        (b"x-a", b"2"),
        (b"x-long", b"l" * 5000),
    ]
    for _ in range(3):
        rig.open(fields=fields)
        (head,) = rig.requests()
        assert head.fields[0] == (b":method", b"GET")
        assert head.fields[4:] == fields


def test_what_is_sent_again_gets_shorter(rig: Rig) -> None:
    """RFC 7541 section 2.3.2: plain fields go into the table."""
    sizes = []
    for _ in range(2):
        rig.open(fields=[(b"user-agent", b"a program with a long name"), (b"x-model", b"some/model-name")])
        sizes.append(len(rig.requests()[0].payload))
    assert sizes[1] < sizes[0] // 3


@pytest.mark.parametrize("size", [20_000, 60_000])
def test_a_large_field_section_is_cut_into_continuations(rig: Rig, size: int) -> None:
    """RFC 9113 sections 4.2 and 6.10: no frame above the peer's maximum, nothing between the pieces."""
    rig.open(fields=[(b"x-large", b"~" * size)])
    (head,) = rig.requests()
    assert head.fields[-1] == (b"x-large", b"~" * size)
    assert head.end


def test_the_peers_table_size_is_obeyed_and_announced(rig: Rig) -> None:
    """RFC 7541 sections 4.2 and 6.3, case hpack-table-resize: 0 in the preface, later 4096."""
    fields = [(b"x-a", b"value of a"), (b"x-b", b"value of b")]
    rig.open(fields=fields)
    rig.sent()
    rig.serve(rig.peer.settings((1, 0)), rig.peer.settings((1, 0)))
    rig.open(fields=fields)
    (head,) = rig.requests()
    assert rig.reader.table_updates == [0]
    assert head.fields[4:] == fields
    rig.serve(rig.peer.settings((1, 4096)))
    for turn in range(2):
        rig.open(fields=fields)
        rig.requests()
        assert rig.reader.table_updates in ([[4096], []][turn], [])
    for frames in ([((1, 100),), ((1, 4096),)], [((1, 100), (1, 4096))]):
        rig.serve(*[rig.peer.settings(*pairs) for pairs in frames])
        rig.open(fields=fields)
        rig.requests()
        assert rig.reader.table_updates == [100, 4096], "the smallest of several must be told"


def test_a_huge_table_is_not_used(rig: Rig) -> None:
    """The peer may offer 4 GiB; what we keep is ours to choose (RFC 7541 section 4.2)."""
    rig.serve(rig.peer.settings((1, 2**32 - 1)))
    rig.reader.decoder.max_allowed_table_size = 2**32 - 1
    for turn in range(300):
        rig.open(fields=[(f"x-{turn}".encode(), b"v" * 100)]).stream.reset(CANCEL)
    rig.sent()
    assert rig.reader.decoder.header_table.maxsize <= 4096


def test_a_response_block_may_begin_with_two_table_size_updates(rig: Rig) -> None:
    """RFC 7541 section 4.2, case hpack-table-resize."""
    ears = [rig.open() for _ in range(3)]
    rig.serve(rig.peer.response(1, 200, ("x-a", "b"), end=True))
    rig.peer.encoder.header_table_size = 0
    rig.peer.encoder.header_table_size = 4096
    block = rig.peer.block((":status", "200"), ("x-a", "b"))
    assert block[:2] == b"\x20\x3f", "0, then 4096"
    rig.serve(rig.peer.headers(3, block=block, end=True))
    rig.serve(rig.peer.response(5, 200, ("x-a", "b"), end=True))
    assert [one.heard for one in ears] == [[("response", 200, [(b"x-a", b"b")], True)]] * 3


def test_many_responses_keep_the_peers_table_in_step(rig: Rig) -> None:
    """RFC 7541 section 4.4: entries leave from the old end."""
    for turn in range(300):
        ears = rig.open()
        fields = [(f"x-{turn % 90}", "v" * (turn % 70)), ("date", f"day {turn}"), ("server", "origin")]
        rig.serve(rig.peer.response(ears.stream.id, 200, *fields, end=True))
        assert ears.heard[0][2] == [(name.encode(), value.encode()) for name, value in fields]
        rig.sent()


# --- the end


def test_start_queues_and_receives_nothing_by_itself(new_rig: Any) -> None:
    rig = new_rig()
    assert rig.output_calls == 0
    rig.wire.start()
    assert rig.output_calls == 1
    assert {one.kind for one in rig.sent()} <= {SETTINGS, 8}
    assert rig.sent() == []


def test_open_on_a_dead_or_draining_wire_is_a_defect_of_the_caller(rig: Rig) -> None:
    rig.wire.goaway(NO_ERROR)
    with pytest.raises(AssertionError):
        rig.open()
    assert [one.kind for one in rig.sent()] == [GOAWAY]


def test_calls_on_an_abandoned_wire_do_nothing(rig: Rig) -> None:
    ears = rig.open(rig.body(b"abc"), method=b"POST")
    rig.wire.abandon(UpstreamError(CONNECTION_LOST))
    rig.wire.ping(b"12345678")
    rig.wire.goaway(NO_ERROR)
    rig.wire.hold_data(True)
    rig.wire.hold_data(False)
    ears.stream.body_ready()
    ears.stream.reset(CANCEL)
    assert ears.calls == ["failed"]
    assert rig.sent(RST_STREAM, GOAWAY, PING, DATA) == []
