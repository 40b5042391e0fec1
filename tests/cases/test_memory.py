"""What the process may hold: one window of an unread response, and bodies up to -max-memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE
from tests.support.framing import Code

if TYPE_CHECKING:
    from tests.support.proxy import Proxy
    from tests.support.stage import Stage

MIB = 1 << 20


async def test_an_unread_response_is_held_back_at_the_origin(stage: Stage) -> None:
    """Case unread-response-backpressure."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    warm = await stage.client(proxy)
    warm.request("GET", "/warm")
    (await origin.request(1)).respond(200)
    await warm.response()

    client = await stage.client(proxy, receive_buffer_bytes=65536)
    client.request("GET", "/200MB")
    request = await origin.request(2)
    conn = request.conn
    before = proxy.resident_bytes()
    piece = bytes(range(250)) * 4000
    count = 200 if stage.engine == "c" else 60
    request.head(200, [(b"content-length", b"%d" % (count * len(piece)))])

    async def pour() -> None:
        for number in range(count):
            await request.pour(piece, end=number == count - 1)

    pouring = asyncio.ensure_future(pour())
    response = await client.head()
    await conn.standstill(ABSENCE)
    assert not pouring.done()
    assert proxy.resident_bytes() - before < 8 * MIB

    digest, size = hashlib.sha256(), 0
    while size < count * len(piece):
        part = await client.reader.read(1 << 18)
        assert part, f"cut after {size} bytes"
        digest.update(part)
        size += len(part)
    await pouring
    assert digest.digest() == hashlib.sha256(piece * count).digest()
    assert proxy.resident_bytes() - before < 24 * MIB
    assert response.status == 200


async def test_kept_bodies_stay_under_the_cap_and_all_are_forwarded(stage: Stage) -> None:
    """Case replay-buffer-global-cap: the oldest copies go, and with them only the re-send of their requests."""
    cap, count = 16 * MIB, 64
    origin = await stage.origin()
    proxy = await stage.proxy(origin, f"--max-memory={cap}", "--log-format=json")
    warm = await stage.client(proxy)
    warm.request("GET", "/warm")
    (await origin.request(1)).respond(200)
    await warm.response()
    before = proxy.resident_bytes()
    body = bytes(range(256)) * 4096
    clients = []
    for number in range(count):
        client = await stage.client(proxy)
        client.request("POST", f"/{number}", body)
        clients.append(client)
        assert (await _memory(proxy))["used"] <= cap
    await origin.request(1 + count)
    waiting = origin.requests[1:]
    for request in waiting:
        assert await request.complete() == body
        assert (await _memory(proxy))["used"] <= cap
    assert proxy.resident_bytes() - before < cap + 16 * MIB
    memory = await _memory(proxy)
    kept = count - memory["copies_given_up"]
    assert 8 <= kept <= 16
    assert kept * MIB <= memory["used"] <= cap

    by_path = {request.path: request for request in waiting}
    # Which body was whole first is not known, but most of the first half and the last one are.
    oldest, newest = waiting[0], waiting[-1]
    oldest.reset(Code.REFUSED_STREAM)
    refused = await clients[int(oldest.path[1:])].response("POST")
    assert (refused.status, refused.cause) == (502, "copy-not-kept")
    await origin.no_request(1 + count, ABSENCE)
    newest.reset(Code.REFUSED_STREAM)
    again = await origin.request(2 + count)
    assert (again.path, await again.complete()) == (newest.path, body)
    by_path[again.path] = again
    del by_path[oldest.path]

    for path, request in by_path.items():
        request.head(200)
        assert (await clients[int(path[1:])].head("POST")).status == 200
    assert (await _memory(proxy))["used"] < MIB, "released when the response began, not when it ended"
    for path, request in by_path.items():
        request.data(path, end=True)
    assert (await _memory(proxy))["used"] <= cap


async def _memory(proxy: Proxy) -> dict[str, int]:
    found: dict[str, int] = json.loads(await proxy.page("/connections"))["memory"]
    return found
