"""More than fits: bounded queues, no quadratic work, no storm of dials."""

from __future__ import annotations

import asyncio
import resource
import statistics
from typing import TYPE_CHECKING

from tests.cases.timing import SOON
from tests.support.bell import PATIENCE, pace
from tests.support.framing import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.client import Client, Response
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Conn, Request
    from tests.support.stage import Stage


async def test_a_full_queue_refuses_at_once_and_recovers(stage: Stage) -> None:
    """Case bounded-wait-queue (RFC 9110 section 15.6.4)."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    proxy = await stage.proxy(origin, "--max-conns=1", "--max-queue=5")
    warm = await stage.client(proxy)
    warm.request("GET", "/warm")
    (await origin.request(1)).respond(200)
    await warm.response()

    clients = [await stage.client(proxy) for _ in range(20)]
    for client in clients:
        client.request("POST", "/", b"x")
    answers = [asyncio.ensure_future(client.response("POST")) for client in clients]
    refused = await _first(answers, 14)
    for response in refused:
        assert (response.status, response.cause) == (503, "queue-full")
        retry_after = response.get(b"retry-after")
        assert retry_after is not None
        assert int(retry_after) >= 0
    for number in range(2, 8):
        request = await origin.request(number)
        await request.complete()
        request.respond(200, b"ran")
    statuses = sorted([(await answer).status for answer in answers])
    assert statuses == [200] * 6 + [503] * 14

    warm.request("GET", "/later")
    (await origin.request(8)).respond(200, b"later")
    assert (await warm.response()).body == b"later"


async def _first(answers: Sequence[asyncio.Future[Response]], count: int) -> list[Response]:
    """The first `count` answers."""
    done: set[asyncio.Future[Response]] = set()
    pending = set(answers)
    while len(done) < count:
        got, pending = await asyncio.wait(pending, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
        assert got, f"{len(done)} of {count} refused"
        done |= got
    return [answer.result() for answer in done]


async def test_requests_cost_the_same_with_thousands_parked(stage: Stage) -> None:
    """Case thousands-waiting-no-quadratic."""
    parked_count = 5000 if stage.engine == "c" else 1500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 2 * parked_count + 1000
    if soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(need, hard), hard))

    async def answer(request: Request) -> None:
        if request.path != b"/parked":
            request.respond(200, b"quick")

    origin = await stage.origin(answer)
    proxy = await stage.proxy(origin)
    few, _ = await _fresh(stage, proxy, 300)
    parked: list[Client] = []
    for _ in range(parked_count):
        client = await stage.client(proxy)
        client.request("GET", "/parked")
        parked.append(client)
    await origin.request(300 + parked_count, within=4 * PATIENCE)
    many, slowest = await _fresh(stage, proxy, 300)
    assert many < 3 * few + 0.5, (
        f"CPU of 300 requests: {few:.2f} s before, {many:.2f} s with {parked_count} parked"
    )
    assert slowest < SOON
    idle = proxy.cpu_seconds()
    await pace(1.0)
    assert proxy.cpu_seconds() - idle < 0.3, "CPU while nothing happens"
    for client in parked:
        client.close()
    await origin.bell.until(lambda: sum(conn.open_streams for conn in origin.connections) == 0, "cancels")


async def _fresh(stage: Stage, proxy: Proxy, count: int) -> tuple[float, float]:
    """CPU seconds that `count` requests cost the proxy, and the slowest of them."""
    client = await stage.client(proxy)
    before, times = proxy.cpu_seconds(), []
    for _ in range(count):
        started = client.time()
        assert (await client.ask("GET", "/fresh")).status == 200
        times.append(client.time() - started)
    assert statistics.median(times) < SOON
    return proxy.cpu_seconds() - before, max(times)


async def test_a_dead_origin_is_not_hammered_and_its_return_is_noticed(stage: Stage) -> None:
    """Case origin-down-no-dial-storm."""
    origin = await stage.origin()
    dials: list[float] = []

    def reset(conn: Conn) -> None:
        dials.append(conn.loop_time)
        conn.rst()

    origin.on_connect = reset
    proxy = await stage.proxy(origin, "--connect-timeout=2s")
    clients = [await stage.client(proxy) for _ in range(100)]
    started = clients[0].time()
    for client in clients:
        client.request("POST", "/", b"x")
    responses = await asyncio.gather(*(client.response("POST") for client in clients))
    assert {response.status for response in responses} <= {502, 503}
    assert all(response.complete for response in responses)
    took = clients[0].time() - started
    assert len(dials) <= 8 + 10 * took, f"{len(dials)} dials in {took:.1f} s"

    origin.on_connect = None
    late = await stage.client(proxy)
    late.request("GET", "/back")
    (await origin.request(1, within=SOON)).respond(200, b"back")
    assert (await late.response()).body == b"back"
