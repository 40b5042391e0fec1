"""Pool, memory, exchanges, connections and either engine under any order of events, on a clock that tests move.

Held after every step and at the end: a request has exactly one outcome; memory accounted is memory held, and never
above the limit; no connection has more streams than its peer allows; what is sent again has the same bytes; a POST is
never executed twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from h2ping import config, errors, headers
from h2ping import instance as instance_module
from h2ping.errors import Processed, UpstreamError
from h2ping.instance import Instance
from h2ping.memory import Memory
from h2ping.metrics import Metrics
from h2ping.upstream import connection as connection_module
from h2ping.upstream import pool as pool_module
from tests.support.fake_clock import FakeClock
from tests.support.fake_transport import FakeTransport, deliver
from tests.support.frames import (
    DATA,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    INTERNAL_ERROR,
    MAX_CONCURRENT_STREAMS,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    FrameFactory,
    FrameReader,
)
from tests.support.wires import new_arena, new_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.exchange import Exchange
    from h2ping.upstream.connection import Connection

PEER_STREAMS = 3
MAX_CONNS = 2
LIMIT_BYTES = 1 << 20
SETTINGS_OF_TEST = {
    "upstream": "https://judge.example", "max_conns": str(MAX_CONNS), "streams_per_conn": "2", "max_queue": "4",
    "queue_timeout": "20s", "first_byte_timeout": "90s", "ping_interval": "10s", "ping_timeout": "4s",
    "idle_limit": "60s", "max_requests_per_conn": "6", "max_conn_age": "5m", "retry_body_limit": "40000",
    "max_memory": str(LIMIT_BYTES), "connect_timeout": "15s",
}  # fmt: skip
SIZES = [0, 1, 1000, 16_375, 30_000, 39_999, 50_000, 300_000]
DIAL_FAILURES = [errors.CONNECT_FAILED, errors.CONNECT_TIMEOUT, errors.DNS_FAILED, errors.CERTIFICATE]
sizes = st.sampled_from(SIZES)
picks = st.integers(0, 1 << 20)


def going(machine: ProxyMachine) -> bool:
    """Some request has no outcome."""
    return any(not each.outcomes for each in machine.callers)


def dialling(machine: ProxyMachine) -> bool:
    """Some dial waits for its end."""
    return any(not future.done() for _, future in machine.dials)


def connected(machine: ProxyMachine) -> bool:
    """Some connection stands."""
    return any(peer.alive for peer in machine.peers)


def streaming(machine: ProxyMachine) -> bool:
    """Some stream is open at a peer."""
    return any(peer.open(lambda _: True) for peer in machine.peers)


def content_of(number: int, size: int) -> bytes:
    """Bytes that belong to one request."""
    return (b"%d." % number * (size // 2 + 1))[:size]


class Caller:
    """One request's client: sends its body in pieces, reads or does not, may leave."""

    def __init__(self, number: int, size: int, method: bytes, *, chunked: bool) -> None:
        self.number, self.size, self.method, self.chunked = number, size, method, chunked
        self.content = content_of(number, size)
        self.offered = self.fed = 0
        self.will_close = self.write_paused = False
        self.owed: Exchange | None = None
        self.body: Any = None
        self.reading = True
        self.whole = False
        self.outcomes: list[str] = []
        self.finished = 0
        self.data = 0
        self.exchange: Exchange

    def receive_body(self, body: Any) -> None:
        assert self.body is None
        self.body = body

    def resume_body(self) -> None:
        self.reading = True

    def send_interim(self, head: bytes) -> None:
        assert not self.outcomes

    def send_head(self, head: bytes, framing: Any) -> None:
        assert not self.outcomes

    def send_data(self, data: Any) -> None:
        assert not self.outcomes
        self.data += len(data)

    def send_end(self, trailers: Any) -> None:
        self.outcomes.append("whole")

    def answer(self, response: bytes, close: bool) -> None:
        self.outcomes.append("answer")

    def abort(self) -> None:
        self.outcomes.append("cut")

    def pump(self) -> None:
        """Move what was offered into the body, as far as it takes it."""
        while not self.outcomes and self.body is not None and not self.whole and self.reading:
            if self.fed == self.size == self.offered:
                self.whole = True
                self.body.finish()
                self.exchange.on_body_end(None)
                return
            if self.fed == self.offered:
                return
            taken = self.body.append(self.content[self.fed : self.offered])
            self.fed += taken
            if taken:
                self.exchange.on_body()
            if self.fed < self.offered and not self.outcomes:
                self.reading = False
                self.exchange.on_body_stalled()


class Transport(FakeTransport):
    """Chose h2; its end is told to the protocol in the next turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.loop = loop
        self.protocol: Any = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "ssl_object" else default

    def selected_alpn_protocol(self) -> str:
        return "h2"

    def close(self) -> None:
        if not self.closed:
            self.loop.call_soon(self.protocol.connection_lost, None)
        super().close()

    def abort(self) -> None:
        self.close()
        super().abort()


class Stream:
    """A request as the peer has it."""

    def __init__(self, ident: int, fields: list[tuple[bytes, bytes]]) -> None:
        self.id = ident
        self.fields = fields
        self.number = int(dict(fields)[b":path"][1:])
        self.body = bytearray()
        self.ended = self.executed = self.responding = self.over = self.refused = False


class Peer:
    """One connection's other end."""

    def __init__(self, machine: ProxyMachine, connection: Connection, transport: Transport) -> None:
        self.machine, self.connection, self.transport = machine, connection, transport
        self.frames, self.reader = FrameFactory(), FrameReader()
        self.streams: dict[int, Stream] = {}
        self.pings: list[bytes] = []
        self.last = 1 << 31

    @property
    def alive(self) -> bool:
        return not self.transport.closed

    def read(self) -> None:
        """What the proxy sent; credit goes back at once."""
        credit = b""
        for sent in self.reader.read(self.transport.take()):
            stream = self.streams.get(sent.stream)
            if sent.kind == HEADERS:
                assert sent.stream not in self.streams
                stream = self.streams[sent.stream] = Stream(sent.stream, sent.fields)
                self.machine.sees(stream)
            elif sent.kind == DATA:
                assert stream is not None
                stream.body += sent.payload
                if sent.payload:
                    credit += self.frames.window(0, len(sent.payload))
                    if not sent.end and not stream.over:
                        credit += self.frames.window(stream.id, len(sent.payload))
            elif sent.kind == RST_STREAM and stream is not None:
                stream.over = True
            elif sent.kind == PING and not sent.end:
                self.pings.append(sent.payload)
            elif sent.kind == SETTINGS and not sent.end:
                credit += self.frames.settings_ack()
            elif sent.kind == GOAWAY:
                assert sent.code == 0, f"the proxy finds fault with a peer that made none: {sent}"
            if sent.kind in (HEADERS, DATA) and sent.end:
                assert stream is not None
                stream.ended = True
            if stream is not None:
                self.machine.compares(stream)
        if credit:
            self.serve(credit)

    def serve(self, *frames: bytes) -> None:
        if self.alive:
            self.machine.do(lambda: deliver(self.connection, self.transport, b"".join(frames)))

    def open(self, wanted: Callable[[Stream], bool]) -> list[Stream]:
        """Streams that the peer may still act on."""
        if not self.alive:
            return []
        return [
            each for each in self.streams.values() if not each.over and each.id <= self.last and wanted(each)
        ]


class Counting(Instance):
    """Tells a caller of each outcome."""

    def on_finished(self, exchange: Exchange, error: Any) -> None:
        exchange._client.finished += 1  # type: ignore[attr-defined]
        super().on_finished(exchange, error)


class ProxyMachine(RuleBasedStateMachine):
    """Everything between a client's protocol and the bytes of TLS, but for time and sockets."""

    engine = "py"
    keep = False
    """-memory-pressure keep."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.callers: list[Caller] = []
        self.peers: list[Peer] = []
        self.dials: list[tuple[Callable[[], Connection], asyncio.Future[Connection]]] = []
        self.executed: Counter[int] = Counter()
        self.seen: dict[int, list[tuple[bytes, bytes]]] = {}
        self.patches = pytest.MonkeyPatch()
        self.patches.setattr(pool_module, "dial", self.dial)
        self.patches.setattr(instance_module, "tls_context", lambda _: None)
        self.patches.setattr(
            connection_module, "make_wire", lambda owner, limits: new_wire(self.engine, owner, limits)
        )
        settings = config.parse(SETTINGS_OF_TEST)
        self.arena = new_arena(self.engine, LIMIT_BYTES)
        self.memory = Memory(self.arena, self.clock, settings.queue_timeout, keep=self.keep)
        metrics = Metrics("0", "test").instance("")
        self.instance = Counting(settings, self.clock, self.memory, metrics)

    async def dial(
        self, settings: Any, context: Any, reach: Any, make: Callable[[], Connection]
    ) -> Connection:
        future: asyncio.Future[Connection] = self.loop.create_future()
        self.dials.append((make, future))
        return await future

    def turn(self) -> None:
        """Let callbacks run, and the peers read, until nothing moves."""

        async def turns() -> None:
            for _ in range(4):
                for _ in range(6):
                    await asyncio.sleep(0)
                for peer in self.peers:
                    peer.read()
                for caller in self.callers:
                    caller.pump()

        self.loop.run_until_complete(turns())

    def do(self, step: Callable[[], Any]) -> None:
        """Inside the running loop."""
        if self.loop.is_running():
            step()
            return

        async def run() -> None:
            step()

        self.loop.run_until_complete(run())

    # --- what the peer knows ---

    def sees(self, stream: Stream) -> None:
        known = self.seen.setdefault(stream.number, stream.fields)
        assert stream.fields == known, "sent again with other fields"
        earlier = [
            (peer, each)
            for peer in self.peers
            for each in peer.streams.values()
            if each.number == stream.number
        ]
        kept = sum(not each.refused and each.id <= peer.last for peer, each in earlier if each is not stream)
        assert kept <= (0 if self.callers[stream.number].method == b"POST" else 1), "sent again, not refused"

    def compares(self, stream: Stream) -> None:
        caller = self.callers[stream.number]
        assert caller.content.startswith(bytes(stream.body)), "other bytes"
        if stream.ended:
            assert caller.whole or caller.size == 0, "ended before the client's end"
            assert len(stream.body) == caller.size, "not all of the bytes"

    def pick(self, pick: int, wanted: Callable[[Stream], bool]) -> tuple[Peer, Stream] | None:
        found = [(peer, stream) for peer in self.peers for stream in peer.open(wanted)]
        return found[pick % len(found)] if found else None

    # --- clients ---

    @precondition(lambda self: len(self.callers) < 25)
    @rule(many=st.lists(st.tuples(sizes, st.sampled_from([b"POST", b"POST", b"PUT"]), st.booleans(), st.booleans()),
                        min_size=1, max_size=5))  # fmt: skip
    def requests(self, many: list[tuple[int, bytes, bool, bool]]) -> None:
        for size, method, chunked, at_once in many:
            self.request(size, method, chunked, at_once)

    def request(self, size: int, method: bytes, chunked: bool, at_once: bool) -> None:
        caller = Caller(len(self.callers), size, method, chunked=chunked)
        self.callers.append(caller)
        length = (b"transfer-encoding", b"chunked") if chunked else (b"content-length", b"%d" % size)
        target = b"/%d" % caller.number
        request = headers.parse_request(method, target, "1.1", [(b"host", b"x"), length], b"")
        caller.exchange = self.instance.make_exchange(request, caller)  # type: ignore[arg-type]
        if at_once:
            caller.offered = size
        self.do(caller.exchange.start)
        self.turn()

    @precondition(going)
    @rule(pick=picks, share=st.sampled_from([0.1, 0.5, 1.0]))
    def offer(self, pick: int, share: float) -> None:
        going = [each for each in self.callers if each.offered < each.size and not each.outcomes]
        if going:
            caller = going[pick % len(going)]
            caller.offered += max(1, int((caller.size - caller.offered) * share))
            self.turn()

    @precondition(going)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        going = [each for each in self.callers if not each.outcomes]
        if going:
            caller = going[pick % len(going)]
            caller.outcomes.append("left")
            self.do(caller.exchange.on_client_gone)
            self.turn()

    @rule(pick=picks)
    def stall_or_read(self, pick: int) -> None:
        if self.callers:
            caller = self.callers[pick % len(self.callers)]
            caller.write_paused = not caller.write_paused
            if not caller.write_paused and "left" not in caller.outcomes:
                self.do(caller.exchange.on_writable)
            self.turn()

    # --- dials ---

    @precondition(dialling)
    @rule(pick=picks)
    def dial_succeeds(self, pick: int) -> None:
        self.dials = [each for each in self.dials if not each[1].done()]
        if not self.dials:
            return
        make, future = self.dials.pop(pick % len(self.dials))

        def connect() -> None:
            connection = make()
            transport = Transport(self.loop)
            transport.protocol = connection
            peer = Peer(self, connection, transport)
            self.peers.append(peer)
            connection.connection_made(transport)  # type: ignore[arg-type]
            peer.serve(peer.frames.settings((MAX_CONCURRENT_STREAMS, PEER_STREAMS)))
            future.set_result(connection)

        self.do(connect)
        self.turn()

    @precondition(dialling)
    @rule(pick=picks, cause=st.sampled_from(DIAL_FAILURES))
    def dial_fails(self, pick: int, cause: errors.Cause) -> None:
        self.dials = [each for each in self.dials if not each[1].done()]
        if self.dials:
            _, future = self.dials.pop(pick % len(self.dials))
            future.set_exception(UpstreamError(cause, "", processed=Processed.NEVER_SENT))
            self.turn()

    # --- the upstream ---

    @precondition(streaming)
    @rule(pick=picks)
    def execute(self, pick: int) -> None:
        found = self.pick(pick, lambda each: each.ended and not each.executed)
        if found:
            self.run(found[1])

    def run(self, stream: Stream) -> None:
        stream.executed = True
        self.executed[stream.number] += 1

    @precondition(connected)
    @rule()
    def prosper(self) -> None:
        """Peers run all that they have, and answer most of it."""
        for peer in self.peers:
            for stream in peer.open(lambda each: each.ended):
                if not stream.executed:
                    self.run(stream)
                if not stream.responding and stream.id % 3:
                    stream.over = True
                    peer.serve(peer.frames.response(stream.id, end=True))
        self.turn()

    @precondition(streaming)
    @rule(pick=picks, end=st.booleans(), early=st.booleans())
    def respond(self, pick: int, end: bool, early: bool) -> None:
        found = self.pick(
            pick, lambda each: (each.executed or (early and not each.ended)) and not each.responding
        )
        if found:
            peer, stream = found
            if not stream.executed:
                self.run(stream)
            stream.responding, stream.over = True, end
            peer.serve(peer.frames.response(stream.id, end=end))
            self.turn()

    @precondition(streaming)
    @rule(pick=picks, size=st.sampled_from([0, 1, 9000, 16_384]), end=st.booleans())
    def respond_more(self, pick: int, size: int, end: bool) -> None:
        found = self.pick(pick, lambda each: each.responding)
        if found and self.sent_room(found[1], size):
            peer, stream = found
            stream.over = end
            peer.serve(peer.frames.data(stream.id, bytes(size), end=end))
            self.turn()

    def sent_room(self, stream: Stream, size: int) -> bool:
        """A window of the least size is never exceeded."""
        caller = self.callers[stream.number]
        return not caller.write_paused or caller.data + size < 64 << 10

    @precondition(streaming)
    @rule(
        pick=picks, code=st.sampled_from([INTERNAL_ERROR, ENHANCE_YOUR_CALM, REFUSED_STREAM, REFUSED_STREAM])
    )
    def reset(self, pick: int, code: int) -> None:
        found = self.pick(pick, lambda each: code != REFUSED_STREAM or not each.executed)
        if found:
            peer, stream = found
            stream.over, stream.refused = True, code == REFUSED_STREAM
            peer.serve(peer.frames.reset(stream.id, code))
            self.turn()

    @precondition(connected)
    @rule(pick=picks, above=st.integers(0, 2), code=st.sampled_from([0, 0, ENHANCE_YOUR_CALM]))
    def goaway(self, pick: int, above: int, code: int) -> None:
        alive = [peer for peer in self.peers if peer.alive]
        if alive:
            peer = alive[pick % len(alive)]
            taken = [each.id for each in peer.streams.values() if each.executed]
            peer.last = min(peer.last, max(taken, default=0) + 2 * above)
            peer.serve(peer.frames.goaway(peer.last, code))
            self.turn()

    @rule(pick=picks)
    def acknowledge_ping(self, pick: int) -> None:
        waiting = [peer for peer in self.peers if peer.pings and peer.alive]
        if waiting:
            peer = waiting[pick % len(waiting)]
            peer.serve(peer.frames.ping(peer.pings.pop(0), ack=True))
            self.turn()

    @precondition(connected)
    @rule(pick=picks, reset=st.booleans())
    def lose(self, pick: int, reset: bool) -> None:
        alive = [peer for peer in self.peers if peer.alive]
        if alive:
            peer = alive[pick % len(alive)]
            peer.transport.closed = True
            error = ConnectionResetError() if reset else None
            self.do(lambda: peer.connection.connection_lost(error))
            self.turn()

    # --- time ---

    @rule(seconds=st.sampled_from([0.03, 0.2, 1.0, 4.5, 12.0, 61.0]))
    def wait(self, seconds: float) -> None:
        self.do(lambda: self.clock.advance(seconds))
        self.turn()

    # --- what holds ---

    @invariant()
    def one_outcome_at_most(self) -> None:
        for caller in self.callers:
            assert len(caller.outcomes) <= 1, caller.outcomes
            assert caller.finished == len(caller.outcomes), (caller.finished, caller.outcomes)

    @invariant()
    def memory_accounted_is_memory_held(self) -> None:
        held = sum(each.body.reserved for each in self.callers if each.body is not None)
        owed = sum(each.exchange._uncredited for each in self.callers)
        assert self.arena.used == held + owed
        assert self.arena.used <= LIMIT_BYTES
        assert not (self.keep and self.memory.given_up)

    @invariant()
    def connections_are_within_their_limits(self) -> None:
        connections = list(self.instance.pool.connections)
        assert sum(each.is_open for each in connections) <= MAX_CONNS
        assert all(each.load <= PEER_STREAMS for each in connections)
        assert self.instance.pool.waiting <= 4

    @invariant()
    def no_post_runs_twice(self) -> None:
        for number, count in self.executed.items():
            assert count <= (1 if self.callers[number].method == b"POST" else 2)

    def teardown(self) -> None:
        """Everything ends: each request comes to its outcome and gives back what it held."""
        if not hasattr(self, "instance"):
            return
        try:
            for caller in self.callers:
                caller.write_paused = False
                if "left" not in caller.outcomes:
                    self.do(caller.exchange.on_writable)
            for _ in range(12):
                for peer in [peer for peer in self.peers if peer.alive]:
                    peer.transport.closed = True
                    self.do(lambda peer=peer: peer.connection.connection_lost(None))  # type: ignore[misc]
                while self.dials:
                    self.dial_fails(0, errors.CONNECT_FAILED)
                self.wait(21.0)
            assert [caller.finished for caller in self.callers] == [1] * len(self.callers)
            self.one_outcome_at_most()
            assert not self.instance.exchanges
            assert (self.arena.used, self.arena.live) == (0, 0)
            assert (self.memory.waiting, self.instance.pool.waiting) == (0, 0)
            assert not self.instance.pool.connections
        finally:
            self.patches.undo()
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(0))
            self.loop.close()


@pytest.mark.parametrize("pressure", ["drop", "keep"])
def test_any_order_of_events_keeps_the_books(engine: str, pressure: str) -> None:
    """docs/architecture.md; RFC 9113 sections 6.8 and 8.7, RFC 9110 section 9.2.2."""

    class Machine(ProxyMachine):
        pass

    Machine.engine = engine
    Machine.keep = pressure == "keep"
    profile = hypothesis_settings()
    examples = max(40, profile.max_examples // 4)
    run_state_machine_as_test(
        Machine, settings=hypothesis_settings(max_examples=examples, stateful_step_count=50, deadline=None)
    )
