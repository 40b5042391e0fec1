"""Rotation, GOAWAY after each response, PING against a relay that cuts."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from h2ping.lab.relay import Relay
from tests.support.bell import pace
from tests.support.framing import goaway

if TYPE_CHECKING:
    from tests.contract.conftest import Launcher
    from tests.support.client import Client
    from tests.support.scripted_origin import Conn, Request


async def _echo(request: Request) -> None:
    request.respond(200, await request.complete())


async def _two_at_once(clients: list[Client]) -> None:
    for client in clients:
        client.request("POST", "/", b"x")
    for client in clients:
        assert (await client.response("POST")).status == 200


async def test_a_connection_is_retired_at_its_age(gym: Launcher) -> None:
    """400 ms: two at once use one connection, one 700 ms later another."""
    origin = await gym.stage.origin(_echo)
    proxy = await gym.start(origin, "-max-conn-age", "400ms")
    clients = [await gym.stage.client(proxy) for _ in range(2)]
    await _two_at_once(clients)
    first = origin.requests[0].conn
    assert origin.requests[1].conn is first
    await clients[0].silent(0.7)
    assert (await clients[0].ask("POST", "/", b"y")).status == 200
    assert origin.requests[2].conn is not first
    line = await proxy.logged("retired upstream connections after")
    assert "new requests use a fresh connection" in line


async def test_age_0_never_retires(gym: Launcher) -> None:
    origin = await gym.stage.origin(_echo)
    proxy = await gym.start(origin, "-max-conn-age", "0")
    clients = [await gym.stage.client(proxy) for _ in range(2)]
    await _two_at_once(clients)
    await clients[0].silent(0.7)
    assert (await clients[0].ask("POST", "/", b"y")).status == 200
    assert len({request.conn for request in origin.requests}) == 1


async def test_a_request_in_flight_across_a_rotation_finishes_on_the_old_connection(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, "-max-conn-age", "300ms")
    slow, quick = [await gym.stage.client(proxy) for _ in range(2)]
    slow.request("POST", "/slow", b"x")
    in_flight = await origin.request(1)
    await proxy.logged("retired upstream connections after")
    quick.request("POST", "/quick", b"x")
    fresh = await origin.request(2)
    assert fresh.conn is not in_flight.conn
    fresh.respond(200, b"fresh")
    assert (await quick.response("POST")).body == b"fresh"
    in_flight.respond(200, b"old")
    assert (await slow.response("POST")).body == b"old"


async def test_goaway_after_each_response_fails_none_of_200_requests(gym: Launcher) -> None:
    """2 ms apart, 1 KiB each."""

    last: dict[Conn, int] = {}

    async def answer_and_leave(request: Request) -> None:
        conn = request.conn
        if request.stream > last.get(conn, request.stream):
            return  # came after GOAWAY, which refused it
        body = await request.complete()
        request.respond(200, body)
        if conn not in last:
            last[conn] = max(conn.requests)
            conn.send(goaway(last[conn]))
        if all(other.answered for other in conn.requests.values() if other.stream <= last[conn]):
            conn.fin()

    origin = await gym.stage.origin(answer_and_leave)
    proxy = await gym.start(origin)
    body = bytes(1024)
    waiting = []
    for _ in range(200):
        client = await gym.stage.client(proxy)
        client.request("POST", "/", body)
        waiting.append(asyncio.ensure_future(client.response("POST")))
        await pace(0.002)
    responses = await asyncio.gather(*waiting)
    assert [response.status for response in responses] == [200] * 200
    assert all(response.body == body for response in responses)
    assert sum(request.answered for request in origin.requests) == 200


IDLE, SILENCE = 0.2, 0.6
"""The relay's cut and the answer's delay, as the drop-in's own tests have them."""


async def _late(request: Request) -> None:
    await request.complete()
    await pace(SILENCE)
    request.respond(200, b"late")


async def test_with_pings_a_silent_call_outlives_the_relay(gym: Launcher) -> None:
    origin = await gym.stage.origin(_late)
    async with Relay(origin.port, idle_cut=IDLE) as relay:
        proxy = await gym.start(relay.url, "-ping-interval", "50ms")
        response = await gym.stage.ask(proxy, "POST", "/", b"judge")
        assert (response.status, response.body) == (200, b"late")


async def test_without_pings_the_relay_cuts_a_silent_call(gym: Launcher) -> None:
    """The control that proves the relay cuts."""
    origin = await gym.stage.origin(_late)
    async with Relay(origin.port, idle_cut=IDLE) as relay:
        proxy = await gym.start(relay.url, "-ping-interval", "0s")
        response = await gym.stage.ask(proxy, "POST", "/", b"judge")
        assert response.status == 502
        assert relay.cuts == 1
        assert len(origin.requests) == 1


async def test_pings_are_sent_while_a_request_waits(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin, "-ping-interval", "200ms")
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    conn = request.conn
    await conn.bell.until(lambda: len(conn.pings()) >= 4, "four PINGs")
    gaps = [later.at - earlier.at for earlier, later in itertools.pairwise(conn.pings())]
    assert min(gaps) > 0.15, "not more often than the interval, less its jitter"
    request.respond(200)
    assert (await client.response("POST")).status == 200


async def test_an_unanswered_ping_is_a_502(gym: Launcher) -> None:
    origin = await gym.stage.origin(ack_pings=False)
    proxy = await gym.start(origin, "-ping-interval", "300ms", "-ping-timeout", "300ms")
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    response = await client.response("POST")
    assert response.status == 502
    assert response.body.startswith(f"{gym.program}: upstream error:".encode())
    assert response.head_at - request.at > 0.5
    await request.conn.closed()
