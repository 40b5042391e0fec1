"""Clients that leave: RST_STREAM(CANCEL) upstream at once, and the connection stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE, SOON
from tests.support.client import request_bytes
from tests.support.framing import Code, Kind, Setting, window_update

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def test_a_client_that_leaves_before_the_answer_cancels_its_stream(stage: Stage) -> None:
    """Case client-gone-before-first-byte."""
    origin = await stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 1})
    proxy = await stage.proxy(origin, "--max-conns=1", "--access-log", "--log-format=json")
    client = await stage.client(proxy)
    client.request("POST", "/slow", b"judge")
    request = await origin.request(1)
    await request.complete()
    client.close()
    assert await request.was_reset(within=SOON) == Code.CANCEL
    record = await proxy.record(status=499)
    assert (record["cause"], record["attempts"]) == ("client-gone", 1)
    await origin.no_request(1, ABSENCE)
    again = await stage.client(proxy)
    again.request("GET", "/next")
    following = await origin.request(2)
    assert following.conn is request.conn
    following.respond(200, b"slot is free")
    assert (await again.response()).body == b"slot is free"


async def test_a_half_closed_client_is_taken_as_gone(stage: Stage) -> None:
    """Case half-close-policy, the default."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--access-log", "--log-format=json")
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    client.half_close()
    assert await request.was_reset(within=SOON) == Code.CANCEL
    assert await client.closed() == b""
    await proxy.record(status=499)


async def test_a_half_closed_client_gets_its_answer_when_asked_for(stage: Stage) -> None:
    """Case half-close-policy, with the switch (RFC 9112 section 9.6)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--half-close=wait")
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    client.half_close()
    await client.silent(ABSENCE)
    request.respond(200, b"patience")
    response = await client.response()
    assert (response.status, response.body) == (200, b"patience")
    assert await client.closed() == b""


async def test_cancelling_inside_a_frame_keeps_the_connection_in_step(stage: Stage) -> None:
    """Case cancel-midframe-keeps-connection."""
    origin = await stage.origin(
        receive_buffer_bytes=65536,
        settings={Setting.MAX_CONCURRENT_STREAMS: 128, Setting.INITIAL_WINDOW_SIZE: 2**31 - 1},
    )
    proxy = await stage.proxy(origin)
    other = await stage.client(proxy)
    other.request("GET", "/warm")
    warm = await origin.request(1)
    conn = warm.conn
    conn.send(window_update(0, 2**31 - 1 - 65535))
    warm.respond(200)
    await other.response()

    size = 12 << 20
    upload = await stage.client(proxy)
    conn.stop_reading()
    upload.send(request_bytes("POST", "/upload", None, [("Content-Length", str(size + 1))]) + bytes(size))
    await upload.silent(ABSENCE)  # by now the sockets between are full, inside some frame
    other.request("GET", "/waits")
    upload.rst()
    conn.resume_reading()
    waits = await origin.bell.until(
        lambda: next((r for r in origin.requests if r.path == b"/waits"), None), "the other request"
    )
    assert waits.conn is conn
    uploaded = next(r for r in origin.requests if r.path == b"/upload")
    assert await uploaded.was_reset() == Code.CANCEL
    assert uploaded.body
    assert not [f for f in conn.all(Kind.DATA, uploaded.stream) if f.ends_stream]
    waits.respond(200, b"in step")
    assert (await other.response()).body == b"in step"
    assert len(origin.connections) == 1
