"""What the process may hold: one window of an unread response, and bodies up to -max-memory."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from tests.cases.timing import ABSENCE

if TYPE_CHECKING:
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
    """Case replay-buffer-global-cap."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin, "--max-memory=16MiB")
    warm = await stage.client(proxy)
    warm.request("GET", "/warm")
    (await origin.request(1)).respond(200)
    await warm.response()
    before = proxy.resident_bytes()
    body = bytes(range(256)) * 4096
    clients = []
    for number in range(64):
        client = await stage.client(proxy)
        client.request("POST", f"/{number}", body)
        clients.append(client)
    await origin.request(65)
    waiting = origin.requests[1:]
    for request in waiting:
        assert await request.complete() == body
    assert proxy.resident_bytes() - before < 48 * MIB, "64 MiB of bodies, 16 MiB of them kept"
    for request in waiting:
        request.respond(200, request.path)
    answers = [(await client.response("POST")).body for client in clients]
    assert answers == [b"/%d" % number for number in range(64)]
