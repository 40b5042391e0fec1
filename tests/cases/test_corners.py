"""Corners where the two protocols meet: who ends a message, who may answer early, what a 1.0 client bears."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hpack
import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.client import request_bytes
from tests.support.framing import Code, Kind, Setting, data, window_update

if TYPE_CHECKING:
    from tests.support.stage import Stage


@pytest.mark.parametrize("end", ["END_STREAM", "RST_STREAM(NO_ERROR)", "RST_STREAM(INTERNAL_ERROR)"])
async def test_a_response_complete_by_its_length_frees_the_client_before_the_stream_ends(
    stage: Stage, end: str
) -> None:
    """The client has all of it (RFC 9112 section 6.3) and asks again; how the stream ends later is not its business."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/1", b"x")
    first = await origin.request(1)
    await first.complete()
    first.head(200, [(b"content-length", b"5")])
    first.data(b"hello")
    response = await client.response("POST", within=SOON)
    assert (response.body, response.complete) == (b"hello", True)
    client.request("POST", "/2", b"y")
    if end == "END_STREAM":
        first.data(b"", end=True)
    else:
        first.reset(Code.NO_ERROR if "NO_ERROR" in end else Code.INTERNAL_ERROR)
    try:
        second = await origin.request(2, within=SOON)
    except AssertionError:
        # A stream that was reset is not known to be whole (RFC 9113 section 8.1): closing is right, too.
        assert "RST_STREAM" in end
        assert await client.closed() == b""
        return
    second.respond(200, b"two")
    assert (await client.response("POST")).body == b"two"


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_a_body_where_none_may_be_is_malformed(stage: Stage, method: str) -> None:
    """RFC 9110 section 6.4.1: HEAD, 204 and 304 have no content; it must not become the next response."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request(method, "/1")
    request = await origin.request(1)
    status = 200 if method == "HEAD" else 204
    request.conn.send(
        request.conn.response(1, status), data(1, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", end=True)
    )
    response = await client.response(method, within=SOON)
    assert response.status in (status, 502)
    if response.closes or response.status == status:
        try:
            assert await client.closed(within=ABSENCE) == b""
        except (TimeoutError, OSError):
            pass
        else:
            return
    client.request("GET", "/2")
    (await origin.request(2)).respond(200, b"right")
    assert (await client.response()).body == b"right"


async def test_interim_responses_without_end_are_ended(stage: Stage) -> None:
    """RFC 9110 section 15.2 sets no limit; we do."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    for _ in range(100):
        request.conn.send(request.conn.response(1, 103))
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "flood")
    assert len(response.interims) <= 16


async def test_a_100_of_the_upstream_is_not_repeated(stage: Stage) -> None:
    """RFC 9110 section 10.1.1: the client has its 100 from us, or asked for none."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    for expect in (True, False):
        client = await stage.client(proxy)
        fields = [("Expect", "100-continue")] if expect else []
        client.send(request_bytes("POST", "/", b"x", fields))
        request = await origin.request(len(origin.requests) + 1)
        request.conn.send(request.conn.response(request.stream, 100))
        request.respond(200)
        response = await client.response("POST")
        assert [status for status, _ in response.interims] in ([], [100] if expect else [])


async def test_a_1_0_client_may_keep_its_connection_with_a_length(stage: Stage) -> None:
    """RFC 9112 section 9.3."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number in (1, 2):
        client.request("GET", f"/{number}", fields=[("Connection", "keep-alive")], version="1.0")
        (await origin.request(number)).respond(200, b"%d" % number)
        response = await client.response()
        assert response.body == b"%d" % number
        if response.closes or b"keep-alive" not in (response.get(b"connection") or b"").lower():
            assert await client.closed() == b""
            client = await stage.client(proxy)


async def test_connection_close_is_honoured(stage: Stage) -> None:
    """RFC 9112 section 9.6."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    for body in (b"sized", None):
        client = await stage.client(proxy)
        client.request("GET", "/", fields=[("Connection", "close")])
        request = await origin.request(len(origin.requests) + 1)
        if body:
            request.respond(200, body)
        else:
            request.head(200)
            request.data(b"open", end=True)
        response = await client.response()
        assert (response.closes, response.complete) == (True, True)
        assert await client.closed() == b""


async def test_head_of_a_response_without_length_does_not_hang(stage: Stage) -> None:
    """RFC 9110 section 9.3.2."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("HEAD", "/1")
    (await origin.request(1)).head(200, [(b"x-a", b"1")], end=True)
    response = await client.response("HEAD")
    assert (response.status, response.get(b"x-a")) == (200, b"1")
    client.request("GET", "/2")
    (await origin.request(2)).respond(200, b"two")
    assert (await client.response()).body == b"two"


async def test_long_heads_pass_both_ways(stage: Stage) -> None:
    """Above one frame: CONTINUATION (RFC 9113 section 6.10)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    long = "".join(chr(33 + i % 90) for i in range(50_000))
    client.request("GET", "/", fields=[("X-Long", long)])
    request = await origin.request(1)
    assert request.get(b"x-long") == long.encode()
    assert request.conn.all(Kind.CONTINUATION)
    request.respond(200, b"ok", [(b"x-long", long.encode()), (b"x-end", b"1")])
    response = await client.response()
    assert response.get(b"x-long") == long.encode()
    assert response.get(b"x-end") == b"1"


async def test_credentials_stay_out_of_the_table_on_every_request(stage: Stage) -> None:
    """RFC 7541 section 7.1: never indexed, also when the same value comes again."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    decoder = hpack.Decoder()
    secret = {b"authorization", b"cookie", b"x-api-key", b"x-auth-token"}
    fields = [("Cookie", "k=1"), ("X-Api-Key", "k"), ("X-Auth-Token", "t"), ("X-Plain", "p")]
    for number in (1, 2, 3):
        client.request("GET", "/same", fields=fields)
        request = await origin.request(number)
        decoded = decoder.decode(request.block, raw=True)
        never = {bytes(field[0]) for field in decoded if not getattr(field, "indexable", True)}
        assert secret <= never
        assert b"x-plain" not in never
        if number == 3:
            assert len(request.block) < 200
        request.respond(200)
        await client.response()


async def test_pings_go_on_while_the_upload_waits_for_the_window(stage: Stage) -> None:
    """An upload that the peer holds back is a silent request too."""
    origin = await stage.origin(settings={Setting.INITIAL_WINDOW_SIZE: 10})
    proxy = await stage.proxy(origin, "--ping-interval=100ms")
    client = await stage.client(proxy)
    client.request("POST", "/", bytes(1000))
    request = await origin.request(1)
    conn = request.conn
    conn.manners.credit = False
    await conn.bell.until(lambda: len(conn.pings()) >= 3, "three PINGs")
    conn.send(window_update(1, 10_000))
    assert await request.complete() == bytes(1000)
    request.respond(200)
    assert (await client.response("POST")).status == 200


async def test_order_and_repetition_of_fields_survive(stage: Stage) -> None:
    """RFC 9110 section 5.3."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    names = [("X-B", "1"), ("X-A", "2"), ("X-B", "3"), ("Accept", "a, b"), ("Accept", "c")]
    client.request("GET", "/", fields=names)
    request = await origin.request(1)
    wanted = [(name.lower().encode(), value.encode()) for name, value in names]
    assert [pair for pair in request.fields if pair in wanted] == wanted
    answer = [(b"x-z", b"1"), (b"x-y", b"2"), (b"x-z", b"3"), (b"set-cookie", b"a"), (b"set-cookie", b"b")]
    request.respond(200, b"", answer)
    response = await client.response()
    assert [
        (name.lower(), value) for name, value in response.fields if (name.lower(), value) in answer
    ] == answer


async def test_response_trailers_nobody_asked_for_are_not_sent(stage: Stage) -> None:
    """RFC 9110 section 6.5.1: without `TE: trailers` they may be dropped, and never break the framing."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    request.head(200)
    request.conn.send(data(1, b"hello"), request.conn.field_section(1, [(b"x-sum", b"1")], end=True))
    response = await client.response()
    assert (response.body, response.complete) == (b"hello", True)
    client.request("GET", "/next")
    (await origin.request(2)).respond(200, b"next")
    assert (await client.response()).body == b"next"


async def test_a_trailer_cannot_smuggle_framing_or_lines(stage: Stage) -> None:
    """RFC 9110 section 6.5.1, RFC 9113 section 8.2.1: CR LF in a trailer ends the response unfinished."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    for fields, whole in (
        ([(b"x-t", b"a\r\n\r\nHTTP/1.1 200 OK")], False),
        ([(b"content-length", b"9"), (b"transfer-encoding", b"x")], False),
        ([(b"content-length", b"9"), (b"x-fine", b"1")], True),
    ):
        client = await stage.client(proxy)
        client.request("GET", "/", fields=[("TE", "trailers")])
        request = await origin.request(len(origin.requests) + 1)
        request.head(200)
        request.data(b"body")
        await client.head()
        assert await client.chunk() == b"body"
        request.conn.send(request.conn.field_section(request.stream, fields, end=True))
        rest = await client.closed(ABSENCE) if not whole else await client.reader.readuntil(b"\r\n\r\n")
        if whole:
            assert rest.startswith(b"0\r\n")
            assert b"content-length" not in rest.lower()
        else:
            assert rest == b""


async def test_a_cut_response_to_a_1_0_client_ends_in_a_reset(stage: Stage) -> None:
    """RFC 9112 section 8: where the end of the connection ends the body, a mere end would make it look whole."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/", version="1.0")
    request = await origin.request(1)
    request.head(200)
    request.data(b"half of it")
    await client.head()
    assert await client.reader.readexactly(10) == b"half of it"
    request.reset(Code.INTERNAL_ERROR)
    with pytest.raises(ConnectionResetError):
        await client.reader.read()
