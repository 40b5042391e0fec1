"""The lab's origin is a right HTTP/2 peer, and does what its script says.

Its clients here are independent of this package: the h2 library and, where it is installed, curl.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import ssl
from collections import deque
from typing import TYPE_CHECKING

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from h2ping.lab import replies
from h2ping.lab.certificate import Certificate
from h2ping.lab.frames import (
    FRAME_HEAD_BYTES,
    MAX_STREAM_ID,
    Code,
    FrameType,
    Setting,
    read_goaway,
    read_head,
)
from h2ping.lab.origin import LabOrigin
from h2ping.lab.script import Script, steer
from h2ping.lab.trace import Scale

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

PATIENCE = 10.0


class Peer:
    """A client made of the h2 library; events are read one by one.

    GOAWAY is taken out in front of h2, whose state machine would refuse everything that comes after it.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()
        self.events: deque[h2.events.Event] = deque()
        self.rest = b""
        self.flush()

    @classmethod
    async def open(cls, origin: LabOrigin) -> Peer:
        context = origin.certificate.client_context(("h2",))
        return cls(*await asyncio.open_connection("127.0.0.1", origin.port, ssl=context))

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def ask(self, path: str = "/echo", body: bytes = b"", method: str = "POST", **fields: str) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        head = [(":method", method), (":scheme", "https"), (":authority", "localhost"), (":path", path)]
        head += [(name.replace("_", "-"), value) for name, value in fields.items()]
        self.h2.send_headers(stream_id, head, end_stream=not body)
        if body:
            self.h2.send_data(stream_id, body, end_stream=True)
        self.flush()
        return stream_id

    async def next(self, *kinds: type[h2.events.Event]) -> h2.events.Event:
        """The next event of one of `kinds`; others are dropped. EOFError when the connection ended."""
        while True:
            while self.events:
                event = self.events.popleft()
                if isinstance(event, h2.events.DataReceived):
                    self.h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
                    self.flush()
                if isinstance(event, kinds):
                    return event
            data = await asyncio.wait_for(self.reader.read(65536), PATIENCE)
            if not data:
                raise EOFError
            self.take(data)
            self.flush()

    def take(self, data: bytes) -> None:
        data = self.rest + data
        while len(data) >= FRAME_HEAD_BYTES:
            size, kind, _, _ = read_head(data, 0)
            end = FRAME_HEAD_BYTES + size
            if len(data) < end:
                break
            if kind == FrameType.GOAWAY:
                event = h2.events.ConnectionTerminated()
                event.last_stream_id, _ = read_goaway(data[FRAME_HEAD_BYTES:end])
                self.events.append(event)
            else:
                self.events.extend(self.h2.receive_data(data[:end]))
            data = data[end:]
        self.rest = data

    async def answer(self, stream_id: int) -> tuple[dict[bytes, bytes], bytes]:
        """The whole response of the only stream that is open."""
        head: dict[bytes, bytes] = {}
        body = b""
        kinds = (h2.events.ResponseReceived, h2.events.DataReceived, h2.events.StreamEnded)
        while True:
            event = await self.next(*kinds)
            if isinstance(event, h2.events.ResponseReceived):
                head = {bytes(name): bytes(value) for name, value in event.headers or []}
            elif isinstance(event, h2.events.DataReceived):
                body += event.data or b""
            elif isinstance(event, h2.events.StreamEnded) and event.stream_id == stream_id:
                return head, body


@pytest.fixture(scope="module")
def certificate() -> Iterator[Certificate]:
    made = Certificate()
    yield made
    made.close()


@pytest.fixture
async def origin(certificate: Certificate) -> AsyncIterator[LabOrigin]:
    async with LabOrigin(Script(event_gap=0.0), certificate=certificate) as started:
        yield started
        assert started.violations == []


@pytest.fixture
async def peer(origin: LabOrigin) -> AsyncIterator[Peer]:
    client = await Peer.open(origin)
    yield client
    client.writer.transport.abort()


async def test_first_settings_announce_128_streams(origin: LabOrigin, peer: Peer) -> None:
    """RFC 9113 section 6.5.2; 128 is what the balancer on the real path announces."""
    await peer.next(h2.events.RemoteSettingsChanged)
    assert peer.h2.remote_settings.max_concurrent_streams == 128
    await origin.until(lambda: origin.session.settings_acknowledged == 1)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/models", "/echo", "/prefix/echo"]
)
async def test_each_path_answers_json_of_the_stated_length(origin: LabOrigin, peer: Peer, path: str) -> None:
    head, body = await peer.answer(peer.ask(path, b"" if path.endswith("models") else b'{"model":"m"}'))
    if path.endswith("models"):
        head, body = await peer.answer(peer.ask(path, method="GET"))
    assert head[b":status"] == b"200"
    assert int(head[b"content-length"]) == len(body)
    json.loads(body)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_stream_true_is_answered_with_events(origin: LabOrigin, peer: Peer, path: str) -> None:
    head, body = await peer.answer(peer.ask(path, b'{"model": "m", "stream": true}'))
    assert head[b"content-type"] == b"text/event-stream"
    assert b"content-length" not in head
    assert len([part for part in body.split(b"\n\n") if part]) >= 6


async def test_unknown_path_is_404(origin: LabOrigin, peer: Peer) -> None:
    head, _ = await peer.answer(peer.ask("/nowhere"))
    assert head[b":status"] == b"404"


async def test_echo_hashes_the_body_when_asked(origin: LabOrigin, peer: Peer) -> None:
    _, body = await peer.answer(peer.ask(body=b"hello", x_lab_hash="1"))
    assert json.loads(body)["sha256"] == hashlib.sha256(b"hello").hexdigest()
    _, body = await peer.answer(peer.ask(body=b"hello"))
    assert json.loads(body) == {"method": "POST", "path": "/echo", "length": 5, "sha256": None}


async def test_large_answers_obey_both_windows(origin: LabOrigin, peer: Peer) -> None:
    """RFC 9113 section 6.9: h2 raises on a byte too many."""
    first = peer.ask(x_lab_size="300000")
    _, body = await peer.answer(first)
    assert body == replies.filler(300_000)


async def test_interim_responses_and_trailers(origin: LabOrigin, peer: Peer) -> None:
    peer.ask(x_lab_interim="2", x_lab_trailers="1")
    for _ in range(2):
        await peer.next(h2.events.InformationalResponseReceived)
    event = await peer.next(h2.events.TrailersReceived)
    assert isinstance(event, h2.events.TrailersReceived)
    assert event.headers == [(b"x-lab-trailer", b"yes")]


async def test_executions_are_counted_per_id(origin: LabOrigin, peer: Peer) -> None:
    for _ in range(2):
        await peer.answer(peer.ask(x_lab_id="same"))
    await peer.answer(peer.ask(x_lab_id="other"))
    assert origin.executions == {"same": 2, "other": 1}
    assert origin.twice == ["same"]


async def test_a_refused_request_is_not_executed(origin: LabOrigin, peer: Peer) -> None:
    """RFC 9113 section 8.7."""
    peer.ask(body=b"x", x_lab_id="a", x_lab_refuse="1")
    event = await peer.next(h2.events.StreamReset)
    assert isinstance(event, h2.events.StreamReset)
    assert event.error_code == Code.REFUSED_STREAM
    assert origin.executions["a"] == 0
    await peer.answer(peer.ask(body=b"x", x_lab_id="a", x_lab_refuse="1"))
    assert origin.executions["a"] == 1
    assert origin.attempts["a"] == 2


async def test_goaway_below_a_request_refuses_it_and_lets_earlier_ones_finish(
    origin: LabOrigin, peer: Peer
) -> None:
    """RFC 9113 section 6.8."""
    kept = peer.ask(x_lab_id="kept", x_lab_delay="0.1")
    peer.ask(body=b"x", x_lab_id="refused", x_lab_goaway="1")
    await origin.until(lambda: origin.outcomes["goaway"] == 1)
    event = await peer.next(h2.events.ConnectionTerminated)
    assert isinstance(event, h2.events.ConnectionTerminated)
    assert event.last_stream_id == kept
    await peer.answer(kept)
    await origin.until(lambda: not origin.sessions)
    assert origin.executions == {"kept": 1}
    assert origin.goaways == 1


async def test_retiring_in_two_steps_names_all_streams_then_the_last_one(
    origin: LabOrigin, peer: Peer
) -> None:
    """RFC 9113 section 6.8: GOAWAY(2^31-1), a round trip, GOAWAY(last)."""
    asked = peer.ask(x_lab_delay="0.1")
    await origin.until(lambda: origin.waiting == 1)
    origin.session.retire()
    event = await peer.next(h2.events.ConnectionTerminated)
    assert isinstance(event, h2.events.ConnectionTerminated)
    assert event.last_stream_id == MAX_STREAM_ID
    event = await peer.next(h2.events.ConnectionTerminated)
    assert isinstance(event, h2.events.ConnectionTerminated)
    assert event.last_stream_id == asked
    await peer.answer(asked)
    await origin.until(lambda: origin.outcomes["answered"] == 1 and not origin.sessions)


async def test_streams_over_the_limit_are_refused_one_by_one(certificate: Certificate) -> None:
    """As a balancer does; the connection lives on. RFC 9113 section 5.1.2."""
    async with LabOrigin(Script(max_streams=2, delay=30.0), certificate=certificate) as origin:
        peer = await Peer.open(origin)
        for _ in range(3):
            peer.ask()
        event = await peer.next(h2.events.StreamReset)
        assert isinstance(event, h2.events.StreamReset)
        assert (event.stream_id, event.error_code) == (5, Code.REFUSED_STREAM)
        await origin.until(lambda: origin.waiting == 2)
        peer.writer.transport.abort()
        await origin.until(lambda: origin.outcomes["lost"] == 2)


async def test_pings_are_answered_and_recorded(origin: LabOrigin, peer: Peer) -> None:
    """RFC 9113 section 6.7."""
    peer.h2.ping(b"12345678")
    peer.flush()
    event = await peer.next(h2.events.PingAckReceived)
    assert isinstance(event, h2.events.PingAckReceived)
    assert event.ping_data == b"12345678"
    assert origin.session.pings == [b"12345678"]


async def test_pings_can_be_ignored(origin: LabOrigin, peer: Peer) -> None:
    origin.script.ignore_pings = True
    peer.h2.ping(b"12345678")
    peer.flush()
    await peer.answer(peer.ask())
    assert origin.pings == 1
    assert not any(isinstance(event, h2.events.PingAckReceived) for event in peer.events)


async def test_a_reset_by_the_client_cancels_the_answer(origin: LabOrigin, peer: Peer) -> None:
    asked = peer.ask(x_lab_delay="30")
    await origin.until(lambda: origin.waiting == 1)
    peer.h2.reset_stream(asked, Code.CANCEL)
    peer.flush()
    await origin.until(lambda: origin.outcomes["cancelled"] == 1 and origin.waiting == 0)
    assert origin.resets_seen == 1


async def test_a_reset_by_the_script_carries_its_code(origin: LabOrigin, peer: Peer) -> None:
    peer.ask(x_lab_reset=str(Code.ENHANCE_YOUR_CALM.value))
    event = await peer.next(h2.events.StreamReset)
    assert isinstance(event, h2.events.StreamReset)
    assert event.error_code == Code.ENHANCE_YOUR_CALM


async def test_half_an_answer_is_cut_after_the_wanted_bytes(origin: LabOrigin, peer: Peer) -> None:
    peer.ask(x_lab_size="100", x_lab_half="7", x_lab_reset="2")
    event = await peer.next(h2.events.DataReceived)
    assert isinstance(event, h2.events.DataReceived)
    assert event.data == replies.filler(7)
    await peer.next(h2.events.StreamReset)


@pytest.mark.parametrize("mode", ["fin", "rst"])
async def test_a_cut_ends_the_connection_without_goaway(origin: LabOrigin, peer: Peer, mode: str) -> None:
    peer.ask(x_lab_cut=mode)
    with pytest.raises((EOFError, ConnectionError)):
        await peer.next(h2.events.ConnectionTerminated)
    assert origin.outcomes["cut"] == 1


async def test_answers_are_held_until_all_have_arrived(certificate: Certificate) -> None:
    async with LabOrigin(Script(hold_until=3), certificate=certificate) as origin:
        peer = await Peer.open(origin)
        for _ in range(2):
            peer.ask()
        await origin.until(lambda: origin.waiting == 2)
        assert origin.outcomes["answered"] == 0
        peer.ask()
        await origin.until(lambda: origin.outcomes["answered"] == 3)
        assert origin.peak_waiting == 3
        peer.writer.transport.abort()


async def test_an_early_answer_does_not_wait_for_the_body(origin: LabOrigin, peer: Peer) -> None:
    """RFC 9113 section 8.1: a whole response, then RST_STREAM(NO_ERROR)."""
    stream_id = peer.h2.get_next_available_stream_id()
    head = [(":method", "POST"), (":scheme", "https"), (":authority", "localhost"), (":path", "/echo")]
    peer.h2.send_headers(stream_id, [*head, ("content-length", "99"), ("x-lab-early", "reset")])
    peer.flush()
    await peer.next(h2.events.StreamEnded)
    event = await peer.next(h2.events.StreamReset)
    assert isinstance(event, h2.events.StreamReset)
    assert event.error_code == Code.NO_ERROR


async def test_a_retiring_age_is_scaled(certificate: Certificate) -> None:
    async with LabOrigin(Script(max_age=10.0), certificate=certificate, scale=Scale(100)) as origin:
        peer = await Peer.open(origin)
        event = await peer.next(h2.events.ConnectionTerminated)
        assert isinstance(event, h2.events.ConnectionTerminated)
        peer.writer.transport.abort()


async def test_breaches_of_the_protocol_are_noted(certificate: Certificate) -> None:
    """RFC 9113 section 8.1.1: content-length and DATA must agree."""
    async with LabOrigin(certificate=certificate) as origin:
        peer = await Peer.open(origin)
        peer.ask(body=b"hello", content_length="4")
        event = await peer.next(h2.events.StreamReset)
        assert isinstance(event, h2.events.StreamReset)
        assert origin.violations == ["stream 1: content-length and DATA differ"]
        assert origin.executed == 0
        peer.writer.transport.abort()


async def test_further_settings_reach_the_client(origin: LabOrigin, peer: Peer) -> None:
    await peer.next(h2.events.RemoteSettingsChanged)
    origin.session.send_settings({Setting.MAX_CONCURRENT_STREAMS.value: 1})
    event = await peer.next(h2.events.RemoteSettingsChanged)
    assert isinstance(event, h2.events.RemoteSettingsChanged)
    assert peer.h2.remote_settings.max_concurrent_streams == 1


@pytest.mark.parametrize(("alpn", "chosen"), [((), None), (("http/1.1",), None), (("h2",), "h2")])
async def test_alpn_is_what_the_script_says(
    certificate: Certificate, alpn: tuple[str, ...], chosen: str | None
) -> None:
    """RFC 7301."""
    async with LabOrigin(Script(alpn=alpn), certificate=certificate) as origin:
        context = certificate.client_context(("h2",))
        _, writer = await asyncio.open_connection("127.0.0.1", origin.port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == chosen
        writer.transport.abort()


async def test_an_expired_certificate_does_not_verify() -> None:
    expired = Certificate(expired=True)
    async with LabOrigin(certificate=expired) as origin:
        context = expired.client_context(("h2",))
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await asyncio.open_connection("127.0.0.1", origin.port, ssl=context)
    expired.close()


async def test_the_http1_face_executes_the_same_requests(certificate: Certificate) -> None:
    async with LabOrigin(Script(alpn=("h2", "http/1.1")), certificate=certificate) as origin:
        context = certificate.client_context(("http/1.1",))
        reader, writer = await asyncio.open_connection("127.0.0.1", origin.port, ssl=context)
        for _ in range(2):  # keep-alive
            writer.write(b"POST /echo HTTP/1.1\r\nHost: lab\r\nContent-Length: 2\r\nX-Lab-Id: a\r\n\r\nhi")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            assert head.startswith(b"HTTP/1.1 200 OK\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length))["length"] == 2
        assert origin.executions["a"] == 2
        assert origin.turns == 1
        writer.transport.abort()


@pytest.mark.pure
def test_steering_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        steer([(b"x-lab-delay", b"soon")])


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_agrees_over_http2(origin: LabOrigin) -> None:
    """An independent implementation (nghttp2) for upload, download and status."""
    body = replies.filler(3_000_000)
    process = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--http2", "--cacert", origin.ca_file, "-H", "x-lab-hash: 1", "--data-binary", "@-",
        "-w", " %{http_version}", f"{origin.url}/echo",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(body), PATIENCE)
    answer, _, version = output.decode().rpartition(" ")
    assert version == "2"
    assert json.loads(answer)["sha256"] == hashlib.sha256(body).hexdigest()
    assert json.loads(answer)["length"] == len(body)
