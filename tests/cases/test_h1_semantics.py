"""Framing, keep-alive and names on the HTTP/1.1 side (RFC 9110, RFC 9112)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import SOON
from tests.support.framing import Code, data, rst_stream

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def test_an_idle_client_connection_outlives_the_clients_pool(any_stage: Stage) -> None:
    """Case keepalive-longer-than-client-pool: 16 s, with the default settings."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("POST", "/1", b"x")
    (await origin.request(1)).respond(200, b"one")
    await client.response("POST")
    await client.silent(16.0)
    client.request("POST", "/2", b"y")
    second = await origin.request(2)
    assert await second.complete() == b"y"
    second.respond(200, b"two")
    assert (await client.response("POST")).body == b"two"


async def test_the_idle_limit_never_cuts_a_request_that_has_begun(stage: Stage) -> None:
    """Case keepalive-longer-than-client-pool: not after reading a request byte."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--client-idle-timeout=200ms")
    client = await stage.client(proxy)
    client.request("GET", "/1")
    (await origin.request(1)).respond(200, b"one")
    await client.response()
    client.send(b"G")
    await client.silent(0.6)
    client.send(b"ET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
    (await origin.request(2)).respond(200, b"two")
    assert (await client.response()).body == b"two"
    assert await client.closed() == b""  # and idle at last, it is closed


async def test_an_early_413_is_delivered_while_the_upload_goes_on(stage: Stage) -> None:
    """Case early-413-keeps-response (RFC 9112 section 9.6)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    piece = bytes(10_240)
    chunk = b"2800\r\n" + piece + b"\r\n"
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
    request = await origin.request(1)
    await request.received(len(piece))
    conn = request.conn
    conn.send(
        conn.response(1, 413, [(b"content-length", b"9")]),
        data(1, b"too large", end=True),
        rst_stream(1, Code.NO_ERROR),
    )
    response = await client.response("POST", within=SOON)
    assert (response.status, response.body, response.complete) == (413, b"too large", True)
    # The client has not noticed yet, and goes on writing.
    for _ in range(100):
        client.send(chunk)
    client.send(b"0\r\n\r\n")
    if response.closes:
        assert await client.closed() == b""
        client = await stage.client(proxy)
    client.request("GET", "/next")
    following = await origin.request(2)
    assert following.path == b"/next"
    following.respond(200, b"fine")
    assert (await client.response()).body == b"fine"


async def test_an_error_of_ours_tells_a_1_0_client_that_the_connection_stays(stage: Stage) -> None:
    """RFC 9112 section 9.3: without the word it reads until the end of the connection."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for _ in range(2):
        client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        (await origin.request(len(origin.requests) + 1)).reset(Code.INTERNAL_ERROR)
        response = await client.response()
        assert (response.status, response.get(b"connection")) == (502, b"keep-alive")


@pytest.mark.parametrize("keep_alive", [False, True])
async def test_a_1_0_client_gets_no_chunks(stage: Stage, keep_alive: bool) -> None:
    """Case http10-client-no-chunking (RFC 9112 sections 6.1 and 6.3)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request(
        "GET", "/", fields=[("Connection", "keep-alive")] if keep_alive else [], version="1.0"
    )  # fmt: skip
    request = await origin.request(1)
    request.head(200)
    request.data(b"ten bytes!", end=True)
    head = await client.head()
    assert head.all(b"transfer-encoding") == []
    assert await client.closed() == b"ten bytes!"


async def test_the_response_is_framed_one_way_only(stage: Stage) -> None:
    """Case framing-choice-chunked-or-length (RFC 9112 section 6.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/chunked")
    request = await origin.request(1)
    request.head(200)
    request.data(b"hello", end=True)
    response = await client.response()
    assert (response.chunked, response.body, response.complete) == (True, b"hello", True)

    client.request("GET", "/length")
    request = await origin.request(2)
    request.respond(200, b"hello")
    response = await client.response()
    assert (response.get(b"content-length"), response.chunked, response.body) == (b"5", False, b"hello")

    client.request("GET", "/nothing")
    request = await origin.request(3)
    request.head(200, end=True)
    response = await client.response()
    assert (response.get(b"content-length"), response.chunked, response.body) == (b"0", False, b"")

    client.request("GET", "/last")
    request = await origin.request(4)
    request.respond(200, b"same socket")
    assert (await client.response()).body == b"same socket"


async def test_the_upstream_sees_its_own_name(stage: Stage) -> None:
    """Case authority-is-upstream-host (RFC 9113 section 8.3.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, f"--upstream={origin.url}/base")
    client = await stage.client(proxy)
    client.send(b"GET /v1/m?x=1 HTTP/1.1\r\nHost: 127.0.0.1:9000\r\n\r\n")
    request = await origin.request(1)
    assert request.get(b":scheme") == b"https"
    assert request.get(b":authority") == origin.authority
    assert request.path == b"/base/v1/m?x=1"
    assert request.get(b"host") is None
    assert request.conn.sni == "localhost"
    request.respond(200)
    assert (await client.response()).status == 200


async def test_the_server_name_is_asked_for_and_checked(any_stage: Stage) -> None:
    """Case authority-is-upstream-host: SNI, when it is not the upstream's host."""
    origin = await any_stage.origin(cert=any_stage.certificates.judge)
    proxy = await any_stage.proxy(origin, "--server-name=judge.example")
    client = await any_stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    assert request.conn.sni == "judge.example"
    request.respond(200)
    assert (await client.response()).status == 200
