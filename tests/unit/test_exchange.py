"""One request's life: each test one rule of h2ping.exchange, with everything around it faked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from zlib import compress, decompress

import pytest
from tests.support.fake_clock import FakeClock

from h2ping import config, errors, headers, log
from h2ping._fast.arena_py import Arena
from h2ping.clock import Deadlines
from h2ping.errors import Processed, UpstreamError
from h2ping.exchange import (
    CANCEL,
    ENHANCE_YOUR_CALM,
    INTERIM_BURST,
    NO_ERROR,
    WINDOW_MOST_BYTES,
    Exchange,
    Phase,
)
from h2ping.instance import END_STREAM_PATIENCE
from h2ping.memory import SET_ASIDE_BYTES, Memory
from h2ping.packing import cells_of
from h2ping.upstream.wire import WireLimits


class FakeStream:
    def __init__(self, ident: int, receiver: Any, body: Any) -> None:
        self.id, self.receiver, self.body = ident, receiver, body
        self.upload_done = body is None
        self.sent = 0
        self.resets: list[int] = []
        self.credited = 0
        self.readied = 0

    def body_ready(self) -> None:
        self.readied += 1

    def credit(self, size: int) -> None:
        self.credited += size

    def widen(self, size: int) -> None:
        self.widened = getattr(self, "widened", 0) + size

    def reset(self, code: int) -> None:
        self.resets.append(code)

    def upload(self) -> bytes:
        """Send all there is, as the Wire would."""
        body = self.body
        sent = bytes(body.peek(0, body.received)) if body.received else b""
        while len(sent) < body.received:
            sent += bytes(body.peek(len(sent), body.received))
        body.sent_to(body.received)
        if body.complete:
            self.upload_done = True
            self.receiver.on_upload_done()
        return sent


class FakeConnection:
    def __init__(self, ident: int) -> None:
        self.ident, self.requests, self.born, self.last_received = ident, 0, 1000.0, 1000.0
        self.streams: list[FakeStream] = []

    def open(self, fields: Any, body: Any, receiver: Any) -> FakeStream:
        self.fields = fields
        stream = FakeStream(2 * len(self.streams) + 1, receiver, body)
        self.streams.append(stream)
        return stream


class FakePool:
    """Gives the next connection at once, or holds waiters while there is none."""

    def __init__(self) -> None:
        self.limits = WireLimits()
        self.connection: FakeConnection | None = FakeConnection(1)
        self.waiting: list[Any] = []

    def acquire(self, waiter: Any) -> None:
        if self.connection is None:
            self.waiting.append(waiter)
        else:
            waiter.on_connection(self.connection)

    def cancel(self, waiter: Any) -> None:
        if waiter in self.waiting:
            self.waiting.remove(waiter)


class FakeClient:
    def __init__(self) -> None:
        self.will_close = self.write_paused = self.aborted = self.dropped = False
        self.body: Any = None
        self.owed: Any = None
        self.head = b""
        self.framing: headers.Framing | None = None
        self.data = b""
        self.pieces: list[Any] = []
        self.interims: list[bytes] = []
        self.answered: bytes | None = None
        self.ended = False
        self.resumed = 0

    def receive_body(self, body: Any) -> None:
        self.body = body

    def resume_body(self) -> None:
        self.resumed += 1

    def send_interim(self, head: bytes) -> None:
        self.interims.append(head)

    def send_head(self, head: bytes, framing: headers.Framing) -> None:
        self.head, self.framing = head, framing

    def send_data(self, data: Any) -> None:
        self.data += bytes(data)
        self.pieces.append(data)

    def send_end(self, trailers: Any) -> None:
        self.ended = True

    def answer(self, response: bytes, close: bool) -> None:
        assert self.answered is None
        self.answered = response

    def abort(self) -> None:
        self.aborted = True

    def drop(self) -> None:
        self.dropped = True


class FakePacker:
    """zlib, when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.unpack = decompress

    def pack(self, body: Any, on_packed: Any) -> None:
        self.jobs.append((cells_of(body), on_packed))

    def finish(self) -> None:
        views, on_packed = self.jobs.pop(0)
        on_packed([compress(b"".join(views[start : start + 8])) for start in range(0, len(views), 8)])

    def close(self) -> None:
        pass


class World:
    """One instance with fakes, and one exchange on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: int = 0, **settings: str) -> None:
        self.clock = FakeClock()
        self.settings = config.parse({"upstream": "https://judge.example/base", **settings})
        self.pool = FakePool()
        self.arena = Arena(memory)
        self.packer = FakePacker()
        packer: Any = self.packer if memory else None
        self.memory = Memory(self.arena, self.clock, 60.0, keep=False, packer=packer)
        self.outcomes: list[tuple[Exchange, Any]] = []
        self.retried: list[str] = []
        self.lines: list[log.AccessRecord] = []
        self.client = FakeClient()
        monkeypatch.setattr(log, "request_retried", lambda _, record: self.lines.append(record))
        monkeypatch.setattr("h2ping.retry.random.uniform", lambda low, high: high)

    def instance(self) -> Any:
        return SimpleNamespace(
            settings=self.settings,
            clock=self.clock,
            memory=self.memory,
            pool=self.pool,
            authority=self.settings.upstream.authority,
            exchanges={},
            endings=Deadlines(self.clock, END_STREAM_PATIENCE, Exchange.on_no_end),
            first_byte=Deadlines(
                self.clock, self.settings.first_byte_timeout, Exchange.on_first_byte_timeout
            ),
            metrics=SimpleNamespace(retried=self.retried.append),
            next_ident=lambda: 1,
            on_finished=lambda exchange, error: self.outcomes.append((exchange, error)),
        )

    def start(
        self, *fields: tuple[bytes, bytes], method: bytes = b"POST", target: bytes = b"/v1"
    ) -> Exchange:
        request = headers.parse_request(method, target, "1.1", [(b"host", b"x"), *fields], b"/base")
        exchange = Exchange(self.instance(), request, self.client)  # type: ignore[arg-type]
        exchange.start()
        return exchange

    def post(self, content: bytes) -> Exchange:
        exchange = self.start((b"content-length", b"%d" % len(content)))
        self.send_body(exchange, content)
        return exchange

    def send_body(self, exchange: Exchange, content: bytes) -> None:
        while content and (taken := self.client.body.append(content)):
            content = content[taken:]
            exchange.on_body()
        assert not content
        self.client.body.finish()
        exchange.on_body_end(None)

    @property
    def stream(self) -> FakeStream:
        assert self.pool.connection is not None
        return self.pool.connection.streams[-1]

    def outcome(self) -> str | None:
        """The cause of the one outcome; None for a whole response."""
        assert len(self.outcomes) == 1
        error = self.outcomes[0][1]
        return error.cause.token if error is not None else None


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda **settings: World(monkeypatch, **settings)


def refused() -> UpstreamError:
    return UpstreamError(errors.GOAWAY_REFUSED, "GOAWAY", processed=Processed.REFUSED, code=0)


def lost() -> UpstreamError:
    return UpstreamError(errors.CONNECTION_LOST, "closed by the peer")


def test_a_request_without_a_body_goes_up_and_its_response_comes_down(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    assert (b":path", b"/base/v1") in w.pool.connection.fields
    assert (b":authority", b"judge.example") in w.pool.connection.fields
    exchange.on_response(200, [(b"content-length", b"2")], end=False)
    exchange.on_data(memoryview(b"ok"))
    exchange.on_end(None)
    assert (w.client.data, w.client.ended, w.outcome()) == (b"ok", True, None)
    assert w.stream.credited == 2
    assert w.stream.resets == []


def test_the_first_body_byte_goes_up_before_the_last_came_in(make: Any) -> None:
    w = make()
    exchange = w.start((b"content-length", b"10"))
    w.client.body.append(b"12345")
    exchange.on_body()
    assert w.stream.readied == 1
    assert not w.client.body.complete


def test_a_refused_request_is_sent_again_with_exactly_the_same_bytes(make: Any) -> None:
    w = make()
    content = bytes(range(256)) * 300
    exchange = w.post(content)
    first = w.stream
    assert first.upload() == content
    exchange.on_failed(refused())
    second = w.stream
    assert second is not first
    assert second.upload() == content
    exchange.on_response(200, [], end=True)
    assert (w.outcome(), exchange.attempts, w.retried) == (None, 2, ["goaway-refused"])


def test_a_maybe_processed_post_is_never_sent_again(make: Any) -> None:
    w = make()
    exchange = w.post(b"hello")
    w.stream.upload()
    exchange.on_failed(lost())
    assert len(w.pool.connection.streams) == 1
    assert w.outcome() == "connection-lost"
    assert w.client.answered.startswith(b"HTTP/1.1 502 ")


def test_a_maybe_processed_get_is_sent_again_once(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_failed(lost())
    w.clock.advance(1)
    exchange.on_failed(lost())
    assert (len(w.pool.connection.streams), w.outcome()) == (2, "connection-lost")


def test_a_copy_that_was_not_kept_cannot_be_sent_again(make: Any) -> None:
    w = make(retry_body_limit="4")
    exchange = w.post(b"hello")
    w.stream.upload()
    exchange.on_failed(refused())
    assert w.outcome() == "copy-not-kept"
    assert b"goaway-refused" in w.client.answered


def test_a_copy_given_up_under_pressure_loses_only_the_resend(make: Any) -> None:
    w = make()
    exchange = w.post(b"hello")
    w.stream.upload()
    exchange.give_up_copy()
    assert w.arena.used == 0
    exchange.on_failed(refused())
    assert w.outcome() == "copy-not-kept"


def test_the_copy_is_freed_when_the_response_begins(make: Any) -> None:
    w = make()
    exchange = w.post(b"hello")
    w.stream.upload()
    assert w.arena.used > 0
    exchange.on_response(200, [], end=False)
    assert (w.arena.used, w.arena.live) == (0, 0)


def test_after_the_first_response_byte_a_failure_cuts_the_client(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    exchange.on_data(memoryview(b"half"))
    exchange.on_failed(refused())
    assert (w.client.aborted, w.client.ended, w.client.answered) == (True, False, None)
    assert w.outcome() == "goaway-refused"


def test_a_response_that_is_whole_by_its_length_is_whole_without_end_stream(make: Any) -> None:
    """RFC 9112 section 6.3: the client has it all, so its connection is not cut."""
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [(b"content-length", b"5")], end=False)
    exchange.on_data(memoryview(b"12345"))
    exchange.on_failed(lost())
    assert (w.client.ended, w.client.aborted, w.outcome()) == (True, False, None)


@pytest.mark.parametrize("content", [b"", b"1234"])
def test_a_response_that_lacks_a_byte_of_its_length_is_cut(make: Any, content: bytes) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [(b"content-length", b"5")], end=False)
    if content:
        exchange.on_data(memoryview(content))
    exchange.on_failed(lost())
    assert (w.client.ended, w.client.aborted) == (False, True)


def test_a_client_that_goes_away_cancels_the_stream(make: Any) -> None:
    w = make()
    exchange = w.post(b"hello")
    exchange.on_client_gone()
    assert w.stream.resets == [CANCEL]
    assert w.outcome() == "client-gone"
    assert exchange.record(w.outcomes[0][1]).status == 499
    assert w.arena.live == 0


def test_a_client_that_goes_away_while_it_waits_leaves_the_queue(make: Any) -> None:
    w = make()
    w.pool.connection = None
    exchange = w.start(method=b"GET")
    exchange.on_client_gone()
    assert w.pool.waiting == []


def test_a_client_that_goes_away_between_two_attempts_is_not_sent_again(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_failed(lost())
    exchange.on_client_gone()
    w.clock.advance(60)
    assert len(w.pool.connection.streams) == 1


@pytest.mark.parametrize(
    ("before", "processed"),
    [
        ("waiting", "never-sent"),
        ("sent", "maybe-processed"),
        ("refused", "refused"),
        ("lost", "maybe-processed"),
        ("lost, then out of reach", "maybe-processed"),
    ],
)
def test_the_line_says_whether_any_attempt_may_have_been_processed(
    make: Any, before: str, processed: str
) -> None:
    """RFC 9110 section 9.2.2: whoever repeats a call wants to know, also after one that he gave up himself."""
    w = make()
    if before == "waiting":
        w.pool.connection = None
    exchange = w.start(method=b"GET")
    if before in ("refused", "lost", "lost, then out of reach"):
        w.pool.connection = None
        exchange.on_failed(refused() if before == "refused" else lost())
    if before == "lost, then out of reach":
        exchange.on_no_connection(UpstreamError(errors.DNS_FAILED, "no name", processed=Processed.NEVER_SENT))
    else:
        exchange.on_client_gone()
    assert exchange.record(w.outcomes[0][1]).processed == processed


def test_an_early_response_stops_the_upload_without_an_error_reset(make: Any) -> None:
    w = make()
    exchange = w.start((b"content-length", b"1000000"))
    exchange.on_response(413, [], end=True)
    assert w.stream.resets == [NO_ERROR]
    assert (w.client.ended, w.outcome(), w.arena.live) == (True, None, 0)


def test_credit_goes_back_when_the_clients_socket_took_the_bytes(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    w.client.write_paused = True
    exchange.on_data(memoryview(b"12345"))
    assert (w.stream.credited, w.arena.used) == (0, 5)
    w.client.write_paused = False
    exchange.on_writable()
    assert (w.stream.credited, w.arena.used) == (5, 0)


def test_what_a_client_keeps_of_credited_bytes_is_counted_until_its_socket_took_them(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    exchange.on_data(memoryview(b"12345"))
    w.client.write_paused = True
    exchange.on_held(131_072)
    exchange.on_data(memoryview(b"678"))
    assert (w.stream.credited, w.arena.used) == (5, 131_075)
    assert isinstance(w.client.pieces[-1], bytes), "a view would keep more than is counted"
    w.client.write_paused = False
    exchange.on_writable()
    assert (w.stream.credited, w.arena.used) == (8, 0)


def test_the_window_of_a_client_that_reads_grows_to_a_bound(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    for _ in range(10_000 >> 4):
        exchange.on_data(memoryview(bytes(16384)))
    assert WireLimits().stream_window_bytes + w.stream.widened == WINDOW_MOST_BYTES


def test_no_window_grows_while_other_clients_do_not_read(make: Any) -> None:
    w = make(memory=1 << 20)
    w.memory.hold(object(), 100_000)
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    for _ in range(100):
        exchange.on_data(memoryview(bytes(16384)))
    assert not hasattr(w.stream, "widened")


def test_bodies_that_fill_the_memory_do_not_slow_responses_down(make: Any) -> None:
    w = make(memory=1 << 20)
    w.arena.charge((1 << 20) - w.arena.used)
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    for _ in range(100):
        exchange.on_data(memoryview(bytes(16384)))
    assert w.stream.widened > 0


def test_a_client_that_does_not_read_loses_its_response_when_memory_is_used_up(make: Any) -> None:
    w = make(memory=1 << 20)
    used = w.arena.used
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    w.client.write_paused = True
    while not w.client.dropped:
        exchange.on_data(memoryview(bytes(16384)))
        assert w.arena.used <= w.memory.limit
    assert w.outcome() == "response-unread"
    assert w.stream.resets == [CANCEL]
    assert (w.arena.used, w.memory.unread) == (used, 0)
    record = exchange.record(w.outcomes[0][1])
    assert (record.status, record.processed) == (200, "maybe-processed")


def test_a_client_is_dropped_that_does_not_read_the_end_of_a_response_either(make: Any) -> None:
    """Its exchange was over before: there is no second outcome."""
    w = make(memory=1 << 20)
    used = w.arena.used
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    w.client.write_paused = True
    exchange.on_data(memoryview(b"12345"))
    exchange.on_end(None)
    w.memory.hold(object(), (1 << 19) - 3)
    assert w.client.dropped
    assert (len(w.outcomes), w.outcome()) == (1, None)
    exchange.on_client_gone()
    assert w.arena.used - w.memory.unread == used


def test_credit_for_a_whole_response_is_still_owed_until_the_client_took_it(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    w.client.write_paused = True
    exchange.on_data(memoryview(b"12345"))
    exchange.on_end(None)
    assert w.stream.credited == 0
    exchange.on_client_gone()
    assert (w.stream.credited, w.arena.used) == (5, 0)
    assert w.outcome() is None


def test_interim_responses_go_to_clients_that_know_them(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_interim(100, [])
    exchange.on_interim(103, [(b"link", b"</x>")])
    assert len(w.client.interims) == 1
    assert w.client.interims[0].startswith(b"HTTP/1.1 103 ")


def test_interim_responses_for_minutes_are_no_flood_and_many_at_once_are(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    for _ in range(200):
        exchange.on_interim(102, [])
        w.clock.advance(1.0)
    assert (len(w.client.interims), w.stream.resets) == (200, [])
    for _ in range(INTERIM_BURST + 1):
        exchange.on_interim(102, [])
    assert w.stream.resets == [ENHANCE_YOUR_CALM]
    assert w.client.answered.startswith(b"HTTP/1.1 502 ")
    assert w.outcome() == "flood"


@pytest.mark.parametrize(
    ("method", "status", "fields", "body"),
    [
        (b"GET", 200, [(b"content-length", b"5")], b"whole"),
        (b"GET", 200, [(b"content-length", b"0")], b""),
        (b"HEAD", 200, [(b"content-length", b"5")], b""),
        (b"GET", 204, [], b""),
        (b"GET", 304, [], b""),
    ],
)
def test_a_response_that_is_whole_ends_though_end_stream_does_not_come(
    make: Any, method: bytes, status: int, fields: Any, body: bytes
) -> None:
    """The client has every byte, and waits with its next request for the end of this one."""
    w = make()
    exchange = w.start(method=method)
    exchange.on_response(status, fields, False)
    if body:
        exchange.on_data(memoryview(body))
    w.clock.advance(END_STREAM_PATIENCE - 0.1)
    assert not w.client.ended
    w.clock.advance(0.1)
    assert w.client.ended
    assert w.stream.resets == [CANCEL]
    assert w.outcome() is None


@pytest.mark.parametrize("done", [True, False])
def test_a_whole_response_without_end_stream_does_not_cut_off_an_upload_that_goes_on(
    make: Any, done: bool
) -> None:
    w = make()
    exchange = w.start((b"content-length", b"5"))
    stream = w.stream
    exchange.on_response(200, [(b"content-length", b"0")], False)
    for _ in range(5):
        w.clock.advance(END_STREAM_PATIENCE)
        stream.sent += 1
    assert (stream.resets, w.outcomes) == ([], [])
    stream.upload_done = done  # or the peer lets nothing through any more
    w.clock.advance(2 * END_STREAM_PATIENCE)
    assert (stream.resets, w.outcome()) == ([CANCEL], None)


def test_a_response_that_ended_has_one_outcome_however_long_ago(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.on_response(200, [(b"content-length", b"0")], False)
    exchange.on_end(None)
    w.clock.advance(10 * END_STREAM_PATIENCE)
    assert w.outcome() is None
    assert w.stream.resets == []


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
def test_a_response_without_a_body_is_whole_when_its_stream_is_lost(
    make: Any, method: bytes, status: int
) -> None:
    w = make()
    exchange = w.start(method=method)
    exchange.on_response(status, [], False)
    exchange.on_failed(lost())
    assert w.client.ended
    assert w.outcome() is None


def test_a_first_byte_timeout_names_the_setting_and_cancels(make: Any) -> None:
    w = make(first_byte_timeout="30s")
    w.start(method=b"GET")
    w.clock.advance(30)
    assert w.stream.resets == [CANCEL]
    assert w.client.answered.startswith(b"HTTP/1.1 504 ")
    assert b"-first-byte-timeout 30s" in w.client.answered


@pytest.mark.parametrize("silence", [5, 60, 300, 900])
def test_there_is_no_hidden_first_byte_timeout(make: Any, silence: int) -> None:
    """no-hidden-first-byte-timeout: a judge thinks for minutes, and that is the normal case."""
    w = make()
    w.start(method=b"GET")
    w.clock.advance(silence)
    assert (w.client.answered, w.outcomes) == (None, [])


def test_a_chunked_body_keeps_its_copy_up_to_the_limit_and_streams_past_it(make: Any) -> None:
    w = make(retry_body_limit="1000000")
    exchange = w.start((b"transfer-encoding", b"chunked"))
    body, sent = w.client.body, 0
    for _ in range(200):
        content = b"x" * 16375
        while content:
            taken = body.append(content)
            content = content[taken:]
            sent += taken
            if not taken:
                exchange.on_body_stalled()
                if not body.kept:
                    body.sent_to(sent)
    assert not body.kept
    assert w.arena.used <= 300_000
    exchange.on_failed(refused())
    assert w.outcome() == "copy-not-kept"


def test_a_body_that_stalls_goes_on_when_the_upstream_took_some(make: Any) -> None:
    w = make(retry_body_limit="0")
    exchange = w.start((b"content-length", b"10000000"))
    body = w.client.body
    while (room := body.writable()) is not None:
        body.commit(len(room))
    exchange.on_body_stalled()
    assert w.client.resumed == 0
    body.sent_to(body.received)
    assert w.client.resumed == 1


def test_a_lost_request_names_the_timer_it_looks_like(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"POST")
    w.clock.advance(340.5)
    exchange.on_failed(lost())
    assert b"looks like the accelerator's idle limit" in w.client.answered


def test_the_end_of_the_grace_cuts_what_has_begun_and_answers_the_rest(make: Any) -> None:
    w = make()
    exchange = w.start(method=b"GET")
    exchange.cut()
    assert w.stream.resets == [CANCEL]
    assert w.client.answered.startswith(b"HTTP/1.1 503 ")
    begun = make()
    exchange = begun.start(method=b"GET")
    exchange.on_response(200, [], end=False)
    exchange.cut()
    assert begun.client.aborted
    assert exchange.phase is Phase.DONE


def test_a_broken_chunk_cancels_the_stream_and_is_answered_by_the_client(make: Any) -> None:
    w = make()
    exchange = w.start((b"transfer-encoding", b"chunked"))
    exchange.on_client_error(errors.DownstreamError(errors.BAD_REQUEST, "chunk size"))
    assert w.stream.resets == [CANCEL]
    assert (w.client.answered, w.outcome(), w.arena.live) == (None, "bad-request", 0)


def test_a_client_that_breaks_its_request_gives_back_what_it_did_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No call about the socket comes after `on_client_error`."""
    w = World(monkeypatch)
    exchange = w.start((b"content-length", b"1000"))
    used = w.arena.used
    exchange.on_response(200, [], end=False)
    w.client.write_paused = True
    exchange.on_data(b"x" * 100_000)
    assert w.arena.used >= 100_000 > used
    exchange.on_client_error(errors.DownstreamError(errors.BAD_REQUEST, "broken"))
    assert w.arena.used == 0


# --- packed copies ----------------------------------------------------------------------------------------------

LARGE = bytes(range(256)) * 3000 + b"the end"


def packed(make: Any) -> tuple[Any, Exchange]:
    """An exchange whose copy was sent whole and compressed."""
    w = make(memory=SET_ASIDE_BYTES + (1 << 20))
    exchange = w.post(LARGE)
    assert w.stream.upload() == LARGE
    assert w.arena.used > len(LARGE)
    w.packer.finish()
    assert SET_ASIDE_BYTES < w.arena.used < SET_ASIDE_BYTES + len(LARGE) // 4
    return w, exchange


def upload_through_window(w: Any) -> bytes:
    """As the Wire would, with what the body has at a time; the window never holds all of it."""
    body, received = w.stream.body, b""
    while not (body.complete and len(received) == body.received):
        view = body.peek(len(received), 1 << 20)
        assert len(view), "nothing more comes"
        received += bytes(view)
        assert w.arena.used <= w.arena.limit
        body.sent_to(len(received))
        w.clock.advance(0)
    w.stream.upload_done = True
    w.stream.receiver.on_upload_done()
    return received


def test_a_packed_copy_is_sent_again_with_exactly_the_same_bytes(make: Any) -> None:
    """RFC 9113 section 8.7."""
    w, exchange = packed(make)
    exchange.on_failed(refused())
    assert exchange.attempts == 2
    assert upload_through_window(w) == LARGE
    exchange.on_response(200, [], end=True)
    assert w.outcome() is None
    assert (w.arena.used, w.arena.live) == (SET_ASIDE_BYTES, 0)


def test_a_packed_copy_is_sent_a_third_time_also_after_half_a_second(make: Any) -> None:
    w, exchange = packed(make)
    exchange.on_failed(refused())
    w.stream.body.sent_to(100_000)
    exchange.on_failed(refused())
    assert exchange.attempts == 3
    assert upload_through_window(w) == LARGE
    exchange.on_failed(refused())
    w.clock.advance(10)
    assert upload_through_window(w) == LARGE
    assert exchange.attempts == 4


def test_the_trailers_of_a_packed_copy_are_sent_again_too(make: Any) -> None:
    w = make(memory=SET_ASIDE_BYTES + (1 << 20))
    exchange = w.start((b"transfer-encoding", b"chunked"))
    content = LARGE[:250_000]
    assert w.client.body.append(content) == len(content)
    w.client.body.finish()
    exchange.on_body_end([(b"x-sum", b"1")])
    w.memory.arena.charge(1 << 19)
    w.stream.upload()
    w.packer.finish()
    exchange.on_failed(refused())
    assert upload_through_window(w) == content
    assert w.stream.body is None or w.stream.body.trailers == [(b"x-sum", b"1")]


def test_a_packed_copy_is_freed_when_the_response_begins(make: Any) -> None:
    w, exchange = packed(make)
    exchange.on_response(200, [], end=False)
    assert (w.arena.used, w.arena.live) == (SET_ASIDE_BYTES, 0)


def test_a_response_before_the_end_of_a_resend_does_not_stop_its_upload(make: Any) -> None:
    w, exchange = packed(make)
    exchange.on_failed(refused())
    exchange.on_response(200, [], end=False)
    assert upload_through_window(w) == LARGE
    assert (w.arena.used, w.arena.live) == (SET_ASIDE_BYTES, 0)


def test_a_packed_copy_given_up_under_pressure_loses_only_the_resend(make: Any) -> None:
    w, exchange = packed(make)
    exchange.give_up_copy()
    assert w.arena.used == SET_ASIDE_BYTES
    exchange.on_failed(refused())
    assert w.outcome() == "copy-not-kept"


def test_a_client_that_goes_away_frees_a_packed_copy(make: Any) -> None:
    w, exchange = packed(make)
    exchange.on_failed(refused())
    exchange.on_client_gone()
    assert w.stream.resets == [CANCEL]
    assert (w.arena.used, w.arena.live) == (SET_ASIDE_BYTES, 0)
    w.clock.advance(1)


def test_a_request_answered_while_its_copy_is_packed_ends_as_any_other(make: Any) -> None:
    w = make(memory=SET_ASIDE_BYTES + (1 << 20))
    exchange = w.post(LARGE)
    w.stream.upload()
    exchange.on_response(200, [], end=True)
    w.packer.finish()
    assert w.outcome() is None
    assert (w.arena.used, w.arena.live) == (SET_ASIDE_BYTES, 0)


def test_a_copy_that_waits_to_be_sent_again_is_not_given_up_for_others(make: Any) -> None:
    w = make(memory=SET_ASIDE_BYTES + (1 << 20))
    exchange = w.post(b"hello")
    w.stream.upload()
    w.pool.connection = None
    exchange.on_failed(refused())
    w.start((b"content-length", b"1040000"))
    w.start((b"content-length", b"1040000"))
    connection = FakeConnection(2)
    exchange.on_connection(connection)
    assert bytes(connection.streams[-1].body.peek(0, 5)) == b"hello"
