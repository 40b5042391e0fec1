"""PING: what keeps a waiting connection alive, and what it must not do (RFC 9113 section 6.7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from h2ping.lab.relay import Relay
from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Code, Kind, Setting, goaway, ping, window_update

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

SILENCE = 2.0
CUT = 0.9
"""The relay cuts after this much silence; PINGs go every 100 ms."""
EIGHT = b"\1\2\3\4\5\6\7\x08"


async def test_pings_carry_a_silent_request_past_the_idle_cut(stage: Stage) -> None:
    """Case ping-while-waiting-first-byte (RFC 9113 section 6.7)."""
    origin = await stage.origin()
    async with Relay(origin.port, idle_cut=CUT) as relay:
        proxy = await stage.proxy(relay.url, "--ping-interval=100ms")
        client = await stage.client(proxy)
        client.request("POST", "/v1", b"judge")
        request = await origin.request(1)
        conn = request.conn
        await origin.bell.until(
            lambda: any(p.at > request.at + SILENCE for p in conn.pings()), "PINGs through the silence"
        )
        pings = conn.pings()
        assert all(len(frame.payload) == 8 and frame.stream == 0 for frame in pings)
        assert len(pings) >= SILENCE / CUT
        request.respond(200, b"late")
        assert (await client.response("POST")).body == b"late"
        assert relay.cuts == 0


async def test_without_pings_the_idle_cut_ends_the_request(stage: Stage) -> None:
    """Case ping-while-waiting-first-byte, the control: the relay does cut."""
    origin = await stage.origin()
    async with Relay(origin.port, idle_cut=CUT) as relay:
        proxy = await stage.proxy(relay.url, "--ping-interval=0")
        client = await stage.client(proxy)
        client.request("POST", "/v1", b"judge")
        request = await origin.request(1)
        response = await client.response("POST")
        assert (response.status, response.cause) == (502, "connection-lost")
        assert relay.cuts == 1
        assert not request.conn.pings()


async def test_a_ping_that_cannot_leave_still_has_its_deadline(stage: Stage) -> None:
    """Case ping-deadline-when-write-blocked."""
    origin = await stage.origin(
        receive_buffer_bytes=65536,
        settings={Setting.MAX_CONCURRENT_STREAMS: 128, Setting.INITIAL_WINDOW_SIZE: 2**31 - 1},
    )
    proxy = await stage.proxy(origin, "--ping-interval=200ms", "--ping-timeout=200ms")
    client = await stage.client(proxy)
    body = bytes(8 << 20)
    client.request("POST", "/v1", body[:1000])
    first = await origin.request(1)
    first.conn.send(window_update(0, 2**31 - 1 - 65535))
    await first.complete()
    first.respond(200, b"warm")
    await client.response("POST")

    client.request("POST", "/v1", body)
    request = await origin.request(2)
    request.conn.stop_reading()
    stopped = client.time()
    response = await client.response("POST")
    assert (response.status, response.cause) == (502, "ping-timeout")
    assert response.head_at - stopped < 2 * SOON
    again = await stage.client(proxy)
    again.request("GET", "/")
    fresh = await origin.request(3)
    assert fresh.conn is not request.conn
    fresh.respond(200, b"fresh")
    assert (await again.response()).body == b"fresh"


async def test_no_ping_is_sent_while_no_stream_is_open(stage: Stage) -> None:
    """Case no-ping-when-no-streams."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--ping-interval=100ms")
    client = await stage.client(proxy)
    client.request("GET", "/1")
    first = await origin.request(1)
    first.respond(200, b"1")
    await client.response()
    conn = first.conn
    await conn.saw_none(Kind.PING, 1.0, since=len(conn.frames), ack=False)
    client.request("GET", "/2")
    second = await origin.request(2)
    assert second.conn is conn
    await conn.saw(Kind.PING, ack=False, within=SOON)
    second.respond(200, b"2")
    assert (await client.response()).body == b"2"


async def test_the_peers_ping_is_answered_while_our_window_is_zero(stage: Stage) -> None:
    """Case answer-peer-ping-in-any-state (a) (RFC 9113 section 6.7)."""
    origin = await stage.origin(settings={Setting.INITIAL_WINDOW_SIZE: 0})
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"held back")
    request = await origin.request(1)
    request.conn.send(ping(EIGHT))
    assert (await request.conn.saw(Kind.PING, ack=True, within=SOON)).payload == EIGHT
    assert not request.body
    request.conn.send(window_update(request.stream, 100))
    await _answer(request)
    assert (await client.response("POST")).body == b"held back"


async def test_the_peers_ping_is_answered_after_its_goaway(stage: Stage) -> None:
    """Case answer-peer-ping-in-any-state (b)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"body")
    request = await origin.request(1)
    request.conn.send(goaway(1))
    request.conn.send(ping(EIGHT))
    assert (await request.conn.saw(Kind.PING, ack=True, within=SOON)).payload == EIGHT
    await _answer(request)
    assert (await client.response("POST")).body == b"body"


async def test_the_peers_ping_is_answered_after_we_retired_the_connection(stage: Stage) -> None:
    """Case answer-peer-ping-in-any-state (c)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-conn-age=200ms")
    client = await stage.client(proxy)
    client.request("POST", "/", b"body")
    request = await origin.request(1)
    await proxy.logged("retired upstream connections after")
    request.conn.send(ping(EIGHT))
    assert (await request.conn.saw(Kind.PING, ack=True, within=SOON)).payload == EIGHT
    await _answer(request)
    assert (await client.response("POST")).body == b"body"


async def _answer(request: Request) -> None:
    request.respond(200, await request.complete())


async def test_a_balancers_reset_is_told_with_its_code_and_time(stage: Stage) -> None:
    """Case ping-does-not-move-alb-idle-timer."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--ping-interval=100ms", "--log-format=json")
    client = await stage.client(proxy)
    client.request("POST", "/v1", b"judge")
    request = await origin.request(1)
    await request.conn.saw(Kind.PING, ack=False)
    request.reset(Code.INTERNAL_ERROR)
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "stream-reset")
    await origin.no_request(1, ABSENCE)
    record = await proxy.record(cause="stream-reset")
    assert record["code"] == "INTERNAL_ERROR"
    assert record["elapsed_ms"] >= 80
    assert len([r for r in proxy.records() if r["request_id"] == record["request_id"]]) == 1


async def test_a_request_after_a_pause_does_not_wait_for_a_ping(stage: Stage) -> None:
    """Case request-after-idle-not-held-by-ping: no PING is acknowledged before the answer is there."""
    origin = await stage.origin(ack_pings=False)
    proxy = await stage.proxy(origin, "--ping-interval=100ms")
    client = await stage.client(proxy)
    client.request("GET", "/1")
    first = await origin.request(1)
    first.respond(200, b"1")
    await client.response()
    await client.silent(0.5)
    client.request("GET", "/2")
    second = await origin.request(2, within=SOON)
    assert second.conn is first.conn
    second.respond(200, b"2")
    assert (await client.response(within=SOON)).body == b"2"
