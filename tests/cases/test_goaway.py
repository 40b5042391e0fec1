"""GOAWAY: what was refused is sent again, what was taken is finished (RFC 9113 section 6.8)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Kind, data, goaway, ping

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def test_a_post_refused_by_goaway_is_sent_again_whole(stage: Stage) -> None:
    """Case goaway-refused-post-resent (RFC 9113 sections 6.8 and 8.7)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"hello", [("X-Run", "7")])
    refused = await origin.request(1)
    assert await refused.complete() == b"hello"
    refused.conn.fin(goaway(0))

    again = await origin.request(2)
    assert again.conn is not refused.conn
    assert await again.complete() == b"hello"
    assert again.fields == refused.fields
    again.respond(200, b"ok")
    response = await client.response("POST")
    assert (response.status, response.body, response.complete) == (200, b"ok", True)
    assert len(origin.requests) == 2


async def test_streams_at_or_below_the_last_id_finish_on_the_old_connection(stage: Stage) -> None:
    """Case goaway-accepted-streams-finish (RFC 9113 section 6.8)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    clients = []
    for number in range(3):
        clients.append(await stage.client(proxy))
        clients[-1].request("POST", f"/{number}", b"x")
        await (await origin.request(number + 1)).complete()
    old = origin.requests[0].conn
    assert [request.stream for request in origin.requests] == [1, 3, 5]
    assert all(request.conn is old for request in origin.requests)
    old.send(goaway(3))

    # The third goes again at once: nothing on the old connection has been answered yet.
    again = await origin.request(4, within=SOON)
    assert again.path == b"/2"
    assert again.conn is not old
    again.respond(200, b"new")

    old.send(ping(b"\1\2\3\4\5\6\7\x08"))
    assert (await old.saw(Kind.PING, ack=True)).payload == b"\1\2\3\4\5\6\7\x08"
    body = bytes(range(256)) * 274  # 70,144 bytes
    for request in origin.requests[:2]:
        request.head(200)
        await request.pour(body)
    for client in clients[:2]:
        response = await client.response("POST")
        assert (response.status, response.complete) == (200, True)
        assert response.body == body
    assert (await clients[2].response("POST")).body == b"new"
    await old.closed(within=SOON)


async def test_window_updates_go_on_after_goaway(stage: Stage) -> None:
    """Case goaway-accepted-streams-finish, with a response larger than any window the proxy grants."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    request.conn.send(goaway(1))
    request.head(200)
    body = bytes(1 << 20) * (1 + (2 * request.conn.initial_send_window >> 20))
    _, response = await asyncio.gather(request.pour(body), client.response())
    assert response.complete
    assert response.body == body


async def test_streams_above_the_last_id_go_elsewhere_while_the_socket_stays_open(stage: Stage) -> None:
    """Case goaway-batch-above-last-id (RFC 9113 section 6.8)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    clients = []
    for number in range(8):
        clients.append(await stage.client(proxy))
        clients[-1].request("POST", f"/{number}", b"x")
        await (await origin.request(number + 1)).complete()
    old = origin.requests[0].conn
    assert [request.stream for request in origin.requests] == [1, 3, 5, 7, 9, 11, 13, 15]
    old.send(goaway(9))

    for number in range(9, 12):
        request = await origin.request(number, within=SOON)
        assert request.conn is not old
        request.respond(200, request.path)
    for request in origin.requests[:5]:
        request.respond(200, request.path)
    bodies = [(await client.response("POST")).body for client in clients]
    assert bodies == [b"/%d" % number for number in range(8)]
    await origin.no_request(11, ABSENCE)


async def test_goaway_before_fin_in_the_same_read_is_honoured(stage: Stage) -> None:
    """Case goaway-and-fin-in-one-read, refused (RFC 9113 section 6.8)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"judge this")
    refused = await origin.request(1)
    await refused.complete()
    refused.conn.fin(goaway(0))
    again = await origin.request(2)
    assert await again.complete() == b"judge this"
    again.respond(200, b"ok")
    assert (await client.response("POST")).status == 200


async def test_goaway_that_covers_the_post_and_fin_is_a_502_without_a_second_run(stage: Stage) -> None:
    """Case goaway-and-fin-in-one-read, taken (RFC 9110 section 9.2.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"judge this")
    taken = await origin.request(1)
    await taken.complete()
    taken.conn.fin(goaway(1))
    response = await client.response("POST", within=SOON)
    assert (response.status, response.complete, response.cause) == (502, True, "connection-lost")
    await origin.no_request(1, ABSENCE)


@pytest.mark.parametrize("begun", [True, False], ids=["after the head", "before the head"])
async def test_goaway_then_fin_never_makes_a_cut_response_look_whole(stage: Stage, begun: bool) -> None:
    """Case goaway-then-partial-response (RFC 9113 section 6.8, RFC 9112 section 8)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"x")
    request = await origin.request(1)
    await request.complete()
    request.conn.send(goaway(1))
    if begun:
        request.conn.send(request.conn.response(1, 200), data(1, b"abc"))
        response = await client.head("POST")
        assert response.status == 200
        assert await client.chunk() == b"abc"
        request.conn.fin()
        assert await client.closed() == b""
    else:
        request.conn.fin()
        response = await client.response("POST", within=SOON)
        assert (response.status, response.complete) == (502, True)
    await origin.no_request(1, ABSENCE)


async def test_a_connection_past_its_age_keeps_its_streams_and_takes_no_new_one(stage: Stage) -> None:
    """Case age-rotation-spares-inflight."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-conn-age=300ms", "--ping-interval=100ms")
    client_a, client_b = await stage.client(proxy), await stage.client(proxy)
    client_a.request("POST", "/a", b"slow")
    request_a = await origin.request(1)
    await proxy.logged("retired upstream connections after")
    old = request_a.conn
    client_b.request("POST", "/b", b"quick")
    request_b = await origin.request(2)
    assert request_b.conn is not old
    request_b.respond(200, b"b")
    assert (await client_b.response("POST")).body == b"b"

    await old.saw(Kind.PING, ack=False, since=len(old.frames))
    request_a.respond(200, b"a")
    response = await client_a.response("POST")
    assert (response.status, response.body) == (200, b"a")
    await old.closed(within=SOON)
    assert len(old.requests) == 1
