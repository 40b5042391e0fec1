"""One listener without sockets: client connections over fake transports, exchanges that a test steers."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from h2ping.clock import Deadlines
from h2ping.downstream.context import ClientContext
from h2ping.downstream.protocol import CompiledOctets, PlainOctets, make_client
from tests.support.fake_clock import FakeClock
from tests.support.fake_exchange import FakeExchange
from tests.support.fake_transport import FakeTransport, deliver

if TYPE_CHECKING:
    from h2ping.downstream.client import Client


class Bench:
    """One listener: connections over fake transports, exchanges that the test steers."""

    def __init__(self, engine: str, **settings: Any) -> None:
        arena_name = "arena" if engine == "c" else "arena_py"
        self.arena = importlib.import_module(f"h2ping._fast.{arena_name}").Arena(
            settings.pop("max_memory", 0)
        )
        self.clock = FakeClock()
        self.exchanges: list[FakeExchange] = []
        self.refused: list[str] = []
        self.hold_body = settings.pop("hold_body", False)
        self.kept = settings.pop("kept", True)
        self.soon: list[Any] = []
        values: dict[str, Any] = {
            "max_header_bytes": 64 << 10,
            "max_body_bytes": 0,
            "half_close": "cancel",
            "program": "h2ping",
            "upstream": SimpleNamespace(prefix=settings.pop("prefix", "")),
            **settings,
        }
        self.context = ClientContext(
            settings=SimpleNamespace(**values),  # type: ignore[arg-type]
            exchanges=self.make_exchange,
            head_deadlines=Deadlines(self.clock, 30, lambda client: client.on_head_timeout()),
            idle_deadlines=Deadlines(self.clock, 75, lambda client: client.on_idle_timeout()),
            clients=set(),
            on_refused=lambda error, method, path: self.refused.append(error.cause.token),
        )
        self.context.linger_deadlines = Deadlines(self.clock, 2, lambda client: client.on_linger_timeout())
        self.context.loop = SimpleNamespace(call_soon=self.soon.append)  # type: ignore[assignment]
        octets = CompiledOctets if engine == "c" else PlainOctets
        assert octets is not None
        self.octets_class = octets

    def make_client(self) -> Any:
        """The protocol of a new client."""
        return make_client(self.context, self.octets_class)

    def make_exchange(self, request: Any, client: Any) -> FakeExchange:
        exchange = FakeExchange(request, client, self.arena, hold_body=self.hold_body, kept=self.kept)
        self.exchanges.append(exchange)
        return exchange

    def connect(self) -> Connection:
        return Connection(self)

    def turn(self) -> None:
        """The end of a turn of the loop."""
        while self.soon:
            callbacks, self.soon[:] = self.soon[:], []
            for callback in callbacks:
                callback()

    @property
    def exchange(self) -> FakeExchange:
        """The last one."""
        return self.exchanges[-1]


class Connection:
    """One client of a bench."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.transport = FakeTransport()
        self.protocol = bench.make_client()
        self.client: Client = self.protocol.owner
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> int:
        """What the client writes; how much of it was read. A turn of the loop ends after it."""
        taken = deliver(self.protocol, self.transport, data)
        self.bench.turn()
        return taken

    def eof(self) -> bool:
        keeps_open = bool(self.protocol.eof_received())
        if not keeps_open:
            self.transport.close()
        return keeps_open

    def received(self) -> bytes:
        """What the client reads since the last call, without Date."""
        self.bench.turn()
        lines = self.transport.take().split(b"\r\n")
        return b"\r\n".join(line for line in lines if not line.startswith(b"date: "))
