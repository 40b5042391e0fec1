"""What is sent again, what never is, and with which bytes (RFC 9110 section 9.2.2, RFC 9113 section 8.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Code, goaway, rst_stream, window_update

if TYPE_CHECKING:
    from tests.support.scripted_origin import Conn
    from tests.support.stage import Stage


async def test_a_post_reset_with_refused_stream_is_sent_again(stage: Stage) -> None:
    """Case refused-stream-once (RFC 9113 section 8.7)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--log-format=json")
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"eleven byte")
    refused = await origin.request(1)
    await refused.complete()
    refused.reset(Code.REFUSED_STREAM)
    again = await origin.request(2)
    assert await again.complete() == b"eleven byte"
    assert again.fields == refused.fields
    again.respond(200, b"ok")
    response = await client.response("POST")
    assert (response.status, response.body) == (200, b"ok")
    record = await proxy.record(attempts=2)
    assert record["cause"] == "stream-refused"


@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_a_post_on_a_lost_connection_is_not_sent_again(stage: Stage, how: str) -> None:
    """Case post-lost-without-goaway (RFC 9110 section 9.2.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"once only")
    request = await origin.request(1)
    await request.complete()
    _lose(request.conn, how)
    response = await client.response("POST", within=SOON)
    assert (response.status, response.complete, response.cause) == (502, True, "connection-lost")
    await origin.no_request(1, ABSENCE)


@pytest.mark.parametrize("how", ["FIN", "RST"])
async def test_a_get_on_a_lost_connection_is_tried_once_more_and_no_more(stage: Stage, how: str) -> None:
    """Case post-lost-without-goaway, the idempotent method (RFC 9110 section 9.2.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/v1/models")
    first = await origin.request(1)
    _lose(first.conn, how)
    second = await origin.request(2)
    assert second.conn is not first.conn
    _lose(second.conn, how)
    assert (await client.response(within=SOON)).status == 502
    await origin.no_request(2, ABSENCE)


@pytest.mark.parametrize("how", ["RST_STREAM", "malformed", "broken rule"])
async def test_a_get_that_the_upstream_failed_by_itself_is_not_tried_again(stage: Stage, how: str) -> None:
    """RFC 9110 section 9.2.2 speaks of communication failures; cloudflare/pingora#979."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/v1/models")
    request = await origin.request(1)
    failures = {
        "RST_STREAM": rst_stream(request.stream, Code.INTERNAL_ERROR),
        "malformed": request.conn.response(request.stream, 200, [(b"content-length", b"x")], end=True),
        "broken rule": window_update(0, 0),
    }
    request.conn.send(failures[how])
    response = await client.response(within=SOON)
    assert (response.status, response.complete, response.closes) == (502, True, False)
    await origin.no_request(1, ABSENCE)


def _lose(conn: Conn, how: str) -> None:
    if how == "FIN":
        conn.fin(close_notify=False)
    else:
        conn.rst()


async def test_a_body_beyond_the_limit_is_never_sent_in_part(stage: Stage) -> None:
    """Case replay-buffer-overflow-no-partial."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--retry-body-limit=1024", "--log-format=json")
    client = await stage.client(proxy)
    large = bytes(range(256)) * 16
    client.request("POST", "/large", large)
    request = await origin.request(1)
    assert await request.complete() == large
    request.conn.fin(goaway(0))
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "copy-not-kept")
    await origin.no_request(1, ABSENCE)
    await proxy.record(cause="copy-not-kept")

    client = await stage.client(proxy)
    client.request("POST", "/exact", large[:1024])
    request = await origin.request(2)
    assert await request.complete() == large[:1024]
    request.conn.fin(goaway(0))
    again = await origin.request(3)
    assert await again.complete() == large[:1024]
    again.respond(200, b"ok")
    assert (await client.response("POST")).status == 200


async def test_a_connection_closed_while_idle_is_not_used_again(stage: Stage) -> None:
    """Case stale-idle-connection."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/1", b"x")
    first = await origin.request(1)
    await first.complete()
    first.respond(200, b"one")
    assert (await client.response("POST")).body == b"one"
    first.conn.fin()
    await first.conn.closed(within=SOON)
    frames = len(first.conn.frames)

    client.request("POST", "/2", b"y")
    second = await origin.request(2)
    assert await second.complete() == b"y"
    assert second.conn is not first.conn
    second.respond(200, b"two")
    assert (await client.response("POST")).body == b"two"
    assert len(first.conn.frames) == frames
