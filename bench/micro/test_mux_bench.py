"""Both engines side by side: `pytest bench/micro --benchmark-group-by=param:shape` and read the ratios."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.frames import INITIAL_WINDOW_SIZE, FrameFactory
from tests.support.wires import new_arena, new_wire

from bench.micro.memory import resident_bytes_each
from h2ping.upstream.wire import WireLimits

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

ENGINES = ["py"] if importlib.util.find_spec("h2ping._fast.mux") is None else ["c", "py"]
REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"integrate.api.nvidia.com"),
    (b":path", b"/v1/chat/completions"),
    (b"accept", b"application/json"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"AsyncOpenAI/Python 1.109.1"),
    (b"authorization", b"Bearer nvapi-0123456789abcdef0123456789abcdef"),
    (b"x-stainless-lang", b"python"),
]
RESPONSE = [
    (":status", "200"),
    ("date", "Tue, 01 Dec 2026 00:00:00 GMT"),
    ("content-type", "application/json"),
    ("server", "uvicorn"),
    ("nvcf-status", "fulfilled"),
]


class Silent:
    """Owner and receiver that only give credit."""

    stream: Any = None

    def on_data(self, data: Any) -> None:
        self.stream.credit(len(data))

    def ignore(self, *details: Any) -> None:
        """Every other call."""

    def more_idle_frames(self) -> int:
        return 1_000_000

    on_settings = on_ping_ack = on_goaway = on_stream_closed = on_output = ignore
    on_interim = on_response = on_end = on_failed = on_upload_done = ignore


class Peer:
    """A settled Wire and the server's frames for it."""

    def __init__(self, engine: str, connection_window: int = 2**31 - 1) -> None:
        self.frames = FrameFactory()
        self.arena = new_arena(engine)
        self.receiver = Silent()
        self.wire = new_wire(engine, self.receiver, WireLimits())
        self.wire.start()
        self.wire.receive(
            self.frames.settings((INITIAL_WINDOW_SIZE, 2**31 - 1))
            + self.frames.window(0, connection_window - 65_535)
        )
        self.wire.take_output()

    def open(self, size: int) -> Any:
        """A request whose body of that size is at hand."""
        body = None
        if size:
            body = self.arena.open(size, True)
            body.append(bytes(size))
            body.finish()
        self.receiver.stream = self.wire.open(REQUEST, body, self.receiver)
        return body

    def send_all(self) -> None:
        """As the connection does."""
        while self.wire.take_output():
            pass


@pytest.fixture(params=ENGINES)
def peer(request: pytest.FixtureRequest) -> Peer:
    return Peer(request.param)


@pytest.mark.parametrize(("up", "down"), [(0, 1024), (1024, 1024), (65_536, 34_816)], ids=str)
def test_request_and_response(benchmark: BenchmarkFixture, peer: Peer, up: int, down: int) -> None:
    """Open, send, receive, close: everything a request costs in a Wire."""
    peer.open(0)
    peer.send_all()
    peer.wire.receive(peer.frames.headers(1, *RESPONSE, end=True))
    block = peer.frames.block(*RESPONSE)  # all of it in the table by now, so it can be sent again and again
    contents = [bytes(min(down - at, 16_384)) for at in range(0, down, 16_384)]
    stream = 3

    def exchange() -> None:
        nonlocal stream
        body = peer.open(up)
        peer.send_all()
        answer = [peer.frames.headers(stream, block=block)]
        answer += [peer.frames.data(stream, content) for content in contents]
        peer.wire.receive(b"".join([*answer, peer.frames.data(stream, b"", end=True)]))
        if body is not None:
            body.release()
            peer.wire.receive(peer.frames.window(0, up))
        stream += 2

    benchmark.group = f"request {up} B up, {down} B down"
    benchmark(exchange)


def test_one_megabyte_of_data_in(benchmark: BenchmarkFixture, peer: Peer) -> None:
    """The splitter, and credit."""
    peer.open(0)
    peer.wire.receive(peer.frames.headers(1, *RESPONSE))
    data = peer.frames.data(1, bytes(16_384)) * 64

    def download() -> None:
        peer.wire.receive(data)
        peer.send_all()

    benchmark.group = "1 MiB of DATA in 16 KiB frames"
    benchmark(download)


def test_small_events(benchmark: BenchmarkFixture, peer: Peer) -> None:
    """Server-sent events: many small DATA frames."""
    peer.open(0)
    peer.wire.receive(peer.frames.headers(1, *RESPONSE))
    data = peer.frames.data(1, b"data: {}\n\n" * 20) * 100

    def events() -> None:
        peer.wire.receive(data)
        peer.send_all()

    benchmark.group = "100 events of 200 bytes"
    benchmark(events)


@pytest.mark.parametrize("open_streams", [1, 1000])
def test_a_request_among_many(benchmark: BenchmarkFixture, peer: Peer, open_streams: int) -> None:
    """A request must not cost more because others are in flight."""
    for _ in range(open_streams):
        peer.open(0)
    peer.send_all()

    def request() -> None:
        peer.open(0)
        peer.send_all()
        peer.receiver.stream.reset(8)
        peer.send_all()

    benchmark.group = f"open and cancel beside {open_streams} streams"
    benchmark(request)


@pytest.mark.parametrize("engine", ENGINES)
def test_memory_of_an_open_stream(engine: str) -> None:
    """What one request that waits costs in its Wire; the plain engine has h2's own stream as well."""
    assert resident_bytes_each(streams, 10_000, engine) < (1500 if engine == "c" else 12_000)


def streams(engine: str) -> Callable[[], object]:
    peer = Peer(engine)

    def stream() -> object:
        peer.open(0)
        peer.send_all()
        return peer.receiver.stream

    return stream
