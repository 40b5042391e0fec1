"""Floods over real sockets: the code on the wire, the cause, the counters, and that the next request works.

What is counted, one by one: tests/wire/test_limits.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import SOON
from tests.support.framing import Code, Kind, data, frame, headers, ping, settings, window_update

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.scripted_origin import Conn
    from tests.support.stage import Stage

LOST = 'h2ping_upstream_connections_lost_total{instance="",cause="flood"} 1'
FAILED = 'h2ping_request_failures_total{instance="",cause="flood"} 1'

FLOODS: dict[str, Callable[[Conn], bytes]] = {
    "RST_STREAM of an older stream": lambda _: frame(Kind.RST_STREAM, 0, 1, bytes(4)) * 500,
    "WINDOW_UPDATE": lambda _: window_update(3, 1) * 500,
    "WINDOW_UPDATE of the connection": lambda _: window_update(0, 1) * 500,
    "SETTINGS": lambda _: settings({}) * 500,
    "PING": lambda _: ping(bytes(8)) * 500,
    "empty DATA": lambda conn: conn.response(3, 200) + data(3, b"") * 500,
    "DATA of one byte": lambda conn: conn.response(3, 200) + data(3, b"x") * 500,
    "heads for nobody": lambda _: headers(1, b"\x88") * 500,
    "unknown frames": lambda _: frame(0xBE, 0, 0, b"") * 500,
}
"""What is sent again and again while stream 3 is open and stream 1 is over."""


async def _pour(conn: Conn, batch: bytes, more: bytes) -> None:
    """Batch after batch, the proxy reads and answers in between, until it closes."""
    conn.raw(batch)
    for _ in range(40):
        await conn.bell.until(lambda: not conn.write_full or conn.is_closed, "room to flood")
        if conn.is_closed:
            return
        conn.raw(more)


@pytest.mark.parametrize("flood", FLOODS)
async def test_a_flood_ends_its_connection_and_the_next_request_works(stage: Stage, flood: str) -> None:
    """Case ping-settings-flood (RFC 9113 section 10.5)."""
    origin = await stage.origin()
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/first")
    first = await origin.request(1)
    first.respond(200)
    assert (await client.response()).status == 200
    client.request("POST", "/", b"x")
    request = await origin.request(2)
    await request.complete()
    conn = request.conn
    assert conn is first.conn
    batch = FLOODS[flood](conn)
    await _pour(conn, batch, batch[-(len(batch) // 500) * 499 :])
    assert (await conn.saw(Kind.GOAWAY)).goaway[1] == Code.ENHANCE_YOUR_CALM
    if "DATA" in flood:  # the head was on its way: the response is cut
        head = await client.head("POST")
        assert head.status == 200
        await client.closed()
    else:
        response = await client.response("POST", within=SOON)
        assert (response.status, response.cause) == (502, "flood")
    await conn.closed()
    page = await proxy.page("/metrics")
    assert LOST in page
    assert FAILED in page
    assert ": flood: " in await proxy.logged("lost connection 1 to")
    fresh = await stage.client(proxy)
    fresh.request("GET", "/next")
    following = await origin.request(3)
    assert following.conn is not conn
    following.respond(200, b"next")
    assert (await fresh.response()).body == b"next"


@pytest.mark.parametrize(
    ("attack", "cause", "code"),
    [
        (ping(bytes(8)) * 10_000, "flood", Code.ENHANCE_YOUR_CALM),
        (data(0, b"x"), "protocol-error", Code.PROTOCOL_ERROR),
    ],
    ids=["flood", "broken rule"],
)
async def test_a_connection_that_breaks_while_idle_is_logged_and_counted(
    stage: Stage, attack: bytes, cause: str, code: int
) -> None:
    """No request tells of it."""
    origin = await stage.origin()
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/first")
    request = await origin.request(1)
    request.respond(200)
    await client.response()
    request.conn.raw(attack)
    assert (await request.conn.saw(Kind.GOAWAY)).goaway[1] == code
    await request.conn.closed()
    assert f"WARNING lost connection 1 to {origin.url}: {cause}: " in await proxy.logged("lost connection 1")
    lost = f'h2ping_upstream_connections_lost_total{{instance="",cause="{cause}"}} 1'
    page = await proxy.page("/metrics")
    assert lost in page
    assert "h2ping_request_failures_total" not in page
    client.request("GET", "/next")
    (await origin.request(2)).respond(200, b"next")
    assert (await client.response()).body == b"next"


@pytest.mark.parametrize("bomb", [True, False], ids=["HPACK bomb", "header list"])
async def test_a_head_above_the_limit_costs_its_stream_only(stage: Stage, bomb: bool) -> None:
    """RFC 7541 section 7.3, RFC 9113 section 10.5.1: 300 bytes that stand for a megabyte, and a long list as it is."""
    origin = await stage.origin()
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    victim, other = await stage.client(proxy), await stage.client(proxy)
    other.request("GET", "/other")
    sound = await origin.request(1)
    conn = sound.conn
    victim.request("GET", "/")
    request = await origin.request(2)
    assert request.conn is conn
    if bomb:
        entry = b"\x40\x01a" + b"\x7f\xa1\x1e" + b"b" * 4000  # 4000 = 127 + 0x21 + 0x1e * 128
        conn.raw(headers(request.stream, b"\x88" + entry + b"\xbe" * 300))
    else:
        conn.send(conn.response(request.stream, 200, [(b"x-%d" % n, b"v" * 2000) for n in range(40)]))
    response = await victim.response(within=SOON)
    assert (response.status, response.cause) == (502, "response-head-too-large")
    assert await request.was_reset() == Code.PROTOCOL_ERROR
    failed = 'h2ping_request_failures_total{instance="",cause="response-head-too-large"} 1'
    assert failed in await proxy.page("/metrics")
    conn.send(headers(sound.stream, b"\x88", end=True))
    assert (await other.response()).status == 200
    victim.request("GET", "/next")
    following = await origin.request(3)
    assert following.conn is conn
    conn.send(headers(following.stream, b"\x88", end=True))
    assert (await victim.response()).status == 200
