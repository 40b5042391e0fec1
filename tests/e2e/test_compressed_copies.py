"""`-compress-waiting-bodies` with real zstd: what was compressed is sent again as it was."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from h2ping.lab.prompts import prompts
from tests.support.framing import goaway
from tests.support.stage import certificates, stage
from tests.support.zstd import need_zstd

if TYPE_CHECKING:
    from tests.support.proxy import Proxy
    from tests.support.stage import Stage

__all__ = ["certificates", "stage"]


async def compressed(proxy: Proxy, count: int) -> dict[str, Any]:
    """The proxy's books of memory, once so many copies are compressed."""
    done = "compressed the kept copy"
    await proxy.bell.until(lambda: len(proxy.matching(done)) >= count, f"{count} lines: {done}")
    memory: dict[str, Any] = json.loads(await proxy.page("/connections"))["memory"]
    return memory


async def test_a_request_whose_copy_was_compressed_is_sent_again_with_the_same_bytes(stage: Stage) -> None:
    """RFC 9113 sections 6.8 and 8.7: refused by GOAWAY, so it may be sent again."""
    need_zstd()
    origin = await stage.origin()
    proxy = await stage.proxy(
        origin, "--max-memory=2MiB", "--compress-waiting-bodies", "--admin-listen=127.0.0.1:0"
    )
    (body,) = prompts(1_500_000, 1, 0.7)
    client = await stage.client(proxy)
    client.request("POST", "/v1", body)
    refused = await origin.request(1)
    assert await refused.complete() == body
    memory = await compressed(proxy, 1)
    assert memory["used"] < len(body) / 2
    refused.conn.fin(goaway(0))

    again = await origin.request(2)
    assert await again.complete() == body
    assert again.fields == refused.fields
    again.respond(200, b"ok")
    response = await client.response("POST")
    assert (response.status, response.body, response.complete) == (200, b"ok", True)
    assert len(origin.requests) == 2


async def test_many_whose_copies_fill_the_memory_are_all_sent_again_with_the_same_bytes(stage: Stage) -> None:
    """RFC 9113 section 6.8: one GOAWAY refuses all of them at the same time."""
    need_zstd()
    origin = await stage.origin()
    proxy = await stage.proxy(
        origin, "--max-memory=2400KiB", "--memory-pressure=keep", "--compress-waiting-bodies",
        "--admin-listen=127.0.0.1:0",
    )  # fmt: skip
    bodies = prompts(600_000, 8, 0.7)
    clients = []
    for number, body in enumerate(bodies):
        clients.append(await stage.client(proxy))
        clients[-1].request("POST", f"/{number}", body)
    await origin.request(len(bodies))
    for request in origin.requests[: len(bodies)]:
        assert await request.complete() == bodies[int(request.path[1:])]
    memory = await compressed(proxy, 6)
    assert memory["copies_given_up"] == 0
    conn = origin.requests[0].conn
    assert all(request.conn is conn for request in origin.requests)
    conn.fin(goaway(0))

    await origin.request(2 * len(bodies))
    for request in origin.requests[len(bodies) :]:
        assert await request.complete() == bodies[int(request.path[1:])]
        request.respond(200, request.path)
    answers = [(await client.response("POST")).body for client in clients]
    assert answers == [b"/%d" % number for number in range(len(bodies))]
