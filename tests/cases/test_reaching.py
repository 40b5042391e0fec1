"""The upstream cannot be reached, in each of the ways: what the client is told, how soon, and that it recovers."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Setting
from tests.support.names import SLOW, resolver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.stage import Stage


@contextlib.asynccontextmanager
async def plain_server(answer: bytes | None, *, close: bool = True) -> AsyncIterator[int]:
    """A TCP server without TLS: says `answer` (None: waits for the first bytes, says nothing), then closes or waits."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer is None:
            await reader.read(1)
        else:
            writer.write(answer)
        if close:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()


@pytest.mark.parametrize(
    ("answer", "close", "causes"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, {"tls-failed"}),
        (b"", True, {"connect-failed", "tls-failed", "connection-lost"}),
        (None, True, {"connect-failed", "tls-failed", "connection-lost"}),
        (None, False, {"connect-timeout"}),
    ],
    ids=["speaks HTTP/1.1", "closes at once", "closes in the handshake", "stalls in the handshake"],
)
async def test_a_handshake_that_does_not_come_about(
    any_stage: Stage, answer: bytes | None, close: bool, causes: set[str]
) -> None:
    """RFC 9113 section 3.2; 504 where the limit is ours, 502 where the peer failed."""
    async with plain_server(answer, close=close) as port:
        proxy = await any_stage.proxy(f"https://localhost:{port}", "--connect-timeout=500ms")
        response = await any_stage.ask(proxy, "POST", "/", b"x")
        assert response.cause in causes
        assert response.status == (504 if response.cause == "connect-timeout" else 502)
        assert response.complete


async def test_settings_that_never_come_are_a_connect_timeout(stage: Stage) -> None:
    """RFC 9113 section 3.4: the server's preface is part of reaching it."""
    origin = await stage.origin(opening=b"", ack_settings=False)
    proxy = await stage.proxy(origin, "--connect-timeout=500ms")
    response = await stage.ask(proxy, "POST", "/", b"x")
    assert (response.status, response.cause) == (504, "connect-timeout")
    assert not origin.requests


async def test_a_name_that_does_not_resolve_is_told(any_stage: Stage) -> None:
    """RFC 6761 section 6.4: .invalid never resolves."""
    proxy = await any_stage.proxy("https://no-such-host.invalid")
    response = await any_stage.ask(proxy, "POST", "/", b"x")
    assert (response.status, response.cause) == (502, "dns-failed")


async def test_an_origin_that_restarts_is_found_again(stage: Stage) -> None:
    """Down: 502. Up: 200, on the same client connection."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number in (1, 2):
        client.request("POST", "/", b"x")
        request = await origin.request(number)
        request.respond(200, b"up")
        assert (await client.response("POST")).body == b"up"
        origin.stop_listening()
        request.conn.fin()
        await request.conn.closed()
        response = await client.ask("POST", "/down", b"x")
        assert (response.status, response.cause) == (502, "connect-failed")
        await origin.start()


async def test_who_leaves_while_waiting_is_never_sent(stage: Stage) -> None:
    """A request that waits for a stream and whose client goes away costs the upstream nothing."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    proxy = await stage.proxy(origin, "--max-conns=1")
    first, second, third = [await stage.client(proxy) for _ in range(3)]
    first.request("POST", "/1", b"x")
    running = await origin.request(1)
    second.request("POST", "/2", b"x")
    await origin.no_request(1, ABSENCE)
    second.close()
    third.request("POST", "/3", b"x")
    await origin.no_request(1, ABSENCE)
    running.respond(200)
    following = await origin.request(2)
    assert following.path == b"/3"
    following.respond(200)
    assert (await first.response("POST")).status == 200
    assert (await third.response("POST")).status == 200
    assert len(origin.requests) == 2


async def test_waiting_too_long_for_a_stream_is_a_503(stage: Stage) -> None:
    """RFC 9110 section 15.6.4."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    proxy = await stage.proxy(origin, "--max-conns=1", "--queue-timeout=300ms")
    first, second = [await stage.client(proxy) for _ in range(2)]
    first.request("POST", "/1", b"x")
    running = await origin.request(1)
    response = await second.ask("POST", "/2", b"x", within=SOON)
    assert (response.status, response.cause) == (503, "queue-timeout")
    assert response.get(b"retry-after") is not None
    running.respond(200)
    assert (await first.response("POST")).status == 200
    assert len(origin.requests) == 1


async def test_sigterm_while_dialling_ends_in_time(stage: Stage) -> None:
    """Requests that wait for a connection are answered or cut; nothing keeps the process."""
    async with plain_server(None, close=False) as port:
        proxy = await stage.proxy(f"https://localhost:{port}", "--shutdown-grace=500ms")
        client = await stage.client(proxy)
        client.request("POST", "/", b"x")
        await client.silent(ABSENCE)
        started = client.time()
        assert await proxy.stop(signal.SIGTERM) == 0
        assert client.time() - started < 0.5 + SOON
        left = await client.closed()
        assert left == b"" or left.startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("again", [False, True], ids=["grace", "second signal"])
async def test_sigterm_while_lookups_hang_ends_in_time(any_stage: Stage, tmp_path: Path, again: bool) -> None:
    """A thread in getaddrinfo cannot be stopped; nobody waits for it."""
    grace = "60s" if again else "300ms"
    proxy = await any_stage.proxy(f"https://{SLOW}", f"--shutdown-grace={grace}", env=resolver(tmp_path))
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"x")
    await proxy.logged("looking up")
    started = client.time()
    if again:
        proxy.process.send_signal(signal.SIGTERM)
        await proxy.logged("shutdown requested")
    assert await proxy.stop(signal.SIGTERM) == 0
    assert client.time() - started < 0.3 + SOON
    left = await client.closed()
    assert left == b"" or left.startswith(b"HTTP/1.1 503 ")


async def test_sigterm_lets_waiting_requests_run(stage: Stage) -> None:
    """A request that waits for a stream is in flight too."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    proxy = await stage.proxy(origin, "--max-conns=1", "--shutdown-grace=10s")
    clients = [await stage.client(proxy) for _ in range(3)]
    for client in clients:
        client.request("POST", "/", b"x")
    await origin.request(1)
    proxy.process.send_signal(signal.SIGTERM)
    await proxy.logged("shutdown requested")
    for number in (1, 2, 3):
        request = await origin.request(number)
        await request.complete()
        request.respond(200, b"done")
    responses = await asyncio.gather(*(client.response("POST") for client in clients))
    assert [(r.status, r.closes) for r in responses] == [(200, True)] * 3
    assert await proxy.exited() == 0
