"""The relay cuts, stalls, delays and truncates as the path does. A plain TCP echo stands behind it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from h2ping.lab.relay import Relay
from h2ping.lab.trace import Scale

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE = 10.0


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """Port of a server that sends everything back and closes when its client does."""
    writers: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()
        writers.discard(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    for writer in list(writers):
        writer.transport.abort()


async def dial(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", relay.port)


async def round_trip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    assert await asyncio.wait_for(reader.readexactly(len(data)), PATIENCE) == data


async def forever(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        await round_trip(reader, writer, b"busy")


async def test_bytes_pass_both_ways(echo: int) -> None:
    async with Relay(echo) as relay:
        reader, writer = await dial(relay)
        await round_trip(reader, writer, b"x" * 300_000)
        assert (relay.bytes_up, relay.bytes_down) == (300_000, 300_000)
        assert relay.connections == 1
        writer.transport.abort()


async def test_a_half_closed_connection_still_carries_the_other_half(echo: int) -> None:
    async with Relay(echo) as relay:
        reader, writer = await dial(relay)
        writer.write(b"last words")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"last words"
        await relay.until(lambda: not relay.links)
        writer.transport.abort()


async def test_a_silent_connection_is_reset(echo: int) -> None:
    """As AWS Global Accelerator does after 340 s."""
    async with Relay(echo, idle_cut=10.0, scale=Scale(100)) as relay:
        reader, writer = await dial(relay)
        await round_trip(reader, writer, b"hello")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE)
        assert relay.cuts == 1
        assert relay.longest_gap >= 0.1
        writer.transport.abort()


async def test_a_silent_connection_can_be_closed_instead(echo: int) -> None:
    async with Relay(echo, idle_cut=0.1, mode="fin") as relay:
        reader, writer = await dial(relay)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        assert relay.cuts == 1
        writer.transport.abort()


async def test_a_silent_connection_can_become_a_black_hole(echo: int) -> None:
    """State forgotten without notice: bytes go in, nothing comes out, the socket stays open."""
    async with Relay(echo, idle_cut=0.1, mode="blackhole") as relay:
        reader, writer = await dial(relay)
        await relay.until(lambda: relay.cuts == 1)
        writer.write(b"anyone?")
        await writer.drain()
        assert relay.bytes_down == 0
        assert not reader.at_eof()
        writer.transport.abort()


async def test_bytes_in_either_direction_keep_a_connection(echo: int) -> None:
    async with Relay(echo, idle_cut=0.3) as relay:
        reader, writer = await dial(relay)
        started = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - started < 0.6:
            await round_trip(reader, writer, b"ping")
        assert relay.cuts == 0
        writer.transport.abort()


async def test_a_connection_ends_at_its_age_however_busy(echo: int) -> None:
    async with Relay(echo, max_age=0.1) as relay:
        reader, writer = await dial(relay)
        busy = asyncio.ensure_future(forever(reader, writer))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await busy
        assert relay.age_cuts == 1
        writer.transport.abort()


async def test_latency_delays_and_keeps_the_order(echo: int) -> None:
    async with Relay(echo, latency=5.0, scale=Scale(100)) as relay:
        reader, writer = await dial(relay)
        started = asyncio.get_running_loop().time()
        for index in range(10):
            writer.write(bytes([index]))
        assert await asyncio.wait_for(reader.readexactly(10), PATIENCE) == bytes(range(10))
        assert asyncio.get_running_loop().time() - started >= 0.1
        writer.transport.abort()


async def test_an_answer_is_truncated_at_the_wanted_byte(echo: int) -> None:
    async with Relay(echo, truncate=1000, mode="fin") as relay:
        reader, writer = await dial(relay)
        writer.write(b"x" * 5000)
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"x" * 1000
        assert relay.truncations == 1
        writer.transport.abort()


async def test_a_stalled_connection_goes_on_when_resumed(echo: int) -> None:
    async with Relay(echo) as relay:
        reader, writer = await dial(relay)
        await round_trip(reader, writer, b"before")
        relay.stall()
        before = relay.bytes_up
        writer.write(b"during")
        relay.resume()
        assert await asyncio.wait_for(reader.readexactly(6), PATIENCE) == b"during"
        assert relay.bytes_up == before + 6
        writer.transport.abort()


async def test_connects_are_refused_and_accepted_again_on_the_same_port(echo: int) -> None:
    async with Relay(echo) as relay:
        port = relay.port
        relay.refuse()
        with pytest.raises(ConnectionRefusedError):
            await dial(relay)
        await relay.accept()
        assert relay.port == port
        reader, writer = await dial(relay)
        await round_trip(reader, writer, b"again")
        writer.transport.abort()


async def test_a_dead_origin_resets_the_client() -> None:
    async with Relay(1) as relay:
        reader, writer = await dial(relay)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), PATIENCE)
        await relay.until(lambda: not relay.links)
        writer.transport.abort()


async def test_all_connections_can_be_cut_at_once(echo: int) -> None:
    async with Relay(echo) as relay:
        reader, writer = await dial(relay)
        await round_trip(reader, writer, b"hello")
        relay.cut("fin")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.transport.abort()
