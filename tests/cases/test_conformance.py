"""What h2spec asks of a client, its 57 cases in its order, over real sockets and TLS (RFC 9113).

One difference, by RFC 9113 section 5.1 ("endpoints can perform this minimal processing for all streams that are in the
closed state"): what arrives after END_STREAM costs its stream, where h2spec goes by RFC 7540 and wants the connection
to end. The code, STREAM_CLOSED, is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tests.cases.timing import SOON
from tests.support.framing import (
    Code,
    Flag,
    Kind,
    Setting,
    continuation,
    data,
    frame,
    headers,
    ping,
    rst_stream,
    settings,
    window_update,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Origin, Request
    from tests.support.stage import Stage

OK = b"\x88"
"""`:status 200`, a whole field block."""
MORE = b"\x00\x03x-a\x011"
"""`x-a: 1`, the rest of one."""
PAYLOAD = b"h2spec\0\0"


class Told(NamedTuple):
    """The frame that the peer must get, and its error code or payload."""

    kind: Kind
    what: int | bytes


def _connection(code: Code) -> Told:
    return Told(Kind.GOAWAY, code)


def _stream(code: Code) -> Told:
    return Told(Kind.RST_STREAM, code)


FINE = Told(Kind.PING, PAYLOAD)
"""The connection lives: it acknowledges a PING."""

CASES: list[tuple[str, Callable[[int], bytes], Told]] = [
    ("1 a connection preface and SETTINGS", lambda s: b"", FINE),
    ("4.1 unknown type", lambda s: frame(0x16, 0, 0, bytes(8)), FINE),
    ("4.1 undefined flags", lambda s: frame(Kind.PING, 0x16, 0, PAYLOAD), FINE),
    ("4.1 reserved bit", lambda s: frame(Kind.PING, 0x16, 2**31, PAYLOAD), FINE),
    ("4.2 DATA of 2^14", lambda s: headers(s, OK) + data(s, bytes(2**14), end=True), FINE),
    (
        "4.2 DATA above the maximum",
        lambda s: headers(s, OK) + data(s, bytes(2**14 + 1)),
        _connection(Code.FRAME_SIZE_ERROR),
    ),
    (
        "4.2 HEADERS above the maximum",
        lambda s: headers(s, bytes(2**14 + 1)),
        _connection(Code.FRAME_SIZE_ERROR),
    ),
    ("4.3 a block that ends too soon", lambda s: headers(s, b"\x40"), _connection(Code.COMPRESSION_ERROR)),
    ("5.1 idle: DATA", lambda s: data(2, b"test", end=True), _connection(Code.PROTOCOL_ERROR)),
    ("5.1 idle: RST_STREAM", lambda s: rst_stream(2, Code.CANCEL), _connection(Code.PROTOCOL_ERROR)),
    ("5.1 idle: WINDOW_UPDATE", lambda s: window_update(2, 100), _connection(Code.PROTOCOL_ERROR)),
    (
        "5.1 idle: CONTINUATION",
        lambda s: continuation(2, OK, end_headers=True),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "5.1 closed by RST_STREAM: DATA",
        lambda s: headers(s, OK) + rst_stream(s, Code.CANCEL) + data(s, b"test", end=True),
        _stream(Code.STREAM_CLOSED),
    ),
    (
        "5.1 closed by RST_STREAM: HEADERS",
        lambda s: headers(s, OK) + rst_stream(s, Code.CANCEL) + headers(s, OK, end=True),
        _stream(Code.STREAM_CLOSED),
    ),
    (
        "5.1 closed by RST_STREAM: CONTINUATION",
        lambda s: headers(s, OK) + rst_stream(s, Code.CANCEL) + continuation(s, MORE, end_headers=True),
        _connection(Code.PROTOCOL_ERROR),
    ),
    ("5.1 closed: DATA", lambda s: headers(s, OK, end=True) + data(s, b"test"), _stream(Code.STREAM_CLOSED)),
    ("5.1 closed: HEADERS", lambda s: 2 * headers(s, OK, end=True), _stream(Code.STREAM_CLOSED)),
    (
        "5.1 closed: CONTINUATION",
        lambda s: headers(s, OK, end=True) + continuation(s, MORE, end_headers=True),
        _connection(Code.PROTOCOL_ERROR),
    ),
    ("5.1.1 unexpected stream id", lambda s: headers(101, OK, end=True), _connection(Code.PROTOCOL_ERROR)),
    ("5.4.1 closes", lambda s: frame(Kind.PING, 0, 3, bytes(8)), _connection(Code.PROTOCOL_ERROR)),
    ("5.4.1 sends GOAWAY", lambda s: frame(Kind.PING, 0, 3, bytes(8)), _connection(Code.PROTOCOL_ERROR)),
    ("5.5 unknown extension", lambda s: frame(0x16, 0, 0, bytes(8)), FINE),
    ("6.1 DATA on stream 0", lambda s: data(0, b"test", end=True), _connection(Code.PROTOCOL_ERROR)),
    (
        "6.1 DATA on a closed stream",
        lambda s: headers(s, OK, end=True) + data(s, b"x"),
        _stream(Code.STREAM_CLOSED),
    ),
    (
        "6.1 pad length",
        lambda s: headers(s, OK) + frame(Kind.DATA, Flag.END_STREAM | Flag.PADDED, s, b"\x06Test"),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.2 PRIORITY inside a field block",
        lambda s: headers(s, OK, end_headers=False) + frame(Kind.PRIORITY, 0, s, bytes(5)),
        _connection(Code.PROTOCOL_ERROR),
    ),
    ("6.2 HEADERS on stream 0", lambda s: headers(0, OK, end=True), _connection(Code.PROTOCOL_ERROR)),
    (
        "6.2 pad length",
        lambda s: frame(Kind.HEADERS, Flag.PADDED | Flag.END_HEADERS, s, b"\x11" + OK),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.3 PRIORITY on stream 0",
        lambda s: frame(Kind.PRIORITY, 0, 0, bytes(5)),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.3 PRIORITY of 4 bytes",
        lambda s: frame(Kind.PRIORITY, 0, s, bytes(4)),
        _stream(Code.FRAME_SIZE_ERROR),
    ),
    ("6.4 RST_STREAM on stream 0", lambda s: rst_stream(0, Code.CANCEL), _connection(Code.PROTOCOL_ERROR)),
    (
        "6.4 RST_STREAM on an idle stream",
        lambda s: rst_stream(2, Code.CANCEL),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.4 RST_STREAM of 3 bytes",
        lambda s: headers(s, OK, end=True) + frame(Kind.RST_STREAM, 0, s, bytes(3)),
        _connection(Code.FRAME_SIZE_ERROR),
    ),
    (
        "6.5 ACK with a payload",
        lambda s: frame(Kind.SETTINGS, Flag.ACK, 0, b"\0"),
        _connection(Code.FRAME_SIZE_ERROR),
    ),
    (
        "6.5 SETTINGS on a stream",
        lambda s: frame(Kind.SETTINGS, 0, 1, bytes(6)),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.5 SETTINGS of 3 bytes",
        lambda s: frame(Kind.SETTINGS, 0, 0, bytes(3)),
        _connection(Code.FRAME_SIZE_ERROR),
    ),
    (
        "6.5.2 INITIAL_WINDOW_SIZE too large",
        lambda s: settings({Setting.INITIAL_WINDOW_SIZE: 2**31}),
        _connection(Code.FLOW_CONTROL_ERROR),
    ),
    (
        "6.5.2 MAX_FRAME_SIZE too small",
        lambda s: settings({Setting.MAX_FRAME_SIZE: 2**14 - 1}),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.5.2 MAX_FRAME_SIZE too large",
        lambda s: settings({Setting.MAX_FRAME_SIZE: 2**24}),
        _connection(Code.PROTOCOL_ERROR),
    ),
    ("6.5.2 unknown setting", lambda s: settings({0xFF: 1}), FINE),
    (
        "6.5.3 SETTINGS are acknowledged",
        lambda s: settings({Setting.ENABLE_PUSH: 0}),
        Told(Kind.SETTINGS, b""),
    ),
    ("6.7 PING", lambda s: b"", FINE),
    ("6.7 ACK of a PING nobody sent", lambda s: ping(b"invalid\0", ack=True), FINE),
    ("6.7 PING on a stream", lambda s: frame(Kind.PING, 0, 1, bytes(8)), _connection(Code.PROTOCOL_ERROR)),
    ("6.7 PING of 6 bytes", lambda s: frame(Kind.PING, 0, 0, bytes(6)), _connection(Code.FRAME_SIZE_ERROR)),
    (
        "6.8 GOAWAY on a stream",
        lambda s: frame(Kind.GOAWAY, 0, 1, bytes(8)),
        _connection(Code.PROTOCOL_ERROR),
    ),
    ("6.9 increment of 0", lambda s: window_update(0, 0), _connection(Code.PROTOCOL_ERROR)),
    (
        "6.9 increment of 0 on a stream",
        lambda s: headers(s, OK) + window_update(s, 0),
        _stream(Code.PROTOCOL_ERROR),
    ),
    (
        "6.9 WINDOW_UPDATE of 3 bytes",
        lambda s: frame(Kind.WINDOW_UPDATE, 0, 0, bytes(3)),
        _connection(Code.FRAME_SIZE_ERROR),
    ),
    (
        "6.9.1 window above 2^31-1",
        lambda s: 2 * window_update(0, 2**31 - 1),
        _connection(Code.FLOW_CONTROL_ERROR),
    ),
    (
        "6.9.1 window of a stream above 2^31-1",
        lambda s: headers(s, OK) + 2 * window_update(s, 2**31 - 1),
        _stream(Code.FLOW_CONTROL_ERROR),
    ),
    (
        "6.10 several CONTINUATION",
        lambda s: (
            headers(s, OK, end=True, end_headers=False)
            + continuation(s, MORE, end_headers=False)
            + continuation(s, MORE, end_headers=True)
        ),
        FINE,
    ),
    (
        "6.10 another frame after CONTINUATION",
        lambda s: (
            headers(s, OK, end_headers=False) + continuation(s, MORE, end_headers=False) + data(s, b"test")
        ),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.10 CONTINUATION on stream 0",
        lambda s: headers(s, OK, end=True, end_headers=False) + continuation(0, MORE, end_headers=True),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.10 CONTINUATION after the end of a block",
        lambda s: headers(s, OK, end=True) + continuation(s, MORE, end_headers=True),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.10 CONTINUATION after the last one",
        lambda s: headers(s, OK, end=True, end_headers=False) + 2 * continuation(s, MORE, end_headers=True),
        _connection(Code.PROTOCOL_ERROR),
    ),
    (
        "6.10 CONTINUATION after DATA",
        lambda s: (
            headers(s, OK, end_headers=False) + data(s, b"test") + continuation(s, MORE, end_headers=False)
        ),
        _connection(Code.PROTOCOL_ERROR),
    ),
]


async def test_the_cases_of_h2spec_are_told_what_rfc_9113_says(stage: Stage) -> None:
    """And the next request is answered after each of them."""
    assert len(CASES) == 57
    origin = await stage.origin()
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    faults = {name: await _fault(stage, origin, proxy, script, told) for name, script, told in CASES}
    assert {name: fault for name, fault in faults.items() if fault} == {}


async def _fault(
    stage: Stage, origin: Origin, proxy: Proxy, script: Callable[[int], bytes], told: Told
) -> str:
    """What was wrong, if anything."""
    try:
        await _case(stage, origin, proxy, script, told)
    except AssertionError as error:
        return str(error) or "not as told"
    return ""


async def _case(
    stage: Stage, origin: Origin, proxy: Proxy, script: Callable[[int], bytes], told: Told
) -> None:
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(len(origin.requests) + 1)
    conn = request.conn
    seen = len(conn.frames)
    conn.raw(script(request.stream))
    if told.kind is Kind.GOAWAY:
        assert (await conn.saw(Kind.GOAWAY, since=seen, within=SOON)).goaway[1] == told.what
        await conn.closed(SOON)
    elif told.kind is Kind.RST_STREAM:
        reset = await conn.saw(Kind.RST_STREAM, stream=request.stream, since=seen, within=SOON)
        assert reset.number == told.what
    else:
        conn.raw(ping(PAYLOAD) if told.kind is Kind.PING else b"")
        assert (await conn.saw(told.kind, since=seen, ack=True, within=SOON)).payload == told.what
    client.close()
    await _next_is_answered(stage, origin, proxy)


async def _next_is_answered(stage: Stage, origin: Origin, proxy: Proxy) -> None:
    client = await stage.client(proxy)
    client.request("GET", "/next")
    request: Request = await origin.request(len(origin.requests) + 1)
    request.respond(200, b"next")
    assert (await client.response(within=SOON)).body == b"next"
    client.close()
