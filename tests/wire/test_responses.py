"""What a response may look like, and what becomes of one that may not (RFC 9113 section 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import (
    MALFORMED_RESPONSE,
    RESPONSE_HEAD_TOO_LARGE,
    STREAM_REFUSED,
    STREAM_RESET,
    Processed,
)
from h2ping.errors import PROTOCOL_ERROR as BROKE_PROTOCOL
from h2ping.upstream.wire import WireLimits
from tests.support.frames import (
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    INTERNAL_ERROR,
    NO_ERROR,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    STREAM_CLOSED,
    FrameFactory,
    frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.wires import Ears, Rig

LONG = b"v" * 70_000


def neighbour_is_well(rig: Rig, neighbour: Ears) -> None:
    """A stream error is that stream's alone: the HPACK table, the windows and the other streams go on."""
    rig.serve(
        rig.peer.response(neighbour.stream.id, 200, ("x-after", "fault")),
        rig.peer.data(neighbour.stream.id, b"fine", end=True),
    )
    assert neighbour.heard == [
        ("response", 200, [(b"x-after", b"fault")], False),
        ("data", b"fine"),
        ("end", None),
    ]
    assert rig.wire.can_open


# --- heads that are malformed

STATUS = (":status", "200")

MALFORMED_HEADS: list[tuple[str, list[tuple[Any, Any]]]] = [
    ("8.3.2 no :status", [("a", "b")]),
    ("8.3.2 nothing at all", []),
    ("8.3 :status after a regular field", [("a", "b"), STATUS]),
    ("8.3 :status twice", [STATUS, STATUS]),
    ("8.3 :status twice, apart", [STATUS, ("a", "b"), (":status", "204")]),
    ("8.3 a request's pseudo-field", [STATUS, (":path", "/")]),
    ("8.3 a request's pseudo-field in front", [(":method", "GET"), STATUS]),
    ("8.3 unknown pseudo-field", [STATUS, (":grease", "x")]),
    ("8.3 empty :status", [(":status", "")]),
    ("8.3.2 two digits", [(":status", "99")]),
    ("8.3.2 four digits", [(":status", "2000")]),
    ("8.3.2 a leading zero", [(":status", "020")]),
    ("8.3.2 a sign", [(":status", "+20")]),
    ("8.3.2 letters", [(":status", "2xx")]),
    ("8.3.2 a reason phrase", [(":status", "200 OK")]),
    ("8.6 switching protocols", [(":status", "101")]),
    ("8.2 upper-case name", [STATUS, ("X-Note", "v")]),
    ("8.2 one upper-case letter", [STATUS, ("x-notE", "v")]),
    ("8.2.1 empty name", [STATUS, ("", "v")]),
    ("8.2.1 space in a name", [STATUS, ("x note", "v")]),
    ("8.2.1 colon in a name", [STATUS, ("x:note", "v")]),
    ("8.2.1 CR LF in a name", [STATUS, ("x\r\nset-cookie", "v")]),
    ("8.2.1 NUL in a name", [STATUS, ("x\0", "v")]),
    ("8.2.1 DEL in a name", [STATUS, ("x\x7f", "v")]),
    ("8.2.1 octet above 0x7f in a name", [STATUS, (b"x\xe9", "v")]),
    ("8.2.1 delimiter in a name", [STATUS, ('x"', "v")]),
    ("8.2.1 CR LF in a value", [STATUS, ("x-a", "v\r\nSet-Cookie: s=1")]),
    ("8.2.1 CR in a value", [STATUS, ("x-a", "v\rw")]),
    ("8.2.1 LF in a value", [STATUS, ("x-a", "v\nw")]),
    ("8.2.1 NUL in a value", [STATUS, ("x-a", "v\0w")]),
    ("8.2.1 LF at the end of a value", [STATUS, ("x-a", "v\n")]),
    ("8.2.1 space before a value", [STATUS, ("x-a", " v")]),
    ("8.2.1 space after a value", [STATUS, ("x-a", "v ")]),
    ("8.2.1 tab before a value", [STATUS, ("x-a", "\tv")]),
    ("8.2.1 tab after a value", [STATUS, ("x-a", "v\t")]),
    ("8.2.1 nothing but a space", [STATUS, ("x-a", " ")]),
    ("8.2.2 connection", [STATUS, ("connection", "close")]),
    ("8.2.2 keep-alive", [STATUS, ("keep-alive", "timeout=5")]),
    ("8.2.2 proxy-connection", [STATUS, ("proxy-connection", "keep-alive")]),
    ("8.2.2 transfer-encoding", [STATUS, ("transfer-encoding", "chunked")]),
    ("8.2.2 upgrade", [STATUS, ("upgrade", "h2c")]),
    ("8.2.2 te", [STATUS, ("te", "gzip")]),
    ("8.1.1 content-length is no number", [STATUS, ("content-length", "five")]),
    ("8.1.1 content-length with a sign", [STATUS, ("content-length", "+5")]),
    ("8.1.1 content-length below zero", [STATUS, ("content-length", "-1")]),
    ("8.1.1 content-length is empty", [STATUS, ("content-length", "")]),
    ("8.1.1 content-length beyond any number", [STATUS, ("content-length", "1" * 40)]),
    ("8.1.1 content-length beyond 64 bits", [STATUS, ("content-length", "9223372036854775808")]),
    ("8.1.1 content-length is a list", [STATUS, ("content-length", "5, 5")]),
    ("8.1.1 content-length twice", [STATUS, ("content-length", "5"), ("content-length", "5")]),
    ("8.1.1 content-length twice and different", [STATUS, ("content-length", "5"), ("content-length", "6")]),
]


@pytest.mark.parametrize("end", [False, True], ids=["", "END_STREAM"])
@pytest.mark.parametrize(
    "fields", [case[1] for case in MALFORMED_HEADS], ids=[case[0] for case in MALFORMED_HEADS]
)
def test_a_malformed_head_is_the_streams_error_and_nothing_of_it_gets_out(
    rig: Rig, fields: list[tuple[str, str]], end: bool
) -> None:
    """RFC 9113 section 8.1.1, case crlf-in-response-header."""
    ears, neighbour = rig.open(), rig.open()
    rig.sent()
    block = rig.peer.block(*fields)
    rig.serve(rig.peer.headers(1, block=block, end=end))
    assert ears.calls == ["failed"]
    assert ears.failure.cause is MALFORMED_RESPONSE
    assert ears.failure.processed is Processed.MAYBE
    assert "Cookie" not in str(ears.failure)
    assert rig.resets() in ([(1, PROTOCOL_ERROR)], [] if end else None)
    assert rig.wire.open_streams == 1
    neighbour_is_well(rig, neighbour)


GOOD_HEADS: list[tuple[str, list[tuple[Any, Any]]]] = [
    ("9110 5.5 obs-text in a value, case latin1-header-bytes", [("x-note", b"caf\xe9")]),
    ("9110 5.5 space and tab inside a value", [("x-a", "a b\tc")]),
    ("9110 5.5 empty value", [("x-a", "")]),
    ("9110 5.1 every character a name may have", [("!#$%&'*+-.^_`|~09az", "v")]),
    ("a name that looks connection-specific", [("connections", "x"), ("te-x", "y")]),
    ("several of one name keep their order", [("set-cookie", "a=1"), ("x", "y"), ("set-cookie", "b=2")]),
    ("content-length zero", [("content-length", "0")]),
    ("content-length with leading zeros", [("content-length", "000")]),
]


@pytest.mark.parametrize("fields", [case[1] for case in GOOD_HEADS], ids=[case[0] for case in GOOD_HEADS])
def test_a_well_formed_head_arrives_octet_by_octet(rig: Rig, fields: list[tuple[Any, Any]]) -> None:
    """RFC 9113 section 8.2: what is not forbidden is not touched."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, 200, *fields, end=True))
    expected = [
        (n.encode() if isinstance(n, str) else n, v.encode() if isinstance(v, str) else v) for n, v in fields
    ]
    assert ears.heard == [("response", 200, expected, True)]


@pytest.mark.parametrize("status", [200, 204, 299, 304, 404, 421, 503, 599, 600, 999])
def test_every_final_status_of_three_digits_arrives(rig: Rig, status: int) -> None:
    """RFC 9110 section 15: classes one does not know are the client's to judge."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, status, end=True))
    assert ears.heard == [("response", status, [], True)]


# --- the body


def test_a_body_arrives_in_order_and_ends(rig: Rig) -> None:
    ears = rig.open()
    rig.serve(
        rig.peer.response(1), rig.peer.data(1, b"one"), rig.peer.data(1), rig.peer.data(1, b"two", pad=9)
    )
    rig.serve(rig.peer.data(1, end=True))
    assert ears.calls == ["response", "end"]
    assert ears.data == b"onetwo"
    assert rig.wire.open_streams == 0


BODIES: list[tuple[str, bytes, int, list[tuple[str, str]], Callable[[FrameFactory], bytes], bool]] = [
    ("exact", b"GET", 200, [("content-length", "5")], lambda p: p.data(1, b"hello", end=True), True),
    (
        "exact in pieces, END_STREAM alone",
        b"GET",
        200,
        [("content-length", "5")],
        lambda p: p.data(1, b"he") + p.data(1, b"llo") + p.data(1, end=True),
        True,
    ),
    ("too short", b"GET", 200, [("content-length", "5")], lambda p: p.data(1, b"hell", end=True), False),
    ("too long", b"GET", 200, [("content-length", "5")], lambda p: p.data(1, b"hello!"), False),
    (
        "too long by the second frame",
        b"GET",
        200,
        [("content-length", "5")],
        lambda p: p.data(1, b"hello") + p.data(1, b"!"),
        False,
    ),
    ("empty instead of five", b"GET", 200, [("content-length", "5")], lambda p: p.data(1, end=True), False),
    (
        "padding does not count",
        b"GET",
        200,
        [("content-length", "5")],
        lambda p: p.data(1, b"hell", pad=1, end=True),
        False,
    ),
    (
        "trailers too early",
        b"GET",
        200,
        [("content-length", "5")],
        lambda p: p.headers(1, ("x-t", "1"), end=True),
        False,
    ),
    ("none announced", b"GET", 200, [], lambda p: p.data(1, b"hello", end=True), True),
    (
        "HEAD with a length and no content",
        b"HEAD",
        200,
        [("content-length", "1234")],
        lambda p: p.data(1, end=True),
        True,
    ),
    (
        "HEAD with content",
        b"HEAD",
        200,
        [("content-length", "5")],
        lambda p: p.data(1, b"hello", end=True),
        False,
    ),
    ("204 with content", b"GET", 204, [], lambda p: p.data(1, b"hello", end=True), False),
    (
        "304 with a length and no content",
        b"GET",
        304,
        [("content-length", "1234")],
        lambda p: p.data(1, end=True),
        True,
    ),
    (
        "304 with content",
        b"GET",
        304,
        [("content-length", "5")],
        lambda p: p.data(1, b"hello", end=True),
        False,
    ),
]


@pytest.mark.parametrize(
    ("method", "status", "fields", "script", "good"),
    [case[1:] for case in BODIES],
    ids=[case[0] for case in BODIES],
)
def test_content_is_as_long_as_content_length_says(
    rig: Rig, method: bytes, status: int, fields: Any, script: Callable[[FrameFactory], bytes], good: bool
) -> None:
    """RFC 9113 section 8.1.1, RFC 9110 sections 6.4.1 and 8.6."""
    ears, neighbour = rig.open(method=method), rig.open()
    rig.serve(rig.peer.response(1, status, *fields), script(rig.peer))
    if good:
        assert ears.calls == ["response", "end"]
    else:
        assert ears.calls == ["response", "failed"]
        assert ears.failure.cause is MALFORMED_RESPONSE
        assert len(ears.data) <= 5, "never more than was announced"
        assert set(rig.resets()) <= {(1, PROTOCOL_ERROR)}
    neighbour_is_well(rig, neighbour)


@pytest.mark.parametrize(
    ("method", "status", "length", "good"),
    [
        (b"GET", 200, "5", False),
        (b"GET", 200, "0", True),
        (b"HEAD", 200, "1234", True),
        (b"GET", 304, "1234", True),
        (b"GET", 204, "5", True),
        (b"POST", 500, "1", False),
    ],
)
def test_a_head_that_ends_the_stream_may_not_announce_content(
    rig: Rig, method: bytes, status: int, length: str, good: bool
) -> None:
    """RFC 9113 section 8.1.1, case head-with-content-length."""
    ears = rig.open(method=method)
    rig.serve(rig.peer.response(1, status, ("content-length", length), end=True))
    assert ears.calls == (["response"] if good else ["failed"])


def test_data_before_the_head_is_malformed(rig: Rig) -> None:
    """RFC 9113 section 8.1."""
    ears, neighbour = rig.open(), rig.open()
    rig.serve(rig.peer.data(1, b"early"))
    assert ears.failure.cause is MALFORMED_RESPONSE
    assert rig.resets() == [(1, PROTOCOL_ERROR)]
    neighbour_is_well(rig, neighbour)


def test_data_after_an_interim_response_only_is_malformed(rig: Rig) -> None:
    """RFC 9113 section 8.1."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, 103), rig.peer.data(1, b"early"))
    assert ears.failure.cause is MALFORMED_RESPONSE
    assert rig.resets() == [(1, PROTOCOL_ERROR)]


# --- trailers


def test_trailers_end_the_response(rig: Rig) -> None:
    """RFC 9113 section 8.1, case trailers-with-content-length."""
    ears = rig.open()
    rig.serve(
        rig.peer.response(1, 200, ("content-length", "5")),
        rig.peer.data(1, b"hello"),
        rig.peer.headers(1, ("x-sum", "1"), end=True),
    )
    assert ears.heard == [
        ("response", 200, [(b"content-length", b"5")], False),
        ("data", b"hello"),
        ("end", [(b"x-sum", b"1")]),
    ]
    assert rig.wire.open_streams == 0


def test_trailers_may_follow_the_head_at_once(rig: Rig) -> None:
    """RFC 9113 section 8.1: gRPC does that."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, 200), rig.peer.headers(1, ("grpc-status", "0"), end=True))
    assert ears.calls == ["response", "end"]


MALFORMED_TRAILERS: list[tuple[str, list[tuple[Any, Any]], bool]] = [
    ("without END_STREAM", [("x-t", "1")], False),
    ("empty, without END_STREAM", [], False),
    ("a second head", [STATUS], False),
    ("with :status", [STATUS, ("x-t", "1")], True),
    ("an interim head after the final one", [(":status", "103")], False),
    (":path last", [("x-t", "1"), (":path", "/")], True),
    ("upper-case name", [("X-T", "1")], True),
    ("CR LF in a value", [("x-t", "1\r\nx: y")], True),
    ("connection-specific", [("connection", "close")], True),
]


@pytest.mark.parametrize(
    ("fields", "end"), [case[1:] for case in MALFORMED_TRAILERS], ids=[case[0] for case in MALFORMED_TRAILERS]
)
def test_malformed_trailers_fail_the_response(rig: Rig, fields: Any, end: bool) -> None:
    """RFC 9113 sections 8.1 and 8.1.1, case trailers-without-end-stream."""
    ears, neighbour = rig.open(), rig.open()
    block = rig.peer.block(*fields)
    rig.serve(rig.peer.response(1), rig.peer.data(1, b"ab"), rig.peer.headers(1, block=block, end=end))
    assert ears.calls == ["response", "failed"]
    assert ears.failure.cause is MALFORMED_RESPONSE
    assert rig.resets() in ([(1, PROTOCOL_ERROR)], [] if end else None)
    neighbour_is_well(rig, neighbour)


# --- interim responses


def test_interim_responses_come_before_the_final_one(rig: Rig) -> None:
    """RFC 9110 section 15.2, case interim-103-is-not-final."""
    ears = rig.open()
    rig.serve(
        rig.peer.response(1, 100),
        rig.peer.response(1, 103, ("link", "</a>")),
        rig.peer.response(1, 199),
        rig.peer.response(1, 200),
        rig.peer.data(1, b"x", end=True),
    )
    assert ears.heard == [
        ("interim", 100, []),
        ("interim", 103, [(b"link", b"</a>")]),
        ("interim", 199, []),
        ("response", 200, [], False),
        ("data", b"x"),
        ("end", None),
    ]


def test_an_interim_response_that_ends_the_stream_is_malformed(rig: Rig) -> None:
    """RFC 9113 section 8.1."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, 103, end=True))
    assert ears.failure.cause is MALFORMED_RESPONSE


# --- field sections above the limit


@pytest.mark.parametrize("values", [480, 900], ids=["just above", "twice, and more than it as it comes"])
def test_a_field_section_above_the_limit_fails_its_stream_only(rig: Rig, values: int) -> None:
    """RFC 9113 sections 6.5.2 and 10.5.1: the table keeps step, so the others go on."""
    ears, neighbour = rig.open(), rig.open()
    block = rig.peer.block(STATUS, *[(f"x-{i}", "!" * values) for i in range(128)])
    pieces = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    rig.serve(
        rig.peer.headers(1, block=pieces[0], end_headers=False),
        *[rig.peer.continuation(1, piece, end_headers=piece is pieces[-1]) for piece in pieces[1:]],
    )
    assert ears.calls == ["failed"]
    assert ears.failure.cause is RESPONSE_HEAD_TOO_LARGE
    assert rig.resets() == [(1, PROTOCOL_ERROR)]
    neighbour_is_well(rig, neighbour)


def test_a_field_section_at_the_limit_arrives(new_rig: Any) -> None:
    """RFC 9113 section 6.5.2: names, values, and 32 for each field."""
    limits = WireLimits(max_field_section_bytes=42 + 32 + 3 + 100)
    for extra, good in ((0, True), (1, False)):
        rig = new_rig(limits).start()
        ears = rig.open()
        rig.serve(rig.peer.response(1, 200, ("x-a", "v" * (100 + extra)), end=True))
        assert ears.calls == (["response"] if good else ["failed"])


def test_a_small_block_that_unfolds_to_megabytes_fails_its_stream_only(rig: Rig) -> None:
    """The HPACK bomb (CVE-2016-6581): one entry of the table, called thousands of times."""
    ears, neighbour = rig.open(), rig.open()
    entry = rig.peer.block(STATUS, ("x-bomb", "v" * 3000))
    rig.serve(rig.peer.headers(1, block=entry + b"\xbe" * 10_000))
    assert ears.calls == ["failed"]
    assert ears.failure.cause is RESPONSE_HEAD_TOO_LARGE
    neighbour_is_well(rig, neighbour)


# --- RST_STREAM


@pytest.mark.parametrize(
    "code", [NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, REFUSED_STREAM, 8, 0xD, 0xDEADBEEF]
)
def test_a_reset_before_the_response_says_who_may_have_acted(rig: Rig, code: int) -> None:
    """RFC 9113 sections 6.4 and 8.7: REFUSED_STREAM alone proves that the request was not processed."""
    ears, neighbour = rig.open(), rig.open()
    rig.sent()
    rig.serve(rig.peer.reset(1, code))
    assert ears.failure.cause is (STREAM_REFUSED if code == REFUSED_STREAM else STREAM_RESET)
    assert ears.failure.processed is (Processed.REFUSED if code == REFUSED_STREAM else Processed.MAYBE)
    assert ears.failure.code == code
    assert rig.sent() == [], "RST_STREAM is not answered (section 5.4.2)"
    assert rig.wire.open_streams == 1
    neighbour_is_well(rig, neighbour)


@pytest.mark.parametrize("interim", [True, False])
def test_a_refusal_after_a_response_began_proves_nothing(rig: Rig, interim: bool) -> None:
    """RFC 9113 section 8.7: a server that has answered has processed."""
    ears = rig.open()
    rig.serve(rig.peer.response(1, 103 if interim else 200), rig.peer.reset(1, REFUSED_STREAM))
    assert ears.failure.cause is STREAM_RESET
    assert ears.failure.processed is Processed.MAYBE


@pytest.mark.parametrize("code", [NO_ERROR, INTERNAL_ERROR])
def test_a_reset_inside_the_body_fails_the_response(rig: Rig, code: int) -> None:
    """RFC 9113 section 8.1: NO_ERROR is no excuse while END_STREAM has not come."""
    ears = rig.open()
    rig.serve(rig.peer.response(1), rig.peer.data(1, b"ab"), rig.peer.reset(1, code))
    assert ears.calls == ["response", "failed"]
    assert ears.data == b"ab"
    assert ears.failure.cause is STREAM_RESET


def test_a_reset_after_a_complete_response_stops_the_upload_and_is_no_failure(rig: Rig) -> None:
    """RFC 9113 section 8.1, case rst-no-error-after-complete-response: all in one write."""
    ears = rig.open(rig.body(b"x" * 1000, size=10_000, complete=False), method=b"POST")
    rig.sent()
    rig.serve(
        rig.peer.response(1),
        rig.peer.data(1, b"hello", end=True),
        rig.peer.reset(1, NO_ERROR),
        rig.peer.ping(),
    )
    assert ears.calls == ["response", "end"]
    assert ears.data == b"hello"
    assert ears.stream.upload_done
    assert rig.wire.open_streams == 0
    ears.body.append(b"y" * 9000)
    ears.body.finish()
    ears.stream.body_ready()
    assert {one.stream for one in rig.sent()} == {0}, "no DATA, no RST_STREAM"


@pytest.mark.parametrize(
    "script",
    [
        lambda p: p.data(1, b"more"),
        lambda p: p.response(1, 200, ("x-a", "b")),
        lambda p: p.headers(1, ("x-a", "b"), end=True),
    ],
    ids=["DATA", "HEADERS", "trailers"],
)
def test_frames_after_end_stream_are_the_streams_error_while_we_still_send(
    rig: Rig, script: Callable[[FrameFactory], bytes]
) -> None:
    """RFC 9113 section 5.1, half-closed (remote): STREAM_CLOSED. The response was complete and stays so."""
    ears = rig.open(rig.body(b"", size=100, complete=False), method=b"POST")
    neighbour = rig.open()
    rig.serve(rig.peer.response(1, end=True))
    rig.serve(script(rig.peer))
    assert ears.calls == ["response"]
    assert rig.resets() == [(1, STREAM_CLOSED)]
    assert rig.wire.open_streams == 1
    neighbour_is_well(rig, neighbour)


@pytest.mark.parametrize("ended", ["END_STREAM", "RST_STREAM"])
@pytest.mark.parametrize(
    "script",
    [
        lambda p: p.data(1, b"more"),
        lambda p: p.data(1),
        lambda p: p.response(1, 200, ("x-a", "b")),
        lambda p: p.headers(1, ("x-a", "b"), end=True),
        lambda p: p.headers(1, block=b"\x88", end_headers=False) + p.continuation(1, end_headers=True),
    ],
    ids=["DATA", "empty DATA", "HEADERS", "trailers", "CONTINUATION"],
)
def test_a_server_that_goes_on_after_its_own_end_is_told(
    rig: Rig, script: Callable[[FrameFactory], bytes], ended: str
) -> None:
    """RFC 9113 section 5.1, closed: STREAM_CLOSED. Nobody else hears of it."""
    ears, neighbour = rig.open(), rig.open()
    rig.serve(rig.peer.response(1, end=ended == "END_STREAM"), rig.peer.reset(1, NO_ERROR))
    before = ears.calls
    rig.sent()
    rig.serve(script(rig.peer))
    assert rig.resets() == [(1, STREAM_CLOSED)]
    assert ears.calls == before
    neighbour_is_well(rig, neighbour)


def test_a_server_that_goes_on_for_ever_after_its_own_end_is_cut_off(rig: Rig) -> None:
    """RFC 9113 section 10.5: each answer is counted."""
    rig.open()
    rig.serve(rig.peer.response(1, end=True))
    rig.sent()
    assert rig.fault(rig.peer.data(1, b"x") * 6000)[1] == ENHANCE_YOUR_CALM


# --- stream errors of other frames

STREAM_ERRORS: list[tuple[str, int, Callable[[FrameFactory], bytes]]] = [
    ("6.3 PRIORITY too short", FRAME_SIZE_ERROR, lambda p: frame(PRIORITY, 0, 1, bytes(4))),
    ("6.3 PRIORITY too long", FRAME_SIZE_ERROR, lambda p: frame(PRIORITY, 0, 1, bytes(6))),
    ("6.9 WINDOW_UPDATE of zero", PROTOCOL_ERROR, lambda p: p.window(1, 0)),
    ("6.9.1 stream window above 2^31-1", FLOW_CONTROL_ERROR, lambda p: p.window(1, 2**31 - 1)),
]


@pytest.mark.parametrize(
    ("code", "script"), [case[1:] for case in STREAM_ERRORS], ids=[case[0] for case in STREAM_ERRORS]
)
def test_a_broken_rule_of_a_stream_fails_that_stream(
    rig: Rig, code: int, script: Callable[[FrameFactory], bytes]
) -> None:
    """RFC 9113 section 5.4.2."""
    ears, neighbour = rig.open(), rig.open()
    rig.serve(script(rig.peer))
    assert ears.failure.cause is BROKE_PROTOCOL
    assert rig.resets() == [(1, code)]
    neighbour_is_well(rig, neighbour)


def test_a_failed_streams_frames_are_dropped_without_an_answer_each(rig: Rig) -> None:
    """RFC 9113 section 5.1, closed: minimal processing, and no RST_STREAM for every frame."""
    rig.open()
    rig.serve(rig.peer.data(1, b"early"))
    assert rig.resets() == [(1, PROTOCOL_ERROR)]
    rig.serve(
        rig.peer.response(1, 200, ("a", "b")),
        *[rig.peer.data(1, b"x" * 100) for _ in range(50)],
        rig.peer.headers(1, ("t", "u"), end=True),
    )
    assert rig.sent(RST_STREAM) == []
