"""The peer's limit on open streams (RFC 9113 section 5.1.2). The scripted origin notes every breach."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE
from tests.support.framing import Code, Kind, Setting

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

TWO, ONE = ({Setting.MAX_CONCURRENT_STREAMS: limit} for limit in (2, 1))


async def test_requests_beyond_the_limit_go_to_further_connections(stage: Stage) -> None:
    """Case limit-two-five-requests, more connections allowed (RFC 9113 sections 5.1.2 and 6.5.3)."""
    origin = await stage.origin(settings=TWO)
    proxy = await stage.proxy(origin)
    clients = [await stage.client(proxy) for _ in range(5)]
    for number, client in enumerate(clients):
        client.request("POST", f"/{number}", b"x")
    await origin.request(5)
    for request in origin.requests[:]:
        await request.complete()
        request.respond(200, request.path)
    bodies = [(await client.response("POST")).body for client in clients]
    assert bodies == [b"/%d" % number for number in range(5)]
    assert len(origin.requests) == 5


async def test_requests_beyond_the_limit_wait_when_no_connection_may_be_opened(stage: Stage) -> None:
    """Case limit-two-five-requests, one connection (RFC 9113 section 5.1.2)."""
    origin = await stage.origin(settings=TWO)
    proxy = await stage.proxy(origin, "--max-conns=1")
    clients = [await stage.client(proxy) for _ in range(5)]
    for number, client in enumerate(clients):
        client.request("POST", f"/{number}", b"x")
    await origin.request(2)
    await origin.no_request(2, ABSENCE)
    for number in range(1, 6):
        request = await origin.request(number)
        await request.complete()
        request.respond(200, request.path)
    bodies = [(await client.response("POST")).body for client in clients]
    assert bodies == [b"/%d" % number for number in range(5)]
    assert len(origin.connections) == 1


async def test_a_cancelled_streams_slot_is_free_only_after_its_reset(stage: Stage) -> None:
    """Case cancel-then-reuse-slot-order."""

    async def answer(request: Request) -> None:
        if request.path.startswith(b"/kept"):
            request.respond(200, request.path)

    origin = await stage.origin(answer, settings=ONE)
    proxy = await stage.proxy(origin, "--max-conns=1")
    kept = await stage.client(proxy)
    for number in range(200):
        dropped = await stage.client(proxy)
        dropped.request("GET", f"/dropped/{number}")
        if number % 2:
            seen = len(origin.requests) + 1
            await origin.request(seen)
        dropped.close()
        response = await kept.ask("GET", f"/kept/{number}")
        assert (response.status, response.body) == (200, b"/kept/%d" % number)
        await dropped.gone()
    (conn,) = origin.connections
    resets = {frame.stream: frame for frame in conn.all(Kind.RST_STREAM)}
    streams = sorted(conn.requests)
    for stream, following in itertools.pairwise(streams):
        request = conn.requests[stream]
        if request.path.startswith(b"/dropped"):
            assert resets[stream].number == Code.CANCEL
            assert resets[stream].index < conn.all(Kind.HEADERS, following)[0].index
