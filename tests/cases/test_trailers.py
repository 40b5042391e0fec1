"""Trailer fields (RFC 9110 section 6.5, RFC 9113 section 8.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.framing import Code, data

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def test_trailers_after_a_sized_body_are_dropped(stage: Stage) -> None:
    """Case trailers-with-content-length, sized (RFC 9110 section 6.5)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    request.head(200, [(b"content-length", b"5")])
    request.conn.send(data(1, b"hello"), request.conn.field_section(1, [(b"x-sum", b"1")], end=True))
    response = await client.response()
    assert (response.get(b"content-length"), response.body, response.chunked) == (b"5", b"hello", False)
    client.request("GET", "/next")
    (await origin.request(2)).respond(200, b"next")
    assert (await client.response()).body == b"next"


async def test_trailers_after_a_chunked_body_follow_the_last_chunk(stage: Stage) -> None:
    """Case trailers-with-content-length, chunked (RFC 9112 section 7.1.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/", fields=[("TE", "trailers")])
    request = await origin.request(1)
    assert request.get(b"te") == b"trailers"
    request.head(200)
    request.conn.send(data(1, b"hello"), request.conn.field_section(1, [(b"x-sum", b"1")], end=True))
    response = await client.response()
    assert (response.chunked, response.body, response.complete) == (True, b"hello", True)
    assert response.trailers == [(b"x-sum", b"1")]
    client.request("GET", "/next")
    (await origin.request(2)).respond(200, b"next")
    assert (await client.response()).body == b"next"


@pytest.mark.parametrize("fault", ["no END_STREAM", "pseudo-field"])
async def test_malformed_trailers_end_their_response_only(stage: Stage, fault: str) -> None:
    """Case trailers-without-end-stream (RFC 9113 sections 8.1 and 8.1.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    faulty, other = await stage.client(proxy), await stage.client(proxy)
    faulty.request("POST", "/faulty", b"x")
    request = await origin.request(1)
    await request.complete()
    other.request("POST", "/other", b"x")
    sound = await origin.request(2)
    conn = request.conn
    assert sound.conn is conn
    request.head(200)
    request.data(b"ab")
    assert (await faulty.head("POST")).status == 200
    assert await faulty.chunk() == b"ab"
    if fault == "no END_STREAM":
        conn.send(conn.field_section(1, [(b"x-t", b"1")]))
        assert await request.was_reset() == Code.PROTOCOL_ERROR
    else:
        conn.send(conn.field_section(1, [(b":status", b"200"), (b"x-t", b"1")], end=True))
    assert await faulty.closed() == b""
    sound.respond(200, b"fine")
    assert (await other.response("POST")).body == b"fine"
    assert len(origin.connections) == 1
