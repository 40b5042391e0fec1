"""The fixed script: pieces of the engine, each a step to repeat; `python -m bench.callgrind` runs it.

`python -m bench.callgrind.pieces NAME ROUNDS SWITCH` makes the piece and takes its step until everything is warm, then
ROUNDS times with valgrind's counting on; SWITCH is the library made of switch.c. Inputs are constants, and nothing
here may depend on time, on addresses, or on the order of a set.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import itertools
import struct
import sys
from typing import TYPE_CHECKING, Any

from tests.support.client_bench import Bench
from tests.support.fake_transport import FakeTransport, deliver

from h2ping import config
from h2ping import instance as instance_module
from h2ping.clock import Deadlines
from h2ping.downstream.context import ClientContext
from h2ping.downstream.head import read_by_table
from h2ping.downstream.protocol import make_client
from h2ping.instance import Instance
from h2ping.memory import Memory
from h2ping.metrics import Metrics
from h2ping.upstream import pool as pool_module
from h2ping.upstream.wire import WireLimits, compiled_wire

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"integrate.api.nvidia.com"),
    (b":path", b"/v1/chat/completions"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"authorization", b"Bearer nvapi-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"),
    (b"content-length", b"34123"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"AsyncOpenAI/Python 1.60.0"),
    (b"x-request-id", b"5b2ef2c0-6c1e-4a3f-8d9e-0123456789ab"),
    (b"x-stainless-lang", b"python"),
]
RESPONSE = [
    (b":status", b"200"),
    (b"content-type", b"application/json"),
    (b"content-length", b"34123"),
    (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"nvcf-reqid", b"5b2ef2c0-6c1e-4a3f-8d9e-0123456789ab"),
    (b"nvcf-status", b"fulfilled"),
    (b"access-control-expose-headers", b"nvcf-reqid"),
    (b"vary", b"Origin"),
]
CLASSES = {b"authorization": 2, b"content-length": 1, b"x-request-id": 1, b"date": 1, b"nvcf-reqid": 1}


def classify(name: bytes) -> int:
    return CLASSES.get(name, 0)


def fast(module: str) -> Any:
    return importlib.import_module(f"h2ping._fast.{module}")


def hpack_encode_request() -> Callable[[], object]:
    encode = fast("hpack").Encoder(classify).encode_block
    return lambda: encode(REQUEST)


def hpack_decode_request() -> Callable[[], object]:
    return decoding(REQUEST)


def hpack_decode_response() -> Callable[[], object]:
    return decoding(RESPONSE)


def decoding(fields: list[tuple[bytes, bytes]]) -> Callable[[], object]:
    encoder = fast("hpack").Encoder(classify)
    decode = fast("hpack").Decoder(65536, 1000).decode_block
    decode(encoder.encode_block(fields))
    block = encoder.encode_block(fields)
    return lambda: decode(block)


def arena_body(size: int) -> Callable[[], object]:
    arena = fast("arena").Arena(1 << 24)
    octets = b"x" * size

    def step() -> None:
        body = arena.open(size, True)
        body.append(octets)
        body.finish()
        body.sent_to(size)
        body.release()

    return step


def arena_body_1kb() -> Callable[[], object]:
    return arena_body(1024)


def arena_body_64kb() -> Callable[[], object]:
    return arena_body(65536)


class Deaf:
    """Owner of a Wire and receiver of every response, and does nothing: what is counted is the engine."""

    def ignore(self, *details: object) -> None:
        pass

    def more_idle_frames(self) -> int:
        return 1_000_000

    on_settings = on_ping_ack = on_goaway = on_stream_closed = on_output = ignore
    on_interim = on_response = on_data = on_end = on_failed = on_upload_done = ignore


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


class Reader(Deaf):
    """A receiver that keeps up: it gives the credit for each piece at once. One that does not gets copies."""

    stream: Any = None

    def on_data(self, data: Any) -> None:
        self.stream.credit(len(data))


def settled_wire() -> Any:
    """A Wire whose peer grants large windows and any number of streams."""
    wire: Any = compiled_wire(Deaf(), WireLimits())
    wire.start()
    wire.take_output()
    initial_window = struct.pack(">HI", 4, 1 << 24)
    wire.receive(frame(4, 0, 0, initial_window) + frame(4, 1, 0, b"") + credit(0, 1 << 20))
    return wire


def credit(stream: int, size: int) -> bytes:
    return frame(8, 0, stream, struct.pack(">I", size))


def take_all(wire: Any) -> None:
    while wire.take_output():
        pass


def mux_exchange(request_size: int, response_size: int, *, beside: int = 0) -> Callable[[], object]:
    """One request and its response on a warm connection: both heads, both bodies, the windows. So many other
    streams wait on it."""
    reader = Reader()
    wire = settled_wire()
    for _ in range(beside):
        wire.open(REQUEST[:7], None, Deaf())
    take_all(wire)
    arena = fast("arena").Arena(1 << 24)
    octets = b"x" * request_size
    # Without indexing, so that the same octets can be sent again and again.
    head = (
        fast("hpack")
        .Encoder(lambda name: 1)
        .encode_block([*RESPONSE[:2], (b"content-length", b"%d" % response_size), *RESPONSE[3:]])
    )
    full, rest = divmod(response_size, 16384)
    data = [b"y" * 16384] * full + [b"y" * rest]
    fields = [*REQUEST[:7], (b"content-length", b"%d" % request_size), *REQUEST[8:]]

    def step() -> None:
        body = arena.open(request_size, True)
        body.append(octets)
        body.finish()
        stream = reader.stream = wire.open(fields, body, reader)
        take_all(wire)
        frames = [credit(0, request_size), frame(1, 4, stream.id, head)]
        frames += [frame(0, 0, stream.id, piece) for piece in data[:-1]]
        wire.receive(b"".join([*frames, frame(0, 1, stream.id, data[-1])]))
        wire.take_output()
        body.release()

    return step


def mux_exchange_1kb_1kb() -> Callable[[], object]:
    return mux_exchange(1024, 1024)


def mux_exchange_64kb_34kb() -> Callable[[], object]:
    return mux_exchange(65000, 34123)


def mux_exchange_beside_1() -> Callable[[], object]:
    return mux_exchange(1024, 1024, beside=1)


def mux_exchange_beside_8000() -> Callable[[], object]:
    return mux_exchange(1024, 1024, beside=8000)


def mux_resend_64kb() -> Callable[[], object]:
    """A kept body is refused and goes out again, on the next stream, from the same cells."""
    wire = settled_wire()
    body = fast("arena").Arena(1 << 24).open(65536, True)
    body.append(b"x" * 65536)
    body.finish()

    def step() -> None:
        stream = wire.open(REQUEST, body, Deaf())
        take_all(wire)
        refused = frame(3, 0, stream.id, struct.pack(">I", 7))
        wire.receive(credit(0, 65536) + refused)

    return step


def mux_window_credit() -> Callable[[], object]:
    """Windows both ways: the peer gives credit for a stream and the connection, we give back 1 MiB of a response."""
    wire = settled_wire()
    reader = Reader()
    stream = reader.stream = wire.open(REQUEST, None, reader)
    take_all(wire)
    wire.receive(frame(1, 4, stream.id, fast("hpack").Encoder(lambda name: 1).encode_block(RESPONSE[:2])))
    given = credit(stream.id, 1) + credit(0, 1)
    data = frame(0, 0, stream.id, b"y" * 16384) * 64

    def step() -> None:
        wire.receive(given + data)
        take_all(wire)

    return step


def mux_ping() -> Callable[[], object]:
    """The peer asks for life, we ask for life."""
    wire: Any = compiled_wire(Deaf(), WireLimits())
    wire.start()
    wire.receive(frame(4, 0, 0, b"") + frame(4, 1, 0, b""))
    wire.take_output()
    exchange = frame(6, 0, 0, b"01234567") + frame(6, 1, 0, b"76543210")

    def step() -> None:
        wire.ping(b"76543210")
        wire.take_output()
        wire.receive(exchange)
        wire.take_output()

    return step


REQUEST_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost:8000\r\ncontent-length: %d\r\n" + (
    b"".join(b"%b: %b\r\n" % field for field in REQUEST[4:] if field[0] != b"content-length") + b"\r\n"
)


def client_head() -> Callable[[], object]:
    """From the bytes of a head to a Request."""
    octets = REQUEST_HEAD % 1024
    return lambda: read_by_table(octets, b"")


def client_exchange(size: int) -> Callable[[], object]:
    """One request of a client that stays, head and beginning of the body in one read, and the answer."""
    bench = Bench("c")
    connection = bench.connect()
    octets = REQUEST_HEAD % size + b"x" * size
    answer = b"y" * size

    def step() -> None:
        connection.send(octets)
        exchange = bench.exchanges.pop()
        exchange.respond(answer, fields=RESPONSE[1:2] + RESPONSE[3:])
        bench.turn()
        connection.transport.writes.clear()
        exchange.body.release()

    return step


def client_exchange_1kb() -> Callable[[], object]:
    return client_exchange(1024)


def client_exchange_64kb() -> Callable[[], object]:
    return client_exchange(65536)


class Stopped:
    """A clock that costs what the loop's own does."""

    def __init__(self) -> None:
        self.now = itertools.repeat(1000.0).__next__

    def call_later(self, delay: float, callback: Callable[[], None]) -> Stopped:
        return self

    def cancel(self) -> None:
        pass


class Turns(asyncio.SelectorEventLoop):
    """Once `soon` is there, what is due at the end of a turn stands in it."""

    soon: list[Callable[..., object]] | None = None

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if self.soon is None:
            return super().call_soon(callback, *args, context=context)
        self.soon.append(callback)
        return None


class SecureTransport(FakeTransport):
    """Chose h2."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def selected_alpn_protocol(self) -> str:
        return "h2"

    def set_write_buffer_limits(self, high: int, low: int = 0) -> None:
        pass


class WarmProxy:
    """All of the proxy but the sockets and TLS: one client, one upstream connection, both warm."""

    def __init__(self) -> None:
        self.upstream: Any = SecureTransport()
        self.downstream: Any = FakeTransport()
        self.connection: Any = None
        self._loop = Turns()
        setattr(pool_module, "dial", self._dial)  # noqa: B010
        setattr(instance_module, "tls_context", lambda settings: None)  # noqa: B010
        settings = config.parse({"upstream": "https://judge.example"})
        clock = Stopped()
        memory = Memory(fast("arena").Arena(1 << 26), clock, 60.0, keep=False)
        instance = Instance(settings, clock, memory, Metrics().instance(""))
        context = ClientContext(
            settings=settings,
            exchanges=instance.make_exchange,
            head_deadlines=Deadlines(clock, 30.0, lambda client: client.on_head_timeout()),
            idle_deadlines=Deadlines(clock, 75.0, lambda client: client.on_idle_timeout()),
            clients=set(),
        )
        context.loop = self._loop
        self.client: Any = make_client(context)
        self.client.connection_made(self.downstream)
        self._octets = REQUEST_HEAD % 1024 + b"x" * 1024
        self._loop.run_until_complete(self._first())
        self._loop.soon = []

    async def _dial(self, *given: Any) -> Any:
        connection = self.connection = given[-1]()
        connection.connection_made(self.upstream)
        large = struct.pack(">HIHI", 4, 1 << 24, 3, 128)
        deliver(connection, self.upstream, frame(4, 0, 0, large) + frame(4, 1, 0, b"") + credit(0, 1 << 24))
        return connection

    async def _first(self) -> None:
        deliver(self.client, self.downstream, self._octets)
        for _ in range(10):  # turns of the loop: the dial, its end, the output
            await asyncio.sleep(0)

    def ask(self) -> None:
        """The client sends a request of 1 KB."""
        deliver(self.client, self.downstream, self._octets)
        self._turn()

    def answer(self, block: bytes, data: bytes, *, end: bool = True) -> None:
        """The origin answers the last request."""
        ident = self.last_stream()
        self.upstream.writes.clear()
        frames = credit(0, 1024) + frame(1, 4, ident, block) + frame(0, int(end), ident, data)
        self.hear(frames)

    def last_stream(self) -> int:
        return 2 * int(self.connection.requests) - 1

    def hear(self, frames: bytes) -> None:
        """The origin's frames, and what they make the proxy write to the client."""
        deliver(self.connection, self.upstream, frames)
        self._turn()
        assert self.downstream.writes
        self.downstream.writes.clear()
        self.upstream.writes.clear()

    def _turn(self) -> None:
        soon = self._loop.soon
        assert soon is not None
        while soon:
            soon.pop(0)()


def proxy_request_1kb() -> Callable[[], object]:
    """One request through the whole proxy."""
    proxy = WarmProxy()
    encoder = fast("hpack").Encoder(lambda name: 1)
    block = encoder.encode_block([*RESPONSE[:2], (b"content-length", b"1024"), *RESPONSE[3:]])
    content = b"y" * 1024

    def step() -> None:
        proxy.ask()
        proxy.answer(block, content)

    proxy.answer(block, content)
    return step


def proxy_event_1kb() -> Callable[[], object]:
    """One server-sent event of 1 KB through the whole proxy, alone in its turn of the loop."""
    proxy = WarmProxy()
    encoder = fast("hpack").Encoder(lambda name: 1)
    block = encoder.encode_block([RESPONSE[0], (b"content-type", b"text/event-stream")])
    event = b"data: " + b"y" * 1016 + b"\n\n"
    proxy.answer(block, event, end=False)
    frames = frame(0, 0, proxy.last_stream(), event)
    return lambda: proxy.hear(frames)


PIECES = [
    hpack_encode_request,
    hpack_decode_request,
    hpack_decode_response,
    arena_body_1kb,
    arena_body_64kb,
    mux_exchange_1kb_1kb,
    mux_exchange_64kb_34kb,
    mux_exchange_beside_1,
    mux_exchange_beside_8000,
    mux_resend_64kb,
    mux_window_credit,
    mux_ping,
    client_head,
    client_exchange_1kb,
    client_exchange_64kb,
    proxy_request_1kb,
    proxy_event_1kb,
]

WARM = 100


def main(name: str, rounds: int, library: str) -> None:
    switch = ctypes.CDLL(library)
    (piece,) = (piece for piece in PIECES if piece.__name__ == name)
    step = piece()
    gc.disable()
    for _ in range(WARM):
        step()
    switch.on()
    for _ in range(rounds):
        step()
    switch.off()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
