"""More than fits: bounded queues, no quadratic work, no storm of dials."""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
from collections import deque
from typing import TYPE_CHECKING

from tests.cases.timing import SOON
from tests.support.bell import PATIENCE, pace
from tests.support.framing import Setting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.client import Client, Response
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Conn, Origin, Request
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


ROUNDS = 5
ROUND_REQUESTS = 100
DEARER = 1.5
"""A rescan of all that wait would make ten times as many ten times as dear, or the half of it."""


async def test_requests_cost_the_same_with_thousands_parked(stage: Stage) -> None:
    """Case thousands-waiting-no-quadratic: CPU beside ten times as many, while parked ones end and new ones come."""
    most = 5000 if stage.engine == "c" else 1500
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = 3 * most + 1000
    if soft < need:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(need, hard), hard))
    few, many = [await _Lot.of(stage, count) for count in (most // 10, most)]
    for lot in (few, many):
        await lot.churn(20)
    costs = [(await few.churn(ROUND_REQUESTS), await many.churn(ROUND_REQUESTS)) for _ in range(ROUNDS)]
    ratio = statistics.median(there / here for here, there in costs)
    assert ratio <= DEARER, f"CPU seconds beside {most // 10} and beside {most} parked: {costs}"
    assert many.slowest < SOON
    idle = many.proxy.cpu_seconds()
    await pace(1.0)
    assert many.proxy.cpu_seconds() - idle < 0.3, "CPU while nothing happens"
    for lot in (few, many):
        for client in lot.clients:
            client.close()
        await lot.origin.bell.until(lot.is_empty, "cancels")


class _Lot:
    """A proxy with so many requests that wait for their answers, the oldest first."""

    def __init__(self, stage: Stage, origin: Origin, proxy: Proxy) -> None:
        self.stage, self.origin, self.proxy = stage, origin, proxy
        self.clients: deque[Client] = deque()
        self.waiting: dict[bytes, Request] = {}
        self.parked = 0
        self.slowest = 0.0
        self.fresh: Client

    @classmethod
    async def of(cls, stage: Stage, count: int) -> _Lot:
        async def answer(request: Request) -> None:
            if request.path == b"/fresh":
                request.respond(200, b"quick")
            else:
                lot.waiting[request.path] = request

        origin = await stage.origin(answer)
        lot = cls(stage, origin, await stage.proxy(origin))
        lot.fresh = await stage.client(lot.proxy)
        for _ in range(count):
            lot.park(await stage.client(lot.proxy))
        await origin.bell.until(lambda: len(lot.waiting) == count, "parked requests", 4 * PATIENCE)
        return lot

    def park(self, client: Client) -> None:
        client.request("GET", f"/{self.parked}")
        self.parked += 1
        self.clients.append(client)

    async def churn(self, count: int) -> float:
        """CPU seconds for `count` quick requests, with as many parked ones that end and that begin."""
        before = self.proxy.cpu_seconds()
        for _ in range(count):
            started = self.fresh.time()
            assert (await self.fresh.ask("GET", "/fresh")).status == 200
            self.slowest = max(self.slowest, self.fresh.time() - started)
            oldest = self.clients.popleft()
            path = b"/%d" % (self.parked - len(self.clients) - 1)
            await self.origin.bell.until(lambda path=path: path in self.waiting, "parked request")  # type: ignore[misc]
            self.waiting.pop(path).respond(200, path)
            assert (await oldest.response()).body == path
            self.park(oldest)
        return self.proxy.cpu_seconds() - before

    def is_empty(self) -> bool:
        return sum(conn.open_streams for conn in self.origin.connections) == 0


async def test_a_cold_burst_dials_no_more_connections_than_it_fills(stage: Stage) -> None:
    """docs/performance.md: 300 requests at once, 16 to a connection, none before them."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    clients = [await stage.client(proxy) for _ in range(300)]
    for client in clients:
        client.request("POST", "/", b"x")
    await origin.request(300)
    for request in origin.requests:
        await request.complete()
    assert len(origin.connections) == 19
    assert json.loads(await proxy.page("/connections"))["instances"][0]["dialled"] == 19
    for request in origin.requests:
        request.respond(200)
    assert {(await client.response("POST")).status for client in clients} == {200}
    assert len(origin.connections) == 19


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
