"""Clients that wait for room, for a stream, for their own socket; and what happens to them when it ends."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import SOON
from tests.support.bell import pace

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


async def test_a_response_that_is_still_being_read_when_a_drain_begins_is_read_to_its_end(
    stage: Stage,
) -> None:
    """RFC 9112 section 9.6: the upstream is done with it, the client is not; the grace is the client's too."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--shutdown-grace=15s")
    client, response = await _held_response(stage, proxy, origin)
    stopped = asyncio.ensure_future(proxy.stop())
    await proxy.logged("shutdown requested")
    await pace(3.5)  # longer than a connection that is closed would linger
    client.writer.transport.resume_reading()  # type: ignore[attr-defined]
    await client.finish(response)
    assert response.complete
    assert await stopped == 0
    assert "graceful shutdown incomplete" not in proxy.log


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
