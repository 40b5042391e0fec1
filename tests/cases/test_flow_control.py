"""Windows in both directions (RFC 9113 sections 5.2 and 6.9)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Kind, Setting, data, settings, window_update

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage


LARGEST_WINDOW = 4 << 20
"""What the window of one stream may grow to."""


async def test_bytes_of_cancelled_streams_are_credited(stage: Stage) -> None:
    """Case cancelled-stream-bytes-credited (RFC 9113 sections 5.1 and 6.9)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    last = await stage.client(proxy)
    last.request("GET", "/warm")
    warm = await origin.request(1)
    conn = warm.conn
    granted = conn.send_window
    warm.respond(200, b"")
    await last.response()
    # The same twenty, and with so many bytes that an uncredited window would be used up.
    for size, count in ((60_000, 20), (granted // 16, 20)):
        for _ in range(count):
            client = await stage.client(proxy)
            client.request("GET", "/dropped")
            request = await origin.request(len(origin.requests) + 1)
            assert request.conn is conn
            request.head(200)
            assert (await client.head()).status == 200
            await client.gone()
            await request.was_reset()
            await _send_all_the_same(request, size)
    last.request("GET", "/last")
    request = await origin.request(len(origin.requests) + 1)
    assert request.conn is conn
    request.head(200)
    _, response = await asyncio.gather(request.pour(bytes(100_000)), last.response())
    assert response.complete
    assert len(response.body) == 100_000
    await origin.bell.until(lambda: granted - conn.send_window <= granted // 2, "credit", SOON)


async def _send_all_the_same(request: Request, size: int) -> None:
    """DATA that was under way when RST_STREAM came, within the connection's window."""
    conn = request.conn
    while size > 0:
        piece = min(size, 16384)
        await conn.bell.until(
            lambda: conn.send_window >= 16384 and not conn.write_full, "connection window", SOON
        )  # fmt: skip
        conn.send(data(request.stream, bytes(piece), end=size == piece))
        size -= piece


async def test_a_client_that_does_not_read_stalls_itself_only(stage: Stage) -> None:
    """Case slow-reader-does-not-stall-others."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    stalled = await stage.client(proxy, receive_buffer_bytes=65536)
    stalled.request("GET", "/25MB")
    slow = await origin.request(1)
    conn = slow.conn
    assert conn.send_window >= 2 * conn.initial_send_window
    large = bytes(range(250)) * 100_000
    sent_before = conn.send_window
    slow.head(200)
    pouring = asyncio.ensure_future(slow.pour(large))
    assert (await stalled.head()).status == 200
    await conn.standstill(ABSENCE)
    taken = sent_before - conn.send_window
    assert taken <= LARGEST_WINDOW + (6 << 20), "more than a window and the sockets' buffers"

    quick = await stage.client(proxy)
    quick.request("GET", "/100KB")
    fast = await origin.request(2)
    assert fast.conn is conn
    fast.head(200)
    _, response = await asyncio.gather(fast.pour(bytes(100_000)), quick.response(within=SOON))
    assert len(response.body) == 100_000
    assert not pouring.done()

    parts = bytearray()
    while chunk := await stalled.chunk():
        parts += chunk
    assert parts == large
    await pouring


async def test_an_upload_and_a_response_at_the_same_time_do_not_lock(stage: Stage) -> None:
    """Case big-upload-while-origin-talks."""
    origin = await stage.origin(receive_buffer_bytes=65536, credit=False)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    up, down = bytes(range(256)) * (4 << 12), bytes(1 << 20)
    client.request("POST", "/", up)
    request = await origin.request(1)
    conn = request.conn
    conn.stop_reading()
    request.head(200)
    reading = asyncio.ensure_future(client.response("POST"))
    unread = conn.initial_send_window  # so much goes without a WINDOW_UPDATE
    await request.pour(down[:unread], end=False)
    conn.resume_reading()
    await request.pour(down[unread:], end=False)
    conn.manners.credit = True
    arrived = len(request.body)
    if arrived:
        conn.send(window_update(0, arrived), window_update(request.stream, arrived))
    assert await request.complete() == up
    request.data(b"", end=True)
    response = await reading
    assert response.complete
    assert response.body == down


async def test_the_largest_legal_windows_are_accepted(stage: Stage) -> None:
    """Case preface-with-huge-windows (RFC 9113 section 6.9.2)."""
    opening = settings(
        {
            Setting.MAX_CONCURRENT_STREAMS: 128,
            Setting.INITIAL_WINDOW_SIZE: 2**31 - 1,
            Setting.MAX_FRAME_SIZE: 2**24 - 1,
        }
    ) + window_update(0, 2**31 - 1 - 65535)
    origin = await stage.origin(opening=opening, credit=False)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    body = bytes(300_000)
    client.request("POST", "/", body)
    request = await origin.request(1)
    assert await request.complete() == body
    request.respond(200, b"ok")
    assert (await client.response("POST")).status == 200
    assert not request.conn.all(Kind.GOAWAY)
    assert max(len(frame.payload) for frame in request.conn.all(Kind.DATA)) <= 65536
