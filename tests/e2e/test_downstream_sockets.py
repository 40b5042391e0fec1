"""Client connections over real sockets and uvloop: what only a kernel can show."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from h2ping.clock import Deadlines, LoopClock
from tests.support.client_bench import Bench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from tests.support.fake_exchange import FakeExchange

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
HANG = 20.0
"""Only names a hang."""


class Served(Bench):
    """A bench behind a real listener."""

    def __init__(self, engine: str, **settings: Any) -> None:
        super().__init__(engine, **settings)
        self.context.loop = None
        clock = LoopClock(asyncio.get_running_loop())
        self.context.linger_deadlines = Deadlines(clock, 2, lambda client: client.on_linger_timeout())
        self.arrived: asyncio.Queue[FakeExchange] = asyncio.Queue()
        self.address = ("127.0.0.1", 0)

    def make_exchange(self, request: Any, client: Any) -> FakeExchange:
        exchange = super().make_exchange(request, client)
        self.arrived.put_nowait(exchange)
        return exchange


@contextlib.asynccontextmanager
async def served(engine: str, **settings: Any) -> AsyncIterator[Served]:
    bench = Served(engine, **settings)
    server = await asyncio.get_running_loop().create_server(bench.make_client, "127.0.0.1", 0)
    bench.address = server.sockets[0].getsockname()[:2]
    try:
        yield bench
    finally:
        server.close()
        for client in list(bench.context.clients):
            client.abort()


async def heard(exchange: FakeExchange, event: str) -> None:
    """Until the exchange was told of `event`."""
    if event not in exchange.heard:
        told = asyncio.Event()
        exchange.on_event = lambda name: told.set() if name == event else None
        await told.wait()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    uvloop.run(asyncio.wait_for(main(), HANG))


def test_an_answer_is_read_whole_though_the_client_is_still_sending(engine: str) -> None:
    """RFC 9112 section 9.6: closing at once would reset the connection and lose the answer."""

    async def main() -> None:
        async with served(engine, max_body_bytes=1000) as bench:
            reader, writer = await asyncio.open_connection(*bench.address)
            writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 900000\r\n\r\n")
            for _ in range(9):
                writer.write(b"x" * 100_000)
                await asyncio.sleep(0)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 413 ")
            assert answer.endswith(b"\n")
            writer.close()

    run(main)


def test_a_cut_response_without_framing_is_a_reset_for_the_client(engine: str) -> None:
    """RFC 9112 section 8."""

    async def main() -> None:
        async with served(engine) as bench:
            reader, writer = await asyncio.open_connection(*bench.address)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            exchange = await bench.arrived.get()
            exchange.begin()
            exchange.client.send_data(b"half of it")
            bench.context.flush()
            assert (await reader.readuntil(b"half of it")).startswith(b"HTTP/1.1 200 ")
            exchange.client.abort()
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()

    run(main)


def test_a_cut_chunked_response_ends_without_its_last_chunk(engine: str) -> None:
    """Case mid-stream-reset-visible."""

    async def main() -> None:
        async with served(engine) as bench:
            reader, writer = await asyncio.open_connection(*bench.address)
            writer.write(GET)
            exchange = await bench.arrived.get()
            exchange.begin()
            exchange.client.send_data(b"data: 1\n\n")
            exchange.client.abort()
            assert (await reader.read()).endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")
            writer.close()

    run(main)


@pytest.mark.parametrize("how", ["close", "reset", "shutdown"])
def test_a_client_that_leaves_is_noticed_while_its_response_is_owed(engine: str, how: str) -> None:
    """Cases client-gone-before-first-byte, half-close-policy."""

    async def main() -> None:
        async with served(engine) as bench:
            client = socket.create_connection(bench.address)
            client.sendall(GET)
            exchange = await bench.arrived.get()
            if how == "shutdown":
                client.shutdown(socket.SHUT_WR)
            else:
                if how == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
            await heard(exchange, "gone")
            client.close()

    run(main)


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_body_and_its_response_pass_through_the_kernel(engine: str, size: int) -> None:
    async def main() -> None:
        async with served(engine) as bench:
            reader, writer = await asyncio.open_connection(*bench.address)
            body = bytes(range(250)) * (size // 250)
            for number in range(3):
                writer.write(
                    b"POST /%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (number, size) + body
                )
                await writer.drain()
                exchange = await bench.arrived.get()
                await heard(exchange, "end")
                assert exchange.bytes == body
                exchange.respond(body, fields=[(b"content-length", b"%d" % size)])
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(size) == body
            writer.close()

    run(main)


def test_a_client_that_does_not_read_stops_the_writer_and_goes_on(engine: str) -> None:
    """Case slow-reader-does-not-stall-others, this side of it."""

    async def main() -> None:
        async with served(engine) as bench:
            reader, writer = await asyncio.open_connection(*bench.address, limit=1 << 12)
            writer.write(GET)
            exchange = await bench.arrived.get()
            exchange.begin()
            sent = 0
            while not exchange.client.write_paused:
                exchange.client.send_data(b"x" * 65_536)
                sent += 65_536
            assert exchange.client.pending_bytes > 0
            got = asyncio.create_task(_read_all(reader))
            await heard(exchange, "writable")
            exchange.client.send_end(None)
            exchange.client.abort()
            assert (await got).count(b"x") == sent
            writer.close()

    run(main)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    read = b""
    while not read.endswith(b"\r\n0\r\n\r\n"):
        read += await reader.read(1 << 16)
    return read
