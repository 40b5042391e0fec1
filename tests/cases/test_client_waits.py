"""Clients that wait for room, for a stream, for their own socket; and what happens to them when it ends."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Setting

if TYPE_CHECKING:
    from tests.support.client import Client, Response
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Origin
    from tests.support.stage import Stage


async def _held_response(stage: Stage, proxy: Proxy, origin: Origin) -> tuple[Client, Response]:
    """A response that is complete at the proxy while its client has read nothing but the head."""
    client = await stage.client(proxy, receive_buffer_bytes=8192)
    client.request("GET", "/")
    request = await origin.request(len(origin.requests) + 1)
    request.head(200)
    response = await client.head()
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    pouring = asyncio.ensure_future(request.pour(bytes(64 << 20), end=False))
    await request.conn.standstill(0.5)
    pouring.cancel()
    request.data(b"", end=True)
    return client, response


@pytest.mark.parametrize("how", ["grace", "second signal"])
async def test_a_response_that_nobody_reads_ends_with_the_grace_and_is_counted(
    stage: Stage, how: str
) -> None:
    """The launcher waits for the grace and not for a reader that sleeps."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--shutdown-grace=" + ("700ms" if how == "grace" else "60s"))
    client, _ = await _held_response(stage, proxy, origin)
    stopped = asyncio.ensure_future(proxy.stop())
    if how != "grace":
        await proxy.logged("shutdown requested")
        proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("graceful shutdown incomplete: ", within=SOON)
    assert await asyncio.wait_for(stopped, SOON) == 0
    assert "1 request was cut" in proxy.log
    await client.gone()


async def _full_memory(stage: Stage, proxy: Proxy, origin: Origin) -> Client:
    """A request whose kept body fills what bodies have of 2 MiB, and waits for its answer."""
    client = await stage.client(proxy)
    client.request("POST", "/full", bytes(1_750_000))
    await (await origin.request(1)).complete()
    return client


async def test_clients_that_leave_while_they_wait_for_memory_do_not_get_it(stage: Stage) -> None:
    """Back-pressure (RFC 9110 section 7.6 leaves it to us): their place in the queue goes to those who stayed."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-memory=2MiB", "--memory-pressure=keep")
    full = await _full_memory(stage, proxy, origin)
    crowd = [await stage.client(proxy) for _ in range(9)]
    for number, client in enumerate(crowd):
        client.request("POST", f"/{number}", bytes(300_000))
    await origin.no_request(1, ABSENCE)
    for client in crowd[:8]:
        client.rst()
    origin.requests[0].respond(200, b"full")
    assert (await full.response("POST")).body == b"full"
    last = await origin.bell.until(
        lambda: next((each for each in origin.requests if each.path == b"/8"), None), "the one who stayed"
    )
    assert len(await last.complete()) == 300_000
    last.respond(200, b"stayed")
    assert (await crowd[8].response("POST")).body == b"stayed"
    assert not [each for each in origin.requests if each.ended and each.path not in (b"/full", b"/8")]
    books = json.loads(await proxy.page("/connections"))
    assert (books["memory"]["used"], books["memory"]["waiting"], books["instances"][0]["requests"]) == (
        0,
        0,
        0,
    )


async def test_clients_that_leave_while_they_wait_for_a_stream_are_never_sent(stage: Stage) -> None:
    """RFC 9113 section 5.1.2: one stream; who left the queue is not executed."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    proxy = await stage.proxy(origin, "--max-conns=1")
    first = await stage.client(proxy)
    first.request("POST", "/first", b"x")
    request = await origin.request(1)
    crowd = [await stage.client(proxy) for _ in range(6)]
    for number, client in enumerate(crowd):
        client.request("POST", f"/{number}", b"y")
    await origin.no_request(1, ABSENCE)
    for client in crowd[:5]:
        client.close()
    await proxy.bell.until(lambda: len(proxy.matching("client gone")) >= 5, "five who left")
    request.respond(200, b"first")
    assert (await first.response("POST")).body == b"first"
    stayed = await origin.request(2)
    assert stayed.path == b"/5"
    stayed.respond(200, b"stayed")
    assert (await crowd[5].response("POST")).body == b"stayed"
    assert len(origin.requests) == 2


async def test_garbage_written_ahead_is_held_in_bounds_and_refused_in_its_turn(stage: Stage) -> None:
    """RFC 9112 section 9.3.2: megabytes behind a request that waits stay in the client's own socket."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    before = proxy.resident_bytes()
    client.send(b"\0" * (24 << 20))
    await client.silent(ABSENCE)
    assert proxy.resident_bytes() - before < 8 << 20
    request.respond(200, b"good")
    assert (await client.response()).body == b"good"
    rest = await client.closed()
    assert rest.startswith(b"HTTP/1.1 4") or not rest, "cut, when more came than is read for politeness"
