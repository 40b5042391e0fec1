"""Responses of the 1xx class (RFC 9110 section 15.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.timing import SOON
from tests.support.client import request_bytes
from tests.support.framing import data

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage


def _early_hints_then_x(request: Request) -> None:
    conn = request.conn
    conn.send(
        conn.response(request.stream, 103, [(b"link", b"</s.css>; rel=preload")]),
        conn.response(request.stream, 200, [(b"content-length", b"1")]),
        data(request.stream, b"x", end=True),
    )


async def test_an_interim_103_is_forwarded_and_not_final(stage: Stage) -> None:
    """Case interim-103-is-not-final, HTTP/1.1 (RFC 9110 section 15.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/")
    _early_hints_then_x(await origin.request(1))
    response = await client.response()
    assert [(status, fields) for status, fields in response.interims] == [
        (103, [(b"link", b"</s.css>; rel=preload")])
    ]
    assert (response.status, response.body) == (200, b"x")
    client.request("GET", "/next")
    (await origin.request(2)).respond(200, b"next")
    assert (await client.response()).body == b"next"


async def test_a_1_0_client_gets_no_interim_response(stage: Stage) -> None:
    """Case interim-103-is-not-final, HTTP/1.0."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/", version="1.0")
    _early_hints_then_x(await origin.request(1))
    response = await client.response()
    assert (response.interims, response.status, response.body) == ([], 200, b"x")


async def test_expect_100_continue_is_answered_here(stage: Stage) -> None:
    """Case expect-100-answered-locally (RFC 9110 section 10.1.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(request_bytes("POST", "/", None, [("Content-Length", "2000"), ("Expect", "100-continue")]))
    assert await client.interim(within=SOON) == 100
    client.send(bytes(2000))
    request = await origin.request(1)
    assert await request.complete() == bytes(2000)
    assert request.get(b"expect") is None
    request.respond(200, b"done")
    response = await client.response("POST")
    assert (response.interims, response.status, response.body) == ([], 200, b"done")
