"""Crowds and dawdlers on the client's side: sockets without end, heads that never end, readers that never read."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import SOON
from tests.support.client import Client, request_bytes
from tests.support.framing import Code

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage


async def _echo(request: Request) -> None:
    with contextlib.suppress(AssertionError):  # the client left
        request.respond(200, await request.complete())


async def test_thousands_of_idle_sockets_do_not_delay_a_request(stage: Stage) -> None:
    """Keep-alive pools of many workers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4000, hard), hard))
    origin = await stage.origin(_echo)
    proxy = await stage.proxy(origin)
    idle = [await stage.client(proxy) for _ in range(1500)]
    client = await stage.client(proxy)
    started = client.time()
    assert (await client.ask("POST", "/", b"x")).body == b"x"
    assert client.time() - started < SOON
    assert (await idle[0].ask("POST", "/", b"y")).body == b"y"


async def test_running_out_of_descriptors_makes_newcomers_wait(stage: Stage) -> None:
    """ulimit -n 160: who is there is served, newcomers wait in the kernel's queue and are served in their turn."""
    origin = await stage.origin(_echo)
    proxy = await stage.proxy(origin, file_limit=160)
    first = await stage.client(proxy)
    assert (await first.ask("POST", "/", b"before")).body == b"before"
    crowd = [await stage.client(proxy) for _ in range(200)]
    await proxy.logged("for want of descriptors")
    assert proxy.matching("for want of descriptors (ulimit -n); pause 1")
    for client in crowd:
        client.request("POST", "/", b"crowd")
    assert (await first.ask("POST", "/", b"amid")).body == b"amid"
    for client in crowd:
        response = await client.response("POST")
        assert response.body == b"crowd"
        await client.gone()
    late = await stage.client(proxy)
    assert (await late.ask("POST", "/", b"late")).body == b"late"
    pauses = re.search(r'h2ping_accept_pauses_total\{instance=""\} (\d+)', await proxy.page("/metrics"))
    assert pauses is not None
    assert int(pauses[1]) >= 1
    assert len(proxy.matching("for want of descriptors")) == 1, "one line a minute"


async def test_a_head_that_never_ends_is_given_up(stage: Stage) -> None:
    """408 after -client-head-timeout (RFC 9110 section 15.5.9), however the bytes dribble."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--client-head-timeout=400ms")
    silent, dribbling = [await stage.client(proxy) for _ in range(2)]
    silent.send(b"GET / HTTP/1.1\r\nHo")
    response = await silent.response(within=SOON)
    assert (response.status, response.cause, response.closes) == (408, "head-timeout", True)
    head = b"GET / HTTP/1.1\r\nX-A: "
    started = dribbling.time()
    dribbling.send(head)
    answered = asyncio.ensure_future(dribbling.response(within=2 * SOON))
    while not answered.done() and dribbling.time() - started < SOON:
        dribbling.send(b"a")
        await asyncio.wait([answered], timeout=0.05)
    assert (await answered).status == 408
    assert not origin.requests


async def test_a_body_that_stops_coming_is_given_up(stage: Stage) -> None:
    """408 after -client-idle-timeout without a byte; the upstream's stream is cancelled."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--client-idle-timeout=300ms")
    client = await stage.client(proxy)
    client.send(request_bytes("POST", "/", None, [("Content-Length", "10")]) + b"half")
    request = await origin.request(1)
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause, response.closes) == (408, "body-timeout", True)
    assert await request.was_reset() == Code.CANCEL
    assert not request.ended


async def test_a_slow_answer_is_no_stalled_reader(stage: Stage) -> None:
    """--client-idle-timeout is not about the upstream's silence."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--client-idle-timeout=200ms")
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await client.silent(0.8)
    request.head(200)
    request.data(b"first")
    assert (await client.head("POST")).status == 200
    assert await client.chunk() == b"first"
    await client.silent(0.8)
    request.data(b"second", end=True)
    assert await client.chunk() == b"second"


async def test_an_upload_in_single_bytes_passes(stage: Stage) -> None:
    """Slow is not stalled."""
    origin = await stage.origin(_echo)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(request_bytes("POST", "/", None, [("Content-Length", "200")]))
    await client.send_slowly(b"b" * 200)
    assert (await client.response("POST")).body == b"b" * 200


async def test_fifty_readers_that_stall_do_not_stop_the_rest(stage: Stage) -> None:
    """Each holds its own stream window at most."""

    async def large(request: Request) -> None:
        if request.path == b"/quick":
            request.respond(200, b"quick")
        else:
            request.head(200)
            await request.pour(bytes(2 << 20))

    origin = await stage.origin(large)
    proxy = await stage.proxy(origin)
    stalled = [await stage.client(proxy, receive_buffer_bytes=16384) for _ in range(50)]
    for client in stalled:
        client.request("GET", "/large")
    for client in stalled:
        await client.head()
    for _ in range(5):
        response = await stage.ask(proxy, "GET", "/quick")
        assert response.body == b"quick"
    total = bytearray()
    while chunk := await stalled[0].chunk():
        total += chunk
    assert len(total) == 2 << 20


async def test_a_flood_of_connects_leaves_the_process_well(stage: Stage) -> None:
    """Connect and leave, a thousand times; descriptors come back."""
    origin = await stage.origin(_echo)
    proxy = await stage.proxy(origin, "--max-conns=1")
    steady = await stage.client(proxy)
    await steady.ask("POST", "/", b"before")
    before = proxy.descriptors()
    for _ in range(20):
        batch = await asyncio.gather(*(Client.connect(proxy.port) for _ in range(50)))
        for number, client in enumerate(batch):
            if number % 2:
                client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n")
            client.rst()
        for client in batch:
            await client.gone()
    for _ in range(100):  # the last of them may not be noticed yet
        assert (await steady.ask("POST", "/", b"fine")).body == b"fine"
        if proxy.descriptors() <= before:
            break
    assert proxy.descriptors() <= before
    assert all(request.reset_code in (None, Code.CANCEL) for request in origin.requests)


async def test_bodies_far_beyond_the_memory_limit_stream(stage: Stage) -> None:
    """20 MiB through 8 MiB, alone and three at a time."""
    origin = await stage.origin(_echo_hash)
    proxy = await stage.proxy(origin, "--max-memory=8MiB")
    body = bytes(range(256)) * (20 << 12)

    async def upload() -> bytes:
        client = await stage.client(proxy)
        client.request("POST", "/", body)
        return (await client.response("POST", within=60)).body

    assert await upload() == b"%d" % len(body)
    assert await asyncio.gather(*(upload() for _ in range(3))) == [b"%d" % len(body)] * 3


@pytest.mark.parametrize("pressure", ["drop", "keep"])
async def test_more_bodies_than_memory_are_all_answered(stage: Stage, pressure: str) -> None:
    """60 bodies of 300 KiB under 4 MiB: never a deadlock, whichever way."""
    origin = await stage.origin(_echo_hash)
    proxy = await stage.proxy(origin, "--max-memory=4MiB", f"--memory-pressure={pressure}")
    clients = [await stage.client(proxy) for _ in range(60)]
    body = bytes(300 << 10)
    for number, client in enumerate(clients):
        if number % 2:
            client.request("POST", "/", body)
        else:
            client.send(
                request_bytes("POST", "/", None, [("Transfer-Encoding", "chunked")])
                + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            )
    responses = await asyncio.gather(*(client.response("POST", within=60) for client in clients))
    assert [response.body for response in responses] == [b"%d" % len(body)] * 60


async def _echo_hash(request: Request) -> None:
    request.respond(200, b"%d" % len(await request.complete(60)))


async def test_a_client_that_reads_nothing_is_recorded_as_such(stage: Stage) -> None:
    """It has not closed its connection: reader-timeout, with its log line and its metric."""

    async def large(request: Request) -> None:
        request.head(200)
        await request.pour(bytes(8 << 20))

    origin = await stage.origin(large)
    origin.tolerated = True
    proxy = await stage.proxy(origin, "--client-idle-timeout=500ms", "--admin-listen=127.0.0.1:0")
    client = await stage.client(proxy, receive_buffer_bytes=8192)
    client.request("GET", "/")
    assert (await client.head()).status == 200
    assert "client error: GET /: reader-timeout" in await proxy.logged("reader-timeout")
    assert await (await origin.request(1)).was_reset() == Code.CANCEL
    failed = 'h2ping_request_failures_total{instance="",cause="reader-timeout"} 1'
    assert failed in await proxy.page("/metrics")
    assert not proxy.matching("client-gone")
