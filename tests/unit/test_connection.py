"""One HTTP/2 connection between a fake transport and an h2 server in memory."""

from __future__ import annotations

import asyncio
import weakref
from types import SimpleNamespace
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from tests.support.fake_clock import FakeClock

from h2ping._fast import Arena
from h2ping.errors import UpstreamError
from h2ping.upstream.connection import Connection, describe
from h2ping.upstream.keepalive import Cadence, Schedule
from h2ping.upstream.wire import WireLimits

REQUEST = [(b":method", b"POST"), (b":scheme", b"https"), (b":authority", b"judge"), (b":path", b"/v1")]


class FakeTransport:
    """Holds what was written until the test takes it."""

    def __init__(self, alpn: str | None = "h2") -> None:
        self.tls = SimpleNamespace(selected_alpn_protocol=lambda: alpn)
        self.written = bytearray()
        self.writes: list[int] = []
        self.closed = self.aborted = False

    def get_extra_info(self, name: str) -> Any:
        return self.tls if name == "ssl_object" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None:
        self.high = high

    def write(self, data: Any) -> None:
        assert not self.closed
        self.written += data
        self.writes.append(len(data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(bytes(part) for part in parts))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def abort(self) -> None:
        self.aborted = True

    def take(self) -> bytes:
        data = bytes(self.written)
        self.written.clear()
        return data


class Recorder:
    """A receiver that writes down its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_response(self, status: int, fields: Any, end: bool) -> None:
        self.calls.append(("response", status, end))

    def on_data(self, data: Any) -> None:
        self.calls.append(("data", bytes(data)))

    def on_end(self, trailers: Any) -> None:
        self.calls.append("end")

    def on_upload_done(self) -> None:
        self.calls.append("upload-done")

    def on_failed(self, error: UpstreamError) -> None:
        self.calls.append(("failed", error.cause.token, error.processed.value, error.detail))


class World:
    """A connection, its owner's books, and the peer."""

    def __init__(self, schedule: Schedule | None = None) -> None:
        self.clock = FakeClock()
        self.loads = 0
        self.lost = 0
        self.goaways: list[tuple[int, int, bytes]] = []
        self.round_trips: list[float] = []
        cadence = Cadence(schedule, 340.0)
        self.connection = Connection(7, self, self.clock, cadence, WireLimits())
        self.transport = FakeTransport()
        self.peer = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self.events: list[Any] = []
        self.acks = True

    def on_load(self, connection: Connection) -> None:
        self.loads += 1

    def on_lost(self, connection: Connection) -> None:
        self.lost += 1

    def on_goaway(self, connection: Connection, last: int, code: int, debug: bytes) -> None:
        self.goaways.append((last, code, debug))

    def on_round_trip(self, connection: Connection, seconds: float) -> None:
        self.round_trips.append(seconds)

    async def connect(self, **settings: int) -> World:
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]
        self.peer.initiate_connection()
        if settings:
            self.peer.update_settings(
                {h2.settings.SettingCodes[name]: value for name, value in settings.items()}
            )
        await self.exchange()
        await self.connection.settled
        return self

    def feed(self, data: bytes) -> None:
        while data and not self.connection.lost:
            buffer = self.connection.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self.connection.buffer_updated(len(part))

    async def exchange(self) -> None:
        """Carry bytes both ways until nothing moves."""
        for _ in range(20):
            await asyncio.sleep(0)
            sent = self.transport.take()
            if sent:
                self.events += self.peer.receive_data(sent)
            answer = self.peer.data_to_send()
            if answer and self.acks:
                self.feed(answer)
            if not sent and not answer:
                return

    def open(self, content: bytes | None = None) -> Recorder:
        receiver = Recorder()
        body = None
        if content is not None:
            body = Arena(0).open(len(content), True)
            assert body is not None
            while content:
                content = content[body.append(content) :]
            body.finish()
        self.stream = self.connection.open(REQUEST, body, receiver)  # type: ignore[arg-type]
        return receiver

    def seen(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(autouse=True)
def _no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h2ping.upstream.keepalive.random.random", lambda: 0.0)


async def test_a_peer_that_chose_no_h2_gets_no_preface() -> None:
    w = World()
    w.transport = FakeTransport("http/1.1")
    w.connection.connection_made(w.transport)  # type: ignore[arg-type]
    assert (w.transport.take(), w.transport.aborted, w.lost) == (b"", True, 1)
    with pytest.raises(UpstreamError, match=r"the peer chose http/1\.1"):
        await w.connection.settled


async def test_a_connection_is_open_once_the_peers_settings_came() -> None:
    w = World()
    assert not w.connection.is_open
    await w.connect()
    assert w.connection.is_open
    assert describe(w.connection, w.clock.now())["id"] == 7


async def test_a_request_and_its_response_pass() -> None:
    w = await World().connect()
    receiver = w.open(b"x" * 100_000)
    await w.exchange()
    assert sum(len(event.data) for event in w.seen(h2.events.DataReceived)) > 65_000
    for event in w.seen(h2.events.DataReceived):
        w.peer.acknowledge_received_data(event.flow_controlled_length, 1)
    await w.exchange()
    assert b"".join(e.data for e in w.seen(h2.events.DataReceived)) == b"x" * 100_000
    w.peer.send_headers(1, [(b":status", b"200")])
    w.peer.send_data(1, b"ok", end_stream=True)
    await w.exchange()
    assert receiver.calls == ["upload-done", ("response", 200, False), ("data", b"ok"), "end"]
    assert w.connection.load == 0


async def test_silence_brings_a_ping_whose_reply_proves_life() -> None:
    w = await World(Schedule(60.0, 15.0)).connect()
    receiver = w.open()
    await w.exchange()
    w.clock.advance(60)
    assert len(w.transport.written) == 17
    w.clock.advance(1)
    await w.exchange()
    assert w.round_trips == [1.0]
    w.clock.advance(59)
    await w.exchange()
    assert receiver.calls == []


async def test_a_connection_that_proves_no_life_fails_its_requests_and_is_aborted() -> None:
    w = await World(Schedule(60.0, 15.0)).connect()
    receiver = w.open()
    await w.exchange()
    w.clock.advance(64)
    assert not w.connection.is_open
    w.clock.advance(11)
    assert receiver.calls == [
        ("failed", "ping-timeout", "maybe-processed", "nothing received for 75s, PING unanswered")
    ]
    assert (w.transport.aborted, w.lost) == (True, 1)
    assert w.clock.pending == 0


async def test_a_late_reply_opens_the_connection_again() -> None:
    w = await World(Schedule(60.0, 15.0)).connect()
    w.open()
    await w.exchange()
    w.clock.advance(70)
    loads = w.loads
    await w.exchange()
    assert w.connection.is_open
    assert w.loads > loads


async def test_goaway_lets_streams_below_last_id_finish_and_closes_after_them() -> None:
    w = await World().connect()
    first, second = w.open(), w.open()
    await w.exchange()
    w.peer.close_connection(last_stream_id=1)
    # h2's server closes its machine on its own GOAWAY: the answer below is written by hand.
    await w.exchange()
    assert w.goaways == [(1, 0, b"")]
    assert second.calls[0][:3] == ("failed", "goaway-refused", "refused")
    assert not w.connection.is_open
    assert not w.transport.closed
    w.feed(bytes.fromhex("000001010500000001") + b"\x88")
    assert first.calls == [("response", 200, True)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert w.transport.closed


async def test_a_retired_idle_connection_says_goaway_and_closes() -> None:
    w = await World().connect()
    w.connection.retire()
    await w.exchange()
    assert w.seen(h2.events.ConnectionTerminated)
    assert w.transport.closed


async def test_a_retired_connection_serves_its_streams_to_the_end() -> None:
    w = await World().connect()
    receiver = w.open()
    w.connection.retire()
    await w.exchange()
    assert not w.transport.closed
    w.peer.send_headers(1, [(b":status", b"204")], end_stream=True)
    await w.exchange()
    assert receiver.calls == [("response", 204, True)]
    assert w.transport.closed


async def test_a_lost_connection_fails_every_stream_at_once_and_says_how() -> None:
    w = await World().connect()
    receivers = [w.open(), w.open()]
    w.connection.connection_lost(ConnectionResetError())
    for receiver in receivers:
        assert receiver.calls[0][:2] == ("failed", "connection-lost")
    assert "reset" in receivers[0].calls[0][3]
    w.connection.connection_lost(None)
    assert w.lost == 1


async def test_eof_ends_the_transport() -> None:
    w = await World().connect()
    assert w.connection.eof_received() is False


async def test_a_peer_that_breaks_the_protocol_hears_why() -> None:
    w = await World().connect()
    receiver = w.open()
    await w.exchange()
    w.feed(bytes.fromhex("000008060000000001") + bytes(8))  # PING on stream 1 (RFC 9113 section 6.7)
    assert receiver.calls[0][:2] == ("failed", "protocol-error")
    assert w.transport.closed
    assert w.lost == 1
    goaway = w.transport.take()
    assert b"\x00\x00\x08\x07\x00" in goaway


async def test_a_full_transport_holds_data_back_and_lets_pings_pass() -> None:
    w = await World(Schedule(60.0, 15.0)).connect(INITIAL_WINDOW_SIZE=2**20)
    w.transport.take()
    w.connection.pause_writing()
    w.open(b"x" * 50_000)
    await asyncio.sleep(0)
    assert len(w.transport.take()) < 200
    w.clock.advance(60)
    assert len(w.transport.take()) == 17
    w.connection.resume_writing()
    await asyncio.sleep(0)
    assert len(w.transport.take()) > 50_000


async def test_output_is_written_once_a_turn() -> None:
    w = await World().connect()
    w.transport.writes.clear()
    for _ in range(10):
        w.open()
    await asyncio.sleep(0)
    assert len(w.transport.writes) == 1


async def test_a_lost_connection_lets_go_of_its_transport() -> None:
    """TLS buffers of 300 KiB would stay until the collector next looks for cycles, which may be never."""
    w = await World().connect()
    w.open()
    ends = weakref.ref(w.transport)
    w.connection.abort()
    w.connection.connection_lost(None)
    del w.transport
    assert ends() is None
    assert w.lost == 1
