"""What a server may not do to the connection, and what it is told (RFC 9113 sections 3 to 6, RFC 7541).

Each case is one frame script on a connection with four streams:
1 waits for its response, 3 still uploads, 5 is complete, 7 was reset by us. Streams from 9 on are idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from h2ping.errors import PROTOCOL_ERROR as BROKE_PROTOCOL
from h2ping.errors import UpstreamError
from tests.support.frames import (
    CANCEL,
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    FrameFactory,
    frame,
    number,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.wires import Ears, Rig

OK = b"\x88"
"""A whole field block: `:status 200` from the static table."""


def streams(rig: Rig) -> dict[int, Ears]:
    ears = {1: rig.open(), 3: rig.open(rig.body(b"part", size=100, complete=False), method=b"POST")}
    ears[5] = rig.open()
    ears[7] = rig.open()
    rig.sent()
    rig.serve(rig.peer.response(5, end=True))
    ears[7].stream.reset(CANCEL)
    rig.sent()
    return ears


Script = "Callable[[FrameFactory], bytes]"

BROKEN: list[tuple[str, int, Callable[[FrameFactory], bytes]]] = [
    # --- 4.1, 4.2: frame size
    ("4.2 DATA above our maximum", FRAME_SIZE_ERROR, lambda p: frame(DATA, 0, 1, bytes(16_385))),
    ("4.2 HEADERS above our maximum", FRAME_SIZE_ERROR, lambda p: frame(HEADERS, 4, 1, bytes(16_385))),
    ("4.2 unknown type above our maximum", FRAME_SIZE_ERROR, lambda p: frame(0xBE, 0, 0, bytes(16_385))),
    (
        "4.2 too large is known from the header alone",
        FRAME_SIZE_ERROR,
        lambda p: frame(DATA, 0, 1, length=2**24 - 1),
    ),
    # --- 4.3: field blocks
    (
        "4.3 another frame inside a field block",
        PROTOCOL_ERROR,
        lambda p: p.headers(1, block=OK, end_headers=False) + p.ping(),
    ),
    (
        "4.3 unknown frame inside a field block",
        PROTOCOL_ERROR,
        lambda p: p.headers(1, block=OK, end_headers=False) + frame(0xBE, 0, 1),
    ),
    (
        "4.3 GOAWAY inside a field block",
        PROTOCOL_ERROR,
        lambda p: p.headers(1, block=OK, end_headers=False) + p.goaway(7),
    ),
    (
        "4.3 CONTINUATION of another stream",
        PROTOCOL_ERROR,
        lambda p: p.headers(1, block=OK, end_headers=False) + p.continuation(3, end_headers=True),
    ),
    # --- 4.3 and RFC 7541: HPACK
    (
        "7541 2.3.3 index outside both tables",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\xff\x80\x01"),
    ),
    ("7541 6.1 index zero", COMPRESSION_ERROR, lambda p: p.headers(1, block=b"\x80")),
    ("7541 5.1 integer that does not end", COMPRESSION_ERROR, lambda p: p.headers(1, block=b"\x88\xff")),
    (
        "7541 5.1 integer too large",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\xff" + b"\xff" * 12 + b"\x01"),
    ),
    (
        "7541 5.2 string past the end of the block",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\x00\x05ab"),
    ),
    (
        "7541 5.2 Huffman padding longer than 7 bits",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\x88\x00\x01a\x82\x1f\xff"),
    ),
    (
        "7541 5.2 Huffman padding that is not EOS",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\x88\x00\x01a\x81\x18"),
    ),
    (
        "7541 5.2 EOS in a Huffman string",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\x88\x00\x01a\x84\xff\xff\xff\xff"),
    ),
    (
        "7541 6.3 table size above our setting",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\x3f\xe2\x1f\x88"),
    ),
    (
        "7541 4.2 table size update after a field",
        COMPRESSION_ERROR,
        lambda p: p.headers(1, block=b"\x88\x20"),
    ),
    ("7541 on a stream that is over", COMPRESSION_ERROR, lambda p: p.headers(7, block=b"\x80")),
    # --- 5.1: idle streams
    ("5.1 DATA on an idle stream", PROTOCOL_ERROR, lambda p: p.data(9, b"x")),
    ("5.1 HEADERS on an idle stream", PROTOCOL_ERROR, lambda p: p.response(9)),
    ("5.1 RST_STREAM on an idle stream", PROTOCOL_ERROR, lambda p: p.reset(9)),
    ("5.1 WINDOW_UPDATE on an idle stream", PROTOCOL_ERROR, lambda p: p.window(9, 1)),
    ("5.1.1 HEADERS on an even stream nobody promised", PROTOCOL_ERROR, lambda p: p.response(2)),
    ("5.1.1 DATA on an even stream nobody promised", PROTOCOL_ERROR, lambda p: p.data(2, b"x")),
    ("5.1.1 RST_STREAM on an even stream nobody promised", PROTOCOL_ERROR, lambda p: p.reset(2)),
    # --- 6.1 DATA
    ("6.1 DATA on stream 0", PROTOCOL_ERROR, lambda p: p.data(0, b"x")),
    ("6.1 padding as long as the payload", PROTOCOL_ERROR, lambda p: frame(DATA, 0x8, 1, b"\x04abc")),
    ("6.1 PADDED without a pad length", FRAME_SIZE_ERROR, lambda p: frame(DATA, 0x8, 1)),
    # --- 6.2 HEADERS
    ("6.2 HEADERS on stream 0", PROTOCOL_ERROR, lambda p: p.headers(0, block=OK)),
    ("6.2 padding longer than the block", PROTOCOL_ERROR, lambda p: frame(HEADERS, 0xC, 1, b"\x02" + OK)),
    ("6.2 PADDED without a pad length", FRAME_SIZE_ERROR, lambda p: frame(HEADERS, 0xC, 1)),
    (
        "6.2 PRIORITY flag without its five bytes",
        FRAME_SIZE_ERROR,
        lambda p: frame(HEADERS, 0x24, 1, b"\0\0\0"),
    ),
    # --- 6.3 PRIORITY
    ("6.3 PRIORITY on stream 0", PROTOCOL_ERROR, lambda p: p.priority(0)),
    # --- 6.4 RST_STREAM
    ("6.4 RST_STREAM on stream 0", PROTOCOL_ERROR, lambda p: p.reset(0)),
    ("6.4 RST_STREAM too short", FRAME_SIZE_ERROR, lambda p: frame(RST_STREAM, 0, 1, bytes(3))),
    ("6.4 RST_STREAM too long", FRAME_SIZE_ERROR, lambda p: frame(RST_STREAM, 0, 1, bytes(5))),
    # --- 6.5 SETTINGS
    ("6.5 ACK with a payload", FRAME_SIZE_ERROR, lambda p: frame(SETTINGS, 0x1, 0, bytes(6))),
    ("6.5 SETTINGS on a stream", PROTOCOL_ERROR, lambda p: frame(SETTINGS, 0, 1)),
    ("6.5 length no multiple of six", FRAME_SIZE_ERROR, lambda p: frame(SETTINGS, 0, 0, bytes(7))),
    ("6.5.2 a server switches push on", PROTOCOL_ERROR, lambda p: p.settings((ENABLE_PUSH, 1))),
    ("6.5.2 ENABLE_PUSH neither 0 nor 1", PROTOCOL_ERROR, lambda p: p.settings((ENABLE_PUSH, 2))),
    (
        "6.5.2 INITIAL_WINDOW_SIZE too large",
        FLOW_CONTROL_ERROR,
        lambda p: p.settings((INITIAL_WINDOW_SIZE, 2**31)),
    ),
    ("6.5.2 MAX_FRAME_SIZE too small", PROTOCOL_ERROR, lambda p: p.settings((MAX_FRAME_SIZE, 16_383))),
    ("6.5.2 MAX_FRAME_SIZE too large", PROTOCOL_ERROR, lambda p: p.settings((MAX_FRAME_SIZE, 2**24))),
    # --- 6.6 PUSH_PROMISE, 8.4: push is off, and the server has acknowledged that
    ("6.6 PUSH_PROMISE on an open stream", PROTOCOL_ERROR, lambda p: p.promise(1, 2, (":method", "GET"))),
    ("6.6 PUSH_PROMISE on stream 0", PROTOCOL_ERROR, lambda p: p.promise(0, 2)),
    ("6.6 PUSH_PROMISE too short", FRAME_SIZE_ERROR, lambda p: frame(PUSH_PROMISE, 0x4, 1, bytes(3))),
    # --- 6.7 PING
    ("6.7 PING on a stream", PROTOCOL_ERROR, lambda p: frame(PING, 0, 1, bytes(8))),
    ("6.7 PING too short", FRAME_SIZE_ERROR, lambda p: frame(PING, 0, 0, bytes(6))),
    ("6.7 PING too long", FRAME_SIZE_ERROR, lambda p: frame(PING, 0, 0, bytes(9))),
    # --- 6.8 GOAWAY
    ("6.8 GOAWAY on a stream", PROTOCOL_ERROR, lambda p: frame(GOAWAY, 0, 1, bytes(8))),
    ("6.8 GOAWAY too short", FRAME_SIZE_ERROR, lambda p: frame(GOAWAY, 0, 0, bytes(7))),
    # --- 6.9 WINDOW_UPDATE
    ("6.9 zero for the connection", PROTOCOL_ERROR, lambda p: p.window(0, 0)),
    ("6.9 too short", FRAME_SIZE_ERROR, lambda p: frame(WINDOW_UPDATE, 0, 0, bytes(3))),
    ("6.9 too long on a stream", FRAME_SIZE_ERROR, lambda p: frame(WINDOW_UPDATE, 0, 1, bytes(5))),
    ("6.9.1 connection window above 2^31-1", FLOW_CONTROL_ERROR, lambda p: p.window(0, 2**31 - 1)),
    (
        "6.9.2 a setting lifts a stream window above 2^31-1",
        FLOW_CONTROL_ERROR,
        lambda p: p.window(3, 2**31 - 1 - 65_535) + p.settings((INITIAL_WINDOW_SIZE, 65_535 + 5)),
    ),
    # --- 6.10 CONTINUATION
    ("6.10 CONTINUATION after a whole block", PROTOCOL_ERROR, lambda p: p.response(1) + p.continuation(1)),
    ("6.10 CONTINUATION alone", PROTOCOL_ERROR, lambda p: frame(CONTINUATION, 0x4, 1, OK)),
    ("6.10 CONTINUATION on stream 0", PROTOCOL_ERROR, lambda p: p.continuation(0, OK)),
    (
        "6.10 CONTINUATION after DATA",
        PROTOCOL_ERROR,
        lambda p: p.response(1) + p.data(1, b"x") + p.continuation(1),
    ),
]


@pytest.mark.parametrize(("code", "script"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_a_broken_rule_of_the_connection_ends_it_with_its_code(
    rig: Rig, code: int, script: Callable[[FrameFactory], bytes]
) -> None:
    """RFC 9113 section 5.4.1: GOAWAY with the code, then nothing; whoever waits is told by `abandon`."""
    ears = streams(rig)
    error, sent = rig.fault(script(rig.peer))
    assert sent == code
    assert error.cause is BROKE_PROTOCOL
    rig.wire.abandon(error)
    assert ears[1].calls[-1:] == ["failed"]
    assert ears[3].calls == ["failed"]
    assert "failed" not in ears[5].calls + ears[7].calls
    assert rig.wire.open_streams == 0


@pytest.mark.parametrize(
    "first",
    [
        frame(PING, 0, 0, bytes(8)),
        frame(SETTINGS, 0x1),
        frame(WINDOW_UPDATE, 0, 0, number(1)),
        frame(GOAWAY, 0, 0, bytes(8)),
        frame(0xBE, 0, 0, b"grease"),
    ],
    ids=["PING", "SETTINGS ACK", "WINDOW_UPDATE", "GOAWAY", "unknown"],
)
def test_the_first_frame_of_a_server_is_settings(new_rig: Any, first: bytes) -> None:
    """RFC 9113 section 3.4."""
    rig = new_rig()
    rig.wire.start()
    assert rig.fault(first)[1] == PROTOCOL_ERROR


def test_http_1_where_the_preface_should_be_is_a_protocol_error(new_rig: Any) -> None:
    """RFC 9113 section 3.4. As frames, an HTTP/1.1 response is one far too large."""
    rig = new_rig()
    rig.wire.start()
    assert rig.fault(b"HTTP/1.1 400 Bad Request\r\n\r\n")[1] in (PROTOCOL_ERROR, FRAME_SIZE_ERROR)


def test_bytes_after_the_fault_do_nothing(rig: Rig) -> None:
    """RFC 9113 section 5.4.1."""
    ears = rig.open()
    rig.fault(rig.peer.window(0, 0), rig.peer.response(1, end=True))
    rig.serve(rig.peer.response(1, end=True))
    assert ears.heard == []


def test_what_came_before_the_fault_counts(rig: Rig) -> None:
    """Frames are taken one by one: an answer in front of a broken frame is an answer."""
    ears = rig.open()
    with pytest.raises(UpstreamError):
        rig.serve(rig.peer.response(1, end=True), rig.peer.window(0, 0))
    assert ears.calls == ["response"]


# --- what looks odd and is allowed

ALLOWED: list[tuple[str, Callable[[FrameFactory], bytes]]] = [
    ("4.1 unknown frame type", lambda p: frame(0xBE, 0xFF, 0, b"grease")),
    ("4.1 unknown frame type on an idle stream", lambda p: frame(0xBE, 0xFF, 99, b"grease")),
    ("4.1 undefined flags of PING", lambda p: frame(PING, 0xFE, 0, bytes(8))),
    ("4.1 undefined flags of WINDOW_UPDATE", lambda p: frame(WINDOW_UPDATE, 0xFF, 0, number(1))),
    ("4.1 reserved bit of the stream id", lambda p: frame(WINDOW_UPDATE, 0, 0x80000001, number(1))),
    ("4.2 a frame of exactly our maximum", lambda p: frame(0xBE, 0, 0, bytes(16_384))),
    ("5.1 RST_STREAM on a stream that is complete", lambda p: p.reset(5)),
    ("5.1 WINDOW_UPDATE on a stream that is complete", lambda p: p.window(5, 10)),
    ("5.1 DATA on a stream we reset", lambda p: p.data(7, b"late")),
    ("5.1 HEADERS on a stream we reset", lambda p: p.response(7, 200, ("x-late", "1"))),
    ("5.1 trailers on a stream we reset", lambda p: p.headers(7, ("x-late", "1"), end=True)),
    ("5.1 RST_STREAM on a stream we reset", lambda p: p.reset(7)),
    ("5.1 WINDOW_UPDATE on a stream we reset", lambda p: p.window(7, 2**31 - 1)),
    ("5.3.2 PRIORITY on an open stream", lambda p: p.priority(1)),
    ("5.3.2 PRIORITY on an idle stream", lambda p: p.priority(99)),
    ("5.3.2 PRIORITY on a stream that is complete", lambda p: p.priority(5)),
    ("5.3.2 a stream that depends on itself", lambda p: p.priority(1, depends_on=1)),
    ("6.5.2 unknown setting", lambda p: p.settings((0x0A0A, 7), (0xFFFF, 2**32 - 1))),
    ("6.5.2 push switched off by the server", lambda p: p.settings((ENABLE_PUSH, 0))),
    ("6.5.3 an ACK nobody waits for", lambda p: p.settings_ack()),
    ("6.5 empty SETTINGS", lambda p: p.settings()),
    ("6.7 an ACK of a PING nobody sent", lambda p: p.ping(b"whatever", ack=True)),
    ("6.9 reserved bit of the increment", lambda p: frame(WINDOW_UPDATE, 0, 1, number(0x80000001))),
    ("7838 ALTSVC", lambda p: frame(0xA, 0, 0, b'\0\0h2=":443"')),
    ("8336 ORIGIN", lambda p: frame(0xC, 0, 0, b"\0\x05https")),
]


@pytest.mark.parametrize("script", [case[1] for case in ALLOWED], ids=[case[0] for case in ALLOWED])
def test_what_is_allowed_leaves_the_connection_and_its_streams_alone(
    rig: Rig, script: Callable[[FrameFactory], bytes]
) -> None:
    ears = streams(rig)
    rig.serve(script(rig.peer))
    assert {one.kind for one in rig.sent()} <= {SETTINGS, PING}, "acknowledgements at most"
    assert rig.wire.can_open
    assert rig.wire.open_streams == 2
    rig.serve(rig.peer.response(1, 204, end=True), rig.peer.response(3, 204, end=True))
    assert ears[1].calls == ["response"]
    assert ears[3].calls == ["response"]


@pytest.mark.parametrize("with_priority", [False, True])
@pytest.mark.parametrize("pad", [None, 0, 1, 255])
def test_padding_and_priority_of_headers_are_taken_off(
    rig: Rig, pad: int | None, with_priority: bool
) -> None:
    """RFC 9113 section 6.2. A dependency on itself is nothing but deprecated (section 5.3.1)."""
    ears = rig.open()
    priority = (1, 255) if with_priority else None
    rig.serve(rig.peer.headers(1, (":status", "200"), ("a", "b"), end=True, pad=pad, priority=priority))
    assert ears.heard == [("response", 200, [(b"a", b"b")], True)]


@pytest.mark.parametrize("first", [0, 1])
def test_headers_cut_into_continuations_are_one_field_section(rig: Rig, first: int) -> None:
    """RFC 9113 section 6.10: cut anywhere, END_STREAM counts on HEADERS, empty fragments are allowed."""
    ears = rig.open()
    block = rig.peer.block((":status", "200"), ("a", "b"), ("long", "v" * 100))
    rig.serve(
        rig.peer.headers(1, block=block[:first], end=True, end_headers=False, pad=3),
        rig.peer.continuation(1, block[first:20]),
        rig.peer.continuation(1),
        rig.peer.continuation(1, block[20:], end_headers=True),
    )
    assert ears.heard == [("response", 200, [(b"a", b"b"), (b"long", b"v" * 100)], True)]


def test_settings_are_acknowledged_and_told(rig: Rig) -> None:
    """RFC 9113 section 6.5.3; MAX_CONCURRENT_STREAMS is read off the Wire (section 5.1.2)."""
    assert rig.wire.max_streams == 2**31 - 1
    rig.serve(rig.peer.settings((3, 17)))
    assert rig.wire.max_streams == 17
    assert rig.log == [(0, "settings")]
    assert [(one.kind, one.flags, one.payload) for one in rig.sent()] == [(SETTINGS, 1, b"")]
    rig.serve(rig.peer.settings((3, 2**32 - 1)))
    assert rig.wire.max_streams == 2**31 - 1
    rig.serve(rig.peer.settings((3, 0)))
    assert rig.wire.max_streams == 0


def test_our_preface_is_the_magic_settings_and_a_window(new_rig: Any) -> None:
    """RFC 9113 section 3.4; FrameReader has checked the magic."""
    rig = new_rig().start()
    settings, window = rig.first
    assert (settings.kind, settings.flags) == (SETTINGS, 0)
    assert settings.settings[ENABLE_PUSH] == 0
    assert settings.settings[INITIAL_WINDOW_SIZE] == 131_072
    assert settings.settings[6] == 64 << 10
    assert settings.settings.get(MAX_FRAME_SIZE, 16_384) == 16_384
    assert (window.kind, window.stream, window.code) == (WINDOW_UPDATE, 0, (1 << 30) - 65_535)
    assert PRIORITY not in {one.kind for one in rig.first}


def test_no_stream_is_opened_before_the_servers_settings(new_rig: Any) -> None:
    """Before them its limit on streams is not known (RFC 9113 section 5.1.2)."""
    rig = new_rig()
    rig.wire.start()
    assert not rig.wire.settled
    assert not rig.wire.can_open
    rig.serve(rig.peer.settings())
    assert rig.wire.settled
    assert rig.wire.can_open


@pytest.mark.parametrize("promised_first", [True, False])
def test_a_push_before_the_server_knows_better_is_refused_and_no_more(
    new_rig: Any, promised_first: bool
) -> None:
    """RFC 9113 sections 6.6 and 8.4, case unsolicited-push: until it acknowledges ENABLE_PUSH=0 it may not
    know."""
    rig = new_rig()
    rig.wire.start()
    rig.serve(rig.peer.settings())
    ears = rig.open()
    rig.sent()
    promise = rig.peer.promise(1, 2, (":method", "GET"), (":path", "/pushed"), ("x-table", "entry"))
    rig.serve(promise)
    (reset,) = rig.sent()
    assert (reset.kind, reset.stream) == (RST_STREAM, 2)
    assert reset.code in (7, CANCEL)
    # What was on its way to stream 2 is dropped, and the HPACK table has kept step.
    rig.serve(rig.peer.response(2, 200, ("x-table", "entry")), rig.peer.data(2, b"pushed", end=True))
    rig.serve(rig.peer.settings_ack(), rig.peer.response(1, 200, ("x-table", "entry"), end=True))
    assert ears.heard == [("response", 200, [(b"x-table", b"entry")], True)]
    if promised_first:
        assert rig.fault(rig.peer.promise(1, 4, (":method", "GET")))[1] == PROTOCOL_ERROR


@pytest.mark.parametrize("promised", [3, 0, 2])
def test_a_promise_of_a_stream_that_is_not_the_servers_to_open_ends_the_connection(
    new_rig: Any, promised: int
) -> None:
    """RFC 9113 sections 5.1.1 and 6.6: even, and above all promised before."""
    rig = new_rig()
    rig.wire.start()
    rig.serve(rig.peer.settings())
    rig.open()
    rig.serve(rig.peer.promise(1, 4))
    assert rig.fault(rig.peer.promise(1, promised))[1] == PROTOCOL_ERROR
