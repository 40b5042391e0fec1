"""Tables of what an upstream may do wrong or odd, over one real proxy (RFC 9113, RFC 9110)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import (
    Code,
    Kind,
    Setting,
    data,
    frame,
    goaway,
    headers,
    ping,
    rst_stream,
    settings,
    window_update,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

    Script = Callable[[Request], None]

OK = (b":status", b"200")


def _block(*fields: tuple[bytes, bytes], end: bool = True) -> Script:
    def play(request: Request) -> None:
        request.conn.send(request.conn.field_section(request.stream, fields, end=end))

    return play


def _then(first: Script, *frames: Callable[[int], bytes]) -> Script:
    def play(request: Request) -> None:
        first(request)
        request.conn.send(*(make(request.stream) for make in frames))

    return play


MALFORMED: dict[str, Script] = {
    "no status": _block((b"x-a", b"1")),
    "two status": _block(OK, OK),
    "status of two digits": _block((b":status", b"20")),
    "status of four digits": _block((b":status", b"2000")),
    "status with a sign": _block((b":status", b"+20")),
    "status 099": _block((b":status", b"099")),
    "empty status": _block((b":status", b"")),
    "status 101": _block((b":status", b"101")),
    "pseudo-field after a field": _block((b"x-a", b"1"), OK),
    "request pseudo-field": _block(OK, (b":path", b"/")),
    "unknown pseudo-field": _block(OK, (b":version", b"2")),
    "upper-case name": _block(OK, (b"X-A", b"1")),
    "empty name": _block(OK, (b"", b"1")),
    "name with a space": _block(OK, (b"x a", b"1")),
    "name with a colon": _block(OK, (b"x:a", b"1")),
    "name with CR LF": _block(OK, (b"x\r\nset-cookie", b"1")),
    "name beyond ASCII": _block(OK, (b"x-\xe9", b"1")),
    "value with leading space": _block(OK, (b"x-a", b" 1")),
    "value with trailing tab": _block(OK, (b"x-a", b"1\t")),
    "connection": _block(OK, (b"connection", b"close")),
    "keep-alive": _block(OK, (b"keep-alive", b"timeout=5")),
    "proxy-connection": _block(OK, (b"proxy-connection", b"close")),
    "transfer-encoding": _block(OK, (b"transfer-encoding", b"chunked")),
    "upgrade": _block(OK, (b"upgrade", b"h2c")),
    "signed length": _block(OK, (b"content-length", b"+0")),
    "length in words": _block(OK, (b"content-length", b"five")),
    "two unequal lengths": _block(OK, (b"content-length", b"0"), (b"content-length", b"1")),
    "length without a body": _block(OK, (b"content-length", b"5")),
    "length beyond 64 bits": _then(
        _block(OK, (b"content-length", b"9223372036854775808"), end=False), lambda s: data(s, b"x", end=True)
    ),
    "interim with END_STREAM": _block((b":status", b"103")),
    "DATA before HEADERS": lambda request: request.data(b"x", end=True),
    "DATA after an interim": _then(
        _block((b":status", b"103"), end=False), lambda s: data(s, b"x", end=True)
    ),
}
"""Each is malformed (RFC 9113 sections 8.1 to 8.3): a stream error and a 502, nothing else is touched."""

CUT_SHORT: dict[str, Script] = {
    "less than its length": _then(
        _block(OK, (b"content-length", b"5"), end=False), lambda s: data(s, b"hell", end=True)
    ),
    "more than its length": _then(
        _block(OK, (b"content-length", b"5"), end=False), lambda s: data(s, b"hello!", end=True)
    ),
    "upper-case trailer": _then(
        _block(OK, end=False), lambda s: data(s, b"x"), lambda s: headers(s, b"\x00\x03X-A\x011", end=True)
    ),
}


async def test_malformed_responses_cost_their_own_request_only(stage: Stage) -> None:
    """RFC 9113 sections 8.1.1, 8.2 and 8.3."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    bystander = await stage.client(proxy)
    bystander.request("POST", "/bystander", b"x")
    spared = await origin.request(1)
    wrong: list[tuple[object, ...]] = []
    for number, (name, script) in enumerate(MALFORMED.items(), 2):
        client = await stage.client(proxy)
        client.request("POST", f"/{number}", b"x")
        request = await origin.request(number)
        await request.complete()
        script(request)
        response = await client.response("POST", within=SOON)
        if (response.status, response.cause) != (502, "malformed-response"):
            wrong.append((name, response.status, response.cause, response.body))
        elif request.reset_code != Code.PROTOCOL_ERROR:
            try:
                await request.was_reset(within=ABSENCE)
            except AssertionError:
                ended = any(f.ends_stream for f in request.conn.frames if f.stream == request.stream)
                if not (ended and request.answered):
                    wrong.append((name, "no RST_STREAM", request.reset_code, b""))
        await client.gone()
    spared.respond(200, b"spared")
    assert (await bystander.response("POST")).body == b"spared"
    assert len(origin.connections) == 1
    assert not wrong


async def test_responses_that_break_in_the_middle_never_look_whole(stage: Stage) -> None:
    """RFC 9113 section 8.1.1, RFC 9112 section 8."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    for number, (name, script) in enumerate(CUT_SHORT.items(), 1):
        client = await stage.client(proxy)
        client.request("POST", f"/{number}", b"x")
        request = await origin.request(number)
        await request.complete()
        script(request)
        response = await client.response("POST", within=SOON)
        assert not response.complete or response.status == 502, name
        assert b"hello!" not in response.body, name
        assert await client.closed() == b"" or response.status == 502, name
    assert len(origin.connections) == 1


async def test_odd_responses_that_are_right_pass(stage: Stage) -> None:
    """Padding, priority, empty DATA, split blocks, equal lengths, a status nobody registered."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)

    def padded(request: Request) -> None:
        block = request.conn.encoder.encode([OK])
        request.conn.send(
            frame(Kind.HEADERS, 0x4 | 0x8 | 0x20, request.stream, b"\x05" + bytes(5) + block + bytes(5)),
            frame(Kind.DATA, 0x8, request.stream, b"\xff" + b"ok" + bytes(255)),
            frame(Kind.DATA, 0x1, request.stream, b""),
        )

    def dribbled(request: Request) -> None:
        block = request.conn.encoder.encode([OK, (b"x-a", b"1")])
        parts = [block[i : i + 1] for i in range(len(block))]
        request.conn.send(
            headers(request.stream, b"", end_headers=False),
            *(frame(Kind.CONTINUATION, 0, request.stream, part) for part in parts[:30]),
            frame(Kind.CONTINUATION, 0x4, request.stream, b"".join(parts[30:])),
            *(data(request.stream, b"") for _ in range(20)),
            data(request.stream, b"o"),
            data(request.stream, b"k", end=True),
        )

    def noisy(request: Request) -> None:
        conn = request.conn
        conn.send(
            frame(Kind.PRIORITY, 0, request.stream, bytes(5)),
            frame(0xFA, 0xFF, request.stream, b"unknown"),
            frame(0xFA, 0xFF, 0, b""),
            settings({0xFF00: 7}),
            window_update(request.stream, 1000),
            ping(b"unasked!", ack=True),
            rst_stream(request.stream - 2, Code.CANCEL) if request.stream > 1 else b"",
        )
        request.respond(200, b"ok")

    rows: list[tuple[Script, int, bytes]] = [
        (lambda r: r.respond(200, b"ok"), 200, b"ok"),
        (padded, 200, b"ok"),
        (dribbled, 200, b"ok"),
        (noisy, 200, b"ok"),
        (_then(_block((b":status", b"299"), end=False), lambda s: data(s, b"ok", end=True)), 299, b"ok"),
        (_then(_block((b":status", b"599"), end=False), lambda s: data(s, b"ok", end=True)), 599, b"ok"),
        (_block((b":status", b"205")), 205, b""),
        (_block(OK, (b"x-empty", b"")), 200, b""),
        (
            _then(
                _block(OK, (b"date", b"now"), (b"server", b"s"), end=False),
                lambda s: data(s, b"ok", end=True),
            ),
            200,
            b"ok",
        ),
    ]
    for number, (script, status, body) in enumerate(rows, 1):
        client.request("POST", f"/{number}", b"x")
        request = await origin.request(number)
        await request.complete()
        script(request)
        response = await client.response("POST", within=SOON)
        assert (response.status, response.body, response.complete) == (status, body, True), number
    assert len(origin.connections) == 1


FATAL: dict[str, tuple[bytes, int]] = {
    "DATA on an idle stream": (data(99, b"x"), Code.PROTOCOL_ERROR),
    "DATA on stream 0": (data(0, b"x"), Code.PROTOCOL_ERROR),
    "HEADERS on stream 0": (headers(0, b"\x88"), Code.PROTOCOL_ERROR),
    "WINDOW_UPDATE of 0 on the connection": (window_update(0, 0), Code.PROTOCOL_ERROR),
    "connection window overflow": (window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
    "WINDOW_UPDATE of 3 bytes": (frame(Kind.WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    "PING of 7 bytes": (frame(Kind.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "PING on a stream": (frame(Kind.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "SETTINGS of 5 bytes": (frame(Kind.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
    "SETTINGS on a stream": (frame(Kind.SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR),
    "SETTINGS ACK with a payload": (frame(Kind.SETTINGS, 1, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
    "initial window above 2^31-1": (
        settings({Setting.INITIAL_WINDOW_SIZE: 2**31}),
        Code.FLOW_CONTROL_ERROR,
    ),
    "frame size below 16384": (settings({Setting.MAX_FRAME_SIZE: 16383}), Code.PROTOCOL_ERROR),
    "ENABLE_PUSH of 1 from a server": (settings({Setting.ENABLE_PUSH: 1}), Code.PROTOCOL_ERROR),
    "frame larger than we take": (frame(Kind.DATA, 0, 1, bytes(16385)), Code.FRAME_SIZE_ERROR),
    "RST_STREAM on an idle stream": (rst_stream(99, 0), Code.PROTOCOL_ERROR),
    "RST_STREAM of 3 bytes": (frame(Kind.RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "GOAWAY on a stream": (frame(Kind.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "GOAWAY of 7 bytes": (frame(Kind.GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "CONTINUATION alone": (frame(Kind.CONTINUATION, 4, 1, b""), Code.PROTOCOL_ERROR),
    "HEADERS then PING": (headers(1, b"\x88", end_headers=False) + ping(bytes(8)), Code.PROTOCOL_ERROR),
    "HPACK index beyond the table": (headers(1, b"\xff\xff\x7f"), Code.COMPRESSION_ERROR),
    "HPACK table above our limit": (headers(1, b"\x3f\xff\xff\x7f\x88"), Code.COMPRESSION_ERROR),
    "HPACK string cut off": (headers(1, b"\x88\x00\x05ab"), Code.COMPRESSION_ERROR),
    "padding longer than the frame": (frame(Kind.DATA, 0x8, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("name", FATAL)
async def test_a_connection_error_is_told_with_its_code(any_stage: Stage, name: str) -> None:
    """RFC 9113 sections 4 to 6, RFC 7541: GOAWAY with the right code, 502, and the next request works."""
    raw, code = FATAL[name]
    origin = await any_stage.origin()
    origin.tolerated = True
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    request.conn.raw(raw)
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "protocol-error")
    assert (await request.conn.saw(Kind.GOAWAY)).goaway[1] == code
    await request.conn.closed()
    client = await any_stage.client(proxy)
    client.request("GET", "/next")
    following = await origin.request(2)
    following.respond(200)
    assert (await client.response()).status == 200


async def test_goaway_in_two_steps_loses_nothing(stage: Stage) -> None:
    """RFC 9113 section 6.8: first 2^31-1, a round trip later the real last stream id."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    clients = [await stage.client(proxy) for _ in range(3)]
    for number, client in enumerate(clients[:2]):
        client.request("POST", f"/{number}", b"x")
        await (await origin.request(number + 1)).complete()
    old = origin.requests[0].conn
    old.send(goaway(2**31 - 1))
    old.send(ping(b"roundtri"))
    await old.saw(Kind.PING, ack=True)
    clients[2].request("POST", "/2", b"x")
    third = await origin.request(3)
    assert third.conn is not old
    old.send(goaway(1))
    again = await origin.request(4, within=SOON)
    assert again.path == b"/1"
    for request in (origin.requests[0], third, again):
        request.respond(200, request.path)
    assert [(await client.response("POST")).body for client in clients] == [b"/0", b"/1", b"/2"]


async def test_an_endpoint_that_takes_nothing_is_given_up(stage: Stage) -> None:
    """GOAWAY(0) to each attempt: bounded, spread in time, and told as not executed."""

    async def refuse(request: Request) -> None:
        request.conn.fin(goaway(0))

    origin = await stage.origin(refuse)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    response = await client.ask("POST", "/", b"x", within=60)
    assert (response.status, response.cause) == (502, "goaway-refused")
    assert 2 <= len(origin.requests) <= 16
    assert {bytes(request.body) for request in origin.requests} <= {b"x", b""}


async def test_a_refused_upload_in_progress_starts_over_and_goes_on(stage: Stage) -> None:
    """GOAWAY(0) while the client still writes: the next attempt has all bytes, those that come later too."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
    client.send(b"2710\r\n" + b"a" * 10_000 + b"\r\n")
    refused = await origin.request(1)
    await refused.received(10_000)
    refused.conn.fin(goaway(0))
    again = await origin.request(2)
    await again.received(10_000)
    client.send(b"2710\r\n" + b"b" * 10_000 + b"\r\n0\r\nX-Sum: 9\r\n\r\n")
    assert await again.complete() == b"a" * 10_000 + b"b" * 10_000
    assert again.trailers == [(b"x-sum", b"9")]
    again.respond(200, b"ok")
    assert (await client.response("POST")).body == b"ok"


async def test_streams_wait_while_the_peer_allows_none(stage: Stage) -> None:
    """MAX_CONCURRENT_STREAMS of 0, raised later (RFC 9113 section 5.1.2)."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 0})
    proxy = await stage.proxy(origin, "--max-conns=1")
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    await origin.no_request(0, ABSENCE)
    (conn,) = origin.connections
    conn.send(settings({Setting.MAX_CONCURRENT_STREAMS: 1}))
    request = await origin.request(1)
    request.respond(200, b"ok")
    assert (await client.response("POST")).body == b"ok"


async def test_a_window_that_shrinks_below_zero_is_respected(stage: Stage) -> None:
    """RFC 9113 section 6.9.2: INITIAL_WINDOW_SIZE changes under way."""
    origin = await stage.origin(settings={Setting.INITIAL_WINDOW_SIZE: 40_000}, credit=False)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    body = bytes(range(250)) * 400
    client.request("POST", "/", body)
    request = await origin.request(1)
    await request.received(40_000)
    conn = request.conn
    conn.send(settings({Setting.INITIAL_WINDOW_SIZE: 10_000}))
    await conn.bell.until(lambda: conn.initial_receive_window == 10_000, "SETTINGS ACK")
    conn.send(window_update(1, 30_000), window_update(0, 200_000))
    await conn.saw_none(Kind.DATA, ABSENCE, since=len(conn.frames))
    for _ in range(60):
        conn.send(window_update(1, 1))  # dribble
    await request.received(40_060)
    conn.send(window_update(1, 100_000))
    assert await request.complete() == body
    request.respond(200)
    assert (await client.response("POST")).status == 200


async def test_enhance_your_calm_makes_pings_rarer(stage: Stage) -> None:
    """RFC 9113 section 7: the peer thinks that we PING too often."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--ping-interval=200ms")
    client = await stage.client(proxy)
    client.request("GET", "/1")
    first = await origin.request(1)
    await first.conn.saw(Kind.PING, ack=False)
    first.conn.fin(goaway(0, Code.ENHANCE_YOUR_CALM))
    second = await origin.request(2)
    conn = second.conn
    await conn.bell.until(lambda: len(conn.pings()) >= 4, "four PINGs")
    pings = conn.pings()
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(pings)]
    assert min(gaps) > 0.3
    assert proxy.matching("ENHANCE_YOUR_CALM")
    second.respond(200)
    assert (await client.response()).status == 200
