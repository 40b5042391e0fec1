"""Clients that never read what they asked for, by the hundred: memory stays under its limit, the others go on."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

from h2ping.lab.client import LoadClient
from h2ping.lab.origin import LabOrigin
from h2ping.lab.proxy import Proxy
from h2ping.lab.script import Script

MIB = 1 << 20
LIMIT = 8 * MIB
RECEIVE_BUFFER_BYTES = 4096
SEGMENT_BYTES = 536
"""The kernel sizes the sender's buffer by it: on loopback it would take the whole response otherwise."""
STALLED = 1000
ASK_EVERY = 0.05
STEADY = 10
"""Answers alike after which nothing moves any more; two of them a busy machine gives at any time."""
PATIENCE = 60.0


def stalled_reader(port: int) -> socket.socket:
    """A client that asks for a mebibyte and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\nx-lab-size: %d\r\n\r\n" % MIB)
    return client


async def memory_of(proxy: Proxy) -> dict[str, Any]:
    books = json.loads(await proxy.ask("/connections"))
    return {**books["memory"], "requests": books["instances"][0]["requests"]}


async def settled(proxy: Proxy) -> tuple[dict[str, Any], int]:
    """The books once nothing moves any more, and the most that was in use meanwhile."""
    seen: dict[str, Any] = {}
    most = alike = 0
    for _ in range(round(PATIENCE / ASK_EVERY)):
        before, seen = seen, await memory_of(proxy)
        most = max(most, seen["used"])
        alike = alike + 1 if seen == before else 0
        if alike == STEADY:
            break
        await asyncio.sleep(ASK_EVERY)
    return seen, most


async def test_a_thousand_clients_that_never_read_do_not_pass_the_memory_limit() -> None:
    flags = ("--max-memory", str(LIMIT), "--admin-listen", "127.0.0.1:0")
    async with LabOrigin(Script()) as origin, Proxy(origin.url, origin.ca_file, *flags) as proxy:
        clients = [await asyncio.to_thread(stalled_reader, proxy.port) for _ in range(STALLED)]
        try:
            books, most = await settled(proxy)

            assert books["unread"] <= LIMIT // 2
            assert most <= LIMIT
            assert books["readers_cut_off"] > 0
            async with LoadClient(proxy.port) as caller:
                calls = (
                    caller.call(f"call-{number}", "/v1/responses", bytes(100_000), patience=PATIENCE)
                    for number in range(50)
                )
                outcomes = await asyncio.gather(*calls)
            assert [outcome.words for outcome in outcomes] == ["200"] * 50
            assert (await memory_of(proxy))["readers_cut_off"] == books["readers_cut_off"]
        finally:
            for client in clients:
                client.close()
        assert any("response-unread" in line for line in proxy.log)
        assert not proxy.defects
