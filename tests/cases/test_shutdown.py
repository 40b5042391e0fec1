"""SIGTERM: what runs is finished, what never ends is cut (the rest is in tests/contract)."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Code, Kind

if TYPE_CHECKING:
    from tests.support.client import Client
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Origin, Request
    from tests.support.stage import Stage


async def test_sigterm_lets_the_request_in_flight_finish(stage: Stage) -> None:
    """Case sigterm-finishes-inflight."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--shutdown-grace=10s", "--ping-interval=100ms")
    client = await stage.client(proxy)
    client.request("POST", "/", b"judge")
    request = await origin.request(1)
    await request.complete()
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    with pytest.raises(OSError):  # noqa: PT011 - refused, in the words of the system
        await _connect_until_refused(stage, proxy)
    await request.conn.saw(Kind.PING, ack=False, since=len(request.conn.frames))
    request.respond(200, b"worth the wait")
    response = await client.response("POST")
    assert (response.status, response.body, response.closes) == (200, b"worth the wait", True)
    answered = client.time()
    assert await proxy.exited() == 0
    assert client.time() - answered < SOON


async def test_requests_written_before_sigterm_are_answered_though_nobody_had_read_them(stage: Stage) -> None:
    """A burst of new connections stands in the kernel's queue: closing the listener must not reset them.

    Their requests were sent to a proxy that took connections, so they are in flight (RFC 9112 section 9.6).
    """
    origin = await stage.origin(_answer)
    proxy = await stage.proxy(origin)
    kept = await stage.client(proxy)
    await kept.ask("POST", "/", b"x")
    proxy.process.send_signal(signal.SIGSTOP)  # it is busy with something else
    clients = [kept, *[await stage.client(proxy) for _ in range(40)]]
    for number, client in enumerate(clients):
        client.request("POST", f"/{number}", b"judge")
    proxy.process.send_signal(signal.SIGTERM)
    proxy.process.send_signal(signal.SIGCONT)
    for number, client in enumerate(clients):
        response = await client.response("POST")
        assert (response.status, response.body) == (200, b"/%d" % number)
    assert await proxy.exited() == 0


async def test_a_head_that_is_half_written_at_sigterm_may_be_finished(stage: Stage) -> None:
    """So a request that was being written is answered, whatever else goes on; and idle connections end."""
    origin = await stage.origin(_answer)
    proxy = await stage.proxy(origin)
    idle, client = await stage.client(proxy), await stage.client(proxy)
    client.send(b"GET /half HTTP/1.1\r\nho")
    assert (await idle.ask("GET", "/")).status == 200  # so the half head has been read
    proxy.process.send_signal(signal.SIGTERM)
    with pytest.raises(OSError):  # noqa: PT011 - refused, in the words of the system
        await _connect_until_refused(stage, proxy)
    client.send(b"st: judge\r\n\r\n")
    response = await client.response()
    assert (response.status, response.body, response.closes) == (200, b"/half", True)
    await idle.closed()
    assert await proxy.exited() == 0


@pytest.mark.parametrize("begun", [b"G", b"POST / HTTP/1.1\r\n"])
async def test_a_head_that_is_never_finished_is_told_so_and_does_not_hold_up_the_end(
    stage: Stage, begun: bytes
) -> None:
    """RFC 9110 section 15.5.9."""
    origin = await stage.origin(_answer)
    proxy = await stage.proxy(origin, "--shutdown-grace=1h", "--client-head-timeout=1h")
    idle, client = await stage.client(proxy), await stage.client(proxy)
    client.send(begun)
    assert (await idle.ask("GET", "/")).status == 200
    proxy.process.send_signal(signal.SIGTERM)
    response = await client.response()
    assert (response.status, response.closes) == (408, True)
    assert await proxy.exited() == 0
    assert not origin.requests[1:]


async def _answer(request: Request) -> None:
    await request.complete()
    request.respond(200, request.path)


@pytest.mark.parametrize("reads", [True, False], ids=["reads in the end", "never reads"])
async def test_a_client_that_reads_late_gets_its_whole_response(stage: Stage, reads: bool) -> None:
    """What the sockets did not take when the upstream was done is a request in flight, too."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--access-log", f"--shutdown-grace={'10s' if reads else '600ms'}")
    client = await stage.client(proxy, receive_buffer_bytes=4096)
    client.request("GET", "/")
    request = await origin.request(1)
    before = request.conn.send_window
    request.head(200)
    pouring = asyncio.ensure_future(request.pour(bytes(25_000_000)))
    await request.conn.standstill(ABSENCE)  # the sockets are full, and so is the stream's window
    pouring.cancel()
    size = before - request.conn.send_window
    request.data(b"", end=True)
    head = await client.head()
    await proxy.logged("request: GET")
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    if reads:
        await request.conn.standstill(ABSENCE)  # longer than an answer of a few bytes takes to leave
        assert len((await client.finish(head)).body) == size
    assert await proxy.exited() == 0
    assert ("1 request was cut" in proxy.log) is not reads


async def _connect_until_refused(stage: Stage, proxy: Proxy) -> None:
    """The log line and the closing of the listener are one step for the proxy, two for who looks on."""
    for _ in range(20):
        client = await stage.client(proxy)
        await client.closed()


async def _two_endless_streams(stage: Stage, *flags: str) -> tuple[Origin, Proxy, list[Client]]:
    origin = await stage.origin()
    proxy = await stage.proxy(origin, *flags)
    clients = []
    for number in (1, 2):
        client = await stage.client(proxy)
        client.request("GET", f"/{number}")
        request = await origin.request(number)
        request.head(200, [(b"content-type", b"text/event-stream")])
        request.data(b"data: 1\n\n")
        assert (await client.head()).status == 200
        assert await client.chunk() == b"data: 1\n\n"
        clients.append(client)
    return origin, proxy, clients


async def test_streams_without_end_are_cut_after_the_grace(stage: Stage) -> None:
    """Case drain-deadline-endless-sse."""
    origin, proxy, clients = await _two_endless_streams(stage, "--shutdown-grace=500ms")
    started = clients[0].time()
    assert await proxy.stop() == 0
    took = clients[0].time() - started
    assert 0.4 < took < 0.5 + SOON
    assert "graceful shutdown incomplete" in proxy.log
    for client in clients:
        assert await client.closed() == b""
    for request in origin.requests:
        conn = request.conn
        await conn.bell.until(partial(_is_over, request), "end of stream")


def _is_over(request: Request) -> bool:
    return request.conn.is_closed or request.reset_code == Code.CANCEL


async def test_a_second_signal_stops_at_once(stage: Stage) -> None:
    """Case drain-deadline-endless-sse, SIGTERM twice."""
    _, proxy, clients = await _two_endless_streams(stage, "--shutdown-grace=60s")
    proxy.expect_code = None
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    started = clients[0].time()
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.exited()
    assert clients[0].time() - started < SOON
    for client in clients:
        assert await client.closed() == b""
