"""One client connection over both twins: heads, bodies and responses, without a socket.

The ratios of one run count, not the times: `pytest bench/micro/test_head_bench.py --benchmark-sort=name`.
"""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client_bench import Bench

from h2ping import headers
from h2ping.downstream import head
from h2ping.downstream.protocol import CompiledOctets

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\n"
    b"Host: 127.0.0.1:1250\r\n"
    b"Accept: application/json\r\n"
    b"Accept-Encoding: gzip, deflate\r\n"
    b"Authorization: Bearer nvapi-0123456789abcdefghijklmnopqrstuvwxyz0123456789\r\n"
    b"Content-Type: application/json\r\n"
    b"User-Agent: AsyncOpenAI/Python 1.60.0\r\n"
    b"X-Stainless-Lang: python\r\n"
    b"X-Stainless-Async: async:asyncio\r\n"
    b"X-Stainless-Retry-Count: 0\r\n"
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
    b"Content-Length: %d\r\n"
    b"\r\n"
)
"""As the openai client writes it."""


@pytest.fixture(params=["c", "py"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name == "c" and CompiledOctets is None:
        pytest.skip("the compiled engine was not built, or is switched off")
    return name


def talk(engine: str, request: bytes, response: bytes) -> Callable[[], None]:
    """One request and its response on a connection that lives on."""
    bench = Bench(engine)
    connection = bench.connect()
    protocol = connection.protocol
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(response))]

    def once() -> None:
        at = 0
        while at < len(request):
            room = memoryview(protocol.get_buffer(-1)).cast("B")
            size = min(len(room), len(request) - at)
            room[:size] = request[at : at + size]
            del room
            protocol.buffer_updated(size)
            at += size
        exchange = bench.exchanges.pop()
        exchange.respond(response, fields=fields)
        exchange.body.release()
        connection.transport.writes.clear()

    return once


@pytest.mark.parametrize("size", [1 << 10, 64 << 10], ids=["1k", "64k"])
def test_h1_request_and_response(benchmark: Any, engine: str, size: int) -> None:
    benchmark(talk(engine, HEAD % size + b"x" * size, b"y" * 1024))


def test_h1_head_only(benchmark: Any, engine: str) -> None:
    """From the bytes of a head to a Request."""
    benchmark(head.read_by_table if engine == "c" else head.read_by_llhttp, HEAD % 1024, b"")


def test_h1_scan_of_a_head(benchmark: Any, engine: str) -> None:
    """The strict scan alone."""
    if engine == "c":
        heads = pytest.importorskip("h2ping._fast.heads")
        benchmark(heads.is_well_formed, HEAD % 1024)
    else:
        benchmark(headers.check_head, HEAD % 1024)


def test_h1_chunked_request(benchmark: Any, engine: str) -> None:
    """64 KiB in chunks of 1 KiB."""
    head = HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked")
    request = head + (b"400\r\n" + b"x" * 1024 + b"\r\n") * 64 + b"0\r\n\r\n"
    benchmark(talk(engine, request, b"y" * 1024))


def test_h1_events(benchmark: Any, engine: str) -> None:
    """100 server-sent events of 1 KB, each in its own turn of the loop."""
    bench = Bench(engine)
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    bench.exchange.begin()
    event = memoryview(b"data: " + b"x" * 1000 + b"\n\n")

    def events() -> None:
        for _ in range(100):
            connection.client.send_data(event)
            bench.turn()
        connection.transport.writes.clear()

    benchmark(events)


def test_memory_of_a_waiting_client(engine: str) -> None:
    """A connection whose response is owed holds no parser, no buffer and no head."""
    bench = Bench(engine)
    request = b"GET /v1 HTTP/1.1\r\nHost: x\r\n\r\n"
    bench.connect().send(request)
    clients = [bench.make_client() for _ in range(1000)]
    tracemalloc.start()
    try:
        clients = [bench.make_client() for _ in range(1000)]
        for client in clients:
            memoryview(client.get_buffer(-1)).cast("B")[: len(request)] = request
            client.buffer_updated(len(request))
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # The fake exchange and the request itself are about half of it.
    assert used / 1000 < 3000, used / 1000
