"""One client connection, over both twins of its bytes (RFC 9110, RFC 9112)."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client_bench import Bench

from h2ping import headers
from h2ping._fast import client_py
from h2ping.downstream import ending
from h2ping.errors import READER_TIMEOUT, DownstreamError, UpstreamError
from h2ping.headers import Framing

if TYPE_CHECKING:
    from tests.support.client_bench import Connection
    from tests.support.fake_exchange import FakeExchange

HOST = b"Host: here\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
POST_5 = b"POST /v1 HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\n"
POST_CHUNKED = b"POST /v1 HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def bench(engine: str) -> Bench:
    return Bench(engine)


# --- requests ---------------------------------------------------------------------------------------------


def test_a_request_without_body_becomes_one_exchange(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    assert bench.exchange.heard == ["start"]
    assert (bench.exchange.request.method, bench.exchange.request.target) == (b"GET", b"/v1/models")
    bench.exchange.respond(b"hello", fields=[(b"content-length", b"5")])
    assert connection.received() == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    assert not connection.transport.closed


def test_head_and_body_in_one_read_reach_the_exchange(bench: Bench) -> None:
    bench.connect().send(POST_5 + b"hello")
    assert bench.exchange.bytes == b"hello"
    assert bench.exchange.heard == ["start", "end"]


@pytest.mark.parametrize("size", [1, 1083, 16_375, 16_376, 100_000, 1_000_001])
def test_a_body_of_known_length_arrives_whole_however_long(bench: Bench, size: int) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    head = b"POST / HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (HOST, size)
    bench.connect().send(head + body[:size])
    assert bench.exchange.bytes == body[:size]
    assert bench.exchange.heard[-1] == "end"


@pytest.mark.parametrize("size", [0, 1, 16_375, 100_000, 1_000_001])
def test_a_chunked_body_arrives_whole_however_long(bench: Bench, size: int) -> None:
    """RFC 9112 section 7.1."""
    body = bytes(range(251)) * (size // 251 + 1)
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(piece), piece)
        for piece in (body[start : min(start + 7001, size)] for start in range(0, size, 7001))
    )
    bench.connect().send(POST_CHUNKED + chunks + b"0\r\n\r\n")
    assert bench.exchange.bytes == body[:size]
    assert bench.exchange.heard[-1] == "end"


def test_a_chunked_request_arrives_one_byte_at_a_time(bench: Bench) -> None:
    """Case one-byte-at-a-time."""
    connection = bench.connect()
    for byte in POST_CHUNKED + b"3;name=value\r\nabc\r\n2\r\nde\r\n1\r\nf\r\n0\r\nX-Sum: 1\r\n\r\n":
        connection.send(bytes([byte]))
    assert bench.exchange.bytes == b"abcdef"
    assert bench.exchange.trailers == [(b"x-sum", b"1")]


def test_a_chunked_body_with_an_upgrade_offer_keeps_its_body(bench: Bench) -> None:
    """RFC 9110 section 7.8: an offer may be ignored; the body is not part of it."""
    head = POST_CHUNKED[:-2] + b"Upgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    bench.connect().send(head + b"5\r\nhello\r\n0\r\n\r\n")
    assert bench.exchange.bytes == b"hello"
    assert bench.exchange.request.fields == []


def test_an_unknown_method_passes(bench: Bench) -> None:
    """RFC 9110 section 9.1: a method is a token, not one of a list."""
    bench.connect().send(b"FROBNICATE /x HTTP/1.1\r\n" + HOST + b"X: y\r\n\r\n")
    assert bench.exchange.request.method == b"FROBNICATE"
    assert bench.exchange.request.fields == [(b"x", b"y")]


def test_empty_lines_before_and_between_requests_are_dropped(bench: Bench) -> None:
    """Case crlf-heartbeat-ignored; RFC 9112 section 2.2."""
    connection = bench.connect()
    connection.send(b"\r\n\r\n" + POST_5 + b"hello")
    for _ in range(100_000 // 2):
        connection.protocol.buffer_updated(_written(connection.protocol, b"\r\n"))
    assert not connection.transport.paused
    bench.exchange.respond(b"1")
    connection.received()
    connection.send(b"\r")
    connection.send(b"\n\r\n" + POST_5 + b"again")
    bench.exchange.respond(b"2")
    assert [exchange.bytes for exchange in bench.exchanges] == [b"hello", b"again"]
    assert not bench.refused


def _written(protocol: Any, data: bytes) -> int:
    memoryview(protocol.get_buffer(-1)).cast("B")[: len(data)] = data
    return len(data)


def test_pipelined_requests_are_answered_one_after_the_other(bench: Bench) -> None:
    """RFC 9112 section 9.3.2."""
    connection = bench.connect()
    connection.send(GET + POST_5 + b"hello" + GET)
    assert len(bench.exchanges) == 1
    for number in range(3):
        bench.exchange.respond(b"%d" % number, fields=[(b"content-length", b"1")])
        assert connection.received().endswith(b"%d" % number)
    assert [exchange.request.method for exchange in bench.exchanges] == [b"GET", b"POST", b"GET"]


def test_reading_pauses_when_a_few_kib_are_pipelined_and_resumes(bench: Bench) -> None:
    connection = bench.connect()
    request = b"GET /%d HTTP/1.1\r\n" % 1 + HOST + b"X: " + b"x" * 1000 + b"\r\n\r\n"
    sent = connection.send(request * 300)
    assert connection.transport.paused
    assert sent < 2 * client_py.PIPELINED_BYTES + 2 * client_py.HEAD_READ_BYTES
    rest = (request * 300)[sent:]
    for _ in range(300):
        bench.exchange.respond(b"", fields=[(b"content-length", b"0")])
        bench.turn()
        rest = rest[connection.send(rest) :]
    assert len(bench.exchanges) == 300
    assert not rest


def test_expect_continue_is_answered_when_there_is_room(engine: str) -> None:
    """Case expect-100-answered-locally; RFC 9110 section 10.1.1."""
    bench = Bench(engine, hold_body=True)
    connection = bench.connect()
    connection.send(POST_5[:-2] + b"Expect: 100-continue\r\n\r\n")
    assert connection.received() == b""
    bench.exchange.admit()
    assert connection.received() == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.send(b"hello")
    assert bench.exchange.bytes == b"hello"
    assert bench.exchange.request.fields == [(b"content-length", b"5")]


def test_expect_continue_is_not_answered_when_the_body_is_there(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(POST_5[:-2] + b"Expect: 100-continue\r\n\r\nhello")
    assert connection.received() == b""


# --- memory and back-pressure -----------------------------------------------------------------------------


def test_reading_stops_until_there_is_memory_for_the_body(engine: str) -> None:
    bench = Bench(engine, hold_body=True)
    connection = bench.connect()
    request = b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 300000\r\n\r\n" + b"x" * 300_000
    sent = connection.send(request)
    assert connection.transport.paused
    assert sent <= client_py.HEAD_READ_BYTES
    bench.exchange.admit()
    assert not connection.transport.paused
    connection.send(request[sent:])
    assert bench.exchange.bytes == b"x" * 300_000


def test_a_client_whose_whole_body_waits_for_memory_is_still_watched(engine: str) -> None:
    bench = Bench(engine, hold_body=True)
    connection = bench.connect()
    connection.send(POST_5 + b"hello")
    assert not connection.transport.paused
    connection.eof()
    assert bench.exchange.heard == ["start", "gone"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_streams_through_stalls_and_goes_on(engine: str, chunked: bool) -> None:
    bench = Bench(engine, kept=False)
    connection = bench.connect()
    body = bytes(range(256)) * 4096
    if chunked:
        request = POST_CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    else:
        request = b"POST / HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (HOST, len(body), body)
    got = b""
    sent = connection.send(request)
    assert connection.transport.paused
    while sent < len(request) or len(got) < len(body):
        assert "stalled" in bench.exchange.heard
        got += bench.exchange.taken(min(50_000, bench.exchange.body.received - len(got)))
        sent += connection.send(request[sent:])
    assert got == body
    assert bench.exchange.heard[-1] == "end"


# --- what is refused --------------------------------------------------------------------------------------

REFUSED_HEADS = {
    "obs-fold-rejected": (
        b"GET / HTTP/1.1\r\n" + HOST + b"X-A: 1\r\n Transfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    "bare-cr-smuggling": (
        b"POST / HTTP/1.1\r\n" + HOST + b"X-Abc: \rxTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n",
        400,
    ),
    "te-and-cl-rejected": (POST_5[:-2] + b"Transfer-Encoding: chunked\r\n\r\nhello", 400),
    "te-and-cl-other-order": (POST_CHUNKED[:-2] + b"Content-Length: 5\r\n\r\nhello", 400),
    "bare-lf": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "http-2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "connect": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", 405),
    "gzip": (POST_CHUNKED.replace(b"chunked", b"gzip, chunked"), 501),
    "tls": (b"\x16\x03\x01\x02\x00\x01", 400),
    "too-large": (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 70_000, 431),
}


@pytest.mark.parametrize("name", REFUSED_HEADS)
def test_what_is_no_request_is_answered_and_closed(bench: Bench, name: str) -> None:
    request, status = REFUSED_HEADS[name]
    connection = bench.connect()
    connection.send(request)
    answer = connection.received()
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in answer
    assert connection.transport.eof_written
    assert not bench.exchanges
    assert len(bench.refused) == 1


@pytest.mark.parametrize(
    "line", ["+5", "-1", "0x5", "5_0", "5 ", "FFFFFFFFFFFFFFFF1", "", "g", "5\n", "5;\x00", " 5"]
)
def test_a_chunk_size_that_is_not_plain_hex_is_refused(bench: Bench, line: str) -> None:
    """Case chunk-size-not-plain-hex; RFC 9112 section 7.1."""
    connection = bench.connect()
    connection.send(POST_CHUNKED + line.encode() + b"\r\nhello\r\n0\r\n\r\n")
    assert connection.received().startswith(b"HTTP/1.1 400 ")
    assert bench.exchange.heard[-1] == "error"
    assert connection.transport.eof_written


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"5\r\nhelloX\r\n0\r\n\r\n", id="longer than its size"),
        pytest.param(b"5\r\nhello\n0\r\n\r\n", id="LF after the data"),
        pytest.param(b"5\nhello\r\n0\r\n\r\n", id="LF after the size"),
        pytest.param(b"0\r\nX: 1\n\r\n", id="LF in trailers"),
        pytest.param(b"0\r\nX : 1\r\n\r\n", id="space before the colon in trailers"),
        pytest.param(b"0\r\n X: 1\r\n\r\n", id="folded trailer"),
        pytest.param(b"0\r\n" + b"X: 1\r\n" * 4000 + b"\r\n", id="too many trailers"),
        pytest.param(b"1;" + b"e" * 8000 + b"\r\nx\r\n0\r\n\r\n", id="long extension"),
        pytest.param((b"1;" + b"e" * 1000 + b"\r\nx\r\n") * 40 + b"0\r\n\r\n", id="many extensions"),
    ],
)
def test_broken_chunk_framing_is_refused(bench: Bench, body: bytes) -> None:
    connection = bench.connect()
    connection.send(POST_CHUNKED + body)
    assert connection.received().startswith(b"HTTP/1.1 400 ")
    assert bench.exchange.heard[-1] == "error"


def test_a_body_above_the_limit_is_refused_before_it_is_read(engine: str) -> None:
    bench = Bench(engine, max_body_bytes=4)
    connection = bench.connect()
    connection.send(POST_5)
    assert connection.received().startswith(b"HTTP/1.1 413 ")
    assert not bench.exchanges


def test_a_chunked_body_that_grows_above_the_limit_is_refused(engine: str) -> None:
    bench = Bench(engine, max_body_bytes=8)
    connection = bench.connect()
    connection.send(POST_CHUNKED + b"5\r\nhello\r\n5\r\nhello\r\n")
    assert connection.received().startswith(b"HTTP/1.1 413 ")
    assert bench.exchange.heard[-1] == "error"


def test_a_broken_body_after_the_response_began_cuts_the_connection(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(POST_CHUNKED + b"5\r\nhello\r\n")
    bench.exchange.begin()
    connection.received()
    connection.send(b"zz\r\n")
    assert connection.received() == b""
    assert connection.transport.closed


# --- responses --------------------------------------------------------------------------------------------


def test_framing_is_length_or_chunked_and_never_both(bench: Bench) -> None:
    """Case framing-choice-chunked-or-length; RFC 9112 section 6.2."""
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.respond(b"hello")
    assert connection.received() == (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    )
    connection.send(GET)
    bench.exchange.respond(b"hello", fields=[(b"content-length", b"5")])
    assert connection.received() == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
    connection.send(GET)
    bench.exchange.respond()
    assert connection.received() == b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    assert not connection.transport.closed


def test_a_response_of_one_turn_leaves_in_one_write(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.respond(b"x" * 10_000)
    assert len(connection.transport.writes) == 1


def test_each_event_of_a_stream_leaves_at_the_end_of_its_turn(bench: Bench) -> None:
    """Case flush-each-event-any-content-type."""
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.begin()
    bench.exchange.client.send_data(b"data: 1\n\n")
    assert connection.received().endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")
    bench.exchange.client.send_data(memoryview(b"data: 2\n\n"))
    assert connection.received() == b"9\r\ndata: 2\n\n\r\n"


def test_large_data_passes_byte_for_byte(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.begin()
    connection.received()
    data = bytes(range(256)) * 1000
    bench.exchange.client.send_data(memoryview(data))
    assert connection.received() == b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("keep_alive", [b"", b"Connection: keep-alive\r\n"])
def test_an_http_10_client_gets_no_chunks(bench: Bench, keep_alive: bytes) -> None:
    """Case http10-client-no-chunking; RFC 9112 sections 6.1 and 6.3."""
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.0\r\n" + keep_alive + b"\r\n")
    bench.exchange.respond(b"0123456789")
    assert connection.received() == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n0123456789"
    assert connection.transport.closed


def test_an_http_10_client_may_keep_its_connection(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    bench.exchange.respond(b"hello", fields=[(b"content-length", b"5")])
    assert b"\r\nconnection: keep-alive\r\n" in connection.received()
    assert not connection.transport.closed


def test_interim_responses_reach_http_11_only(bench: Bench) -> None:
    """Case interim-103-is-not-final; RFC 9110 section 15.2."""
    early = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.client.send_interim(early)
    assert connection.received() == early
    old = bench.connect()
    old.send(b"GET / HTTP/1.0\r\n\r\n")
    bench.exchange.client.send_interim(early)
    assert old.received() == b""


def test_trailers_follow_the_last_chunk_of_a_client_that_wants_them(bench: Bench) -> None:
    """Case trailers-with-content-length; RFC 9110 section 6.5, RFC 9112 section 7.1.2."""
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.respond(b"hello", fields=[(b"content-length", b"5")], trailers=[(b"x-sum", b"1")])
    assert connection.received().endswith(b"\r\n\r\nhello")
    connection.send(GET[:-2] + b"TE: trailers\r\n\r\n")
    bench.exchange.respond(b"hello", trailers=[(b"x-sum", b"1"), (b"content-length", b"7")])
    assert connection.received().endswith(b"\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n")
    connection.send(GET)
    bench.exchange.respond(b"hello", trailers=[(b"x-sum", b"1")])
    assert connection.received().endswith(b"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")


def test_date_is_added_where_the_origin_has_none(bench: Bench) -> None:
    """RFC 9110 section 6.6.1."""
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.respond(b"")
    assert connection.transport.take().count(b"\r\ndate: ") == 1
    connection.send(GET)
    bench.exchange.respond(b"", fields=[(b"date", b"Mon, 30 Nov 2026 00:00:00 GMT")])
    assert connection.transport.take().lower().count(b"\r\ndate: ") == 1


def test_a_head_response_has_no_body(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET.replace(b"GET", b"HEAD"))
    bench.exchange.respond(fields=[(b"content-length", b"5")])
    assert connection.received() == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"
    assert not connection.transport.closed


def test_an_answer_of_our_own_keeps_the_connection_unless_it_says_close(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.client.answer(b"HTTP/1.1 503 X\r\nContent-Length: 1\r\n\r\nx", False)
    assert connection.received() == b"HTTP/1.1 503 X\r\nContent-Length: 1\r\n\r\nx"
    connection.send(GET)
    bench.exchange.client.answer(b"HTTP/1.1 503 X\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx", True)
    assert connection.received().count(b"lose\r\n") == 1
    assert connection.transport.closed


# --- responses that come before the request is read -------------------------------------------------------


def test_an_early_response_keeps_the_connection_when_little_is_left_to_read(bench: Bench) -> None:
    """Case early-413-keeps-response; RFC 9112 section 9.3."""
    connection = bench.connect()
    connection.send(POST_5 + b"he")
    bench.exchange.respond(b"", status=413)
    assert b"connection: close" not in connection.received()
    connection.send(b"llo" + GET)
    assert len(bench.exchanges) == 2
    assert not connection.transport.closed


@pytest.mark.parametrize("head", [POST_CHUNKED, POST_5.replace(b" 5", b" 500000")], ids=["chunked", "large"])
def test_an_early_response_closes_lingering_when_much_is_left_to_read(
    bench: Bench, head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case early-413-keeps-response; RFC 9112 section 9.6."""
    monkeypatch.setattr(ending, "LINGER_BYTES", 1 << 20)
    connection = bench.connect()
    connection.send(head + b"5\r\nhello\r\n")
    bench.exchange.respond(b"no", status=413)
    assert b"\r\nconnection: close\r\n" in connection.received()
    assert connection.transport.eof_written
    assert not connection.transport.closed
    connection.send(b"x" * 100_000)
    assert not connection.transport.closed
    connection.send(b"x" * client_py.READ_BYTES * 16)
    assert connection.transport.closed


def test_a_client_that_withholds_its_body_is_not_waited_for(engine: str) -> None:
    """RFC 9110 section 10.1.1: without 100 the client may or may not send the body."""
    bench = Bench(engine, hold_body=True)
    connection = bench.connect()
    connection.send(POST_5[:-2] + b"Expect: 100-continue\r\n\r\n")
    bench.exchange.respond(b"", status=403)
    assert b"\r\nconnection: close\r\n" in connection.received()


def test_lingering_ends_after_two_seconds(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(b"\x00")
    assert connection.transport.eof_written
    bench.clock.advance(2)
    assert connection.transport.aborted


def test_a_client_that_lingers_may_go_on_uploading_for_half_a_minute(bench: Bench) -> None:
    """SDKs read an early answer once their upload is done; a reset would have them send it all again."""
    connection = bench.connect()
    connection.send(POST_5.replace(b" 5", b" 50000000"))
    bench.exchange.respond(b"no", status=401)
    for _ in range(ending.LINGER_LOOKS - 1):
        connection.send(b"x" * 1000)
        bench.clock.advance(2)
        assert not connection.transport.closed
    connection.send(b"x" * 1000)
    bench.clock.advance(2)
    assert connection.transport.aborted


def test_output_that_the_kernel_delivers_is_waited_for_as_long_as_it_moves(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heartbeat that met a closed socket would reset it, and the output with it."""
    left = [100_000]
    monkeypatch.setattr(ending, "undelivered", lambda transport: left[0])
    connection = bench.connect()
    connection.send(GET[:-2] + b"Connection: close\r\n\r\n")
    bench.exchange.respond(b"whole")
    connection.send(b"\r\n")
    for _ in range(2 * ending.LINGER_LOOKS):
        left[0] -= 1000
        bench.clock.advance(2)
        assert not connection.transport.closed
    bench.clock.advance(2)
    assert connection.transport.aborted


def slow_after_a_refusal(bench: Bench, size: int) -> Connection:
    """A client that lingers with `size` bytes of output that its socket has not taken."""
    connection = bench.connect()
    connection.transport.buffered = size
    connection.send(b"\x00")
    connection.protocol.pause_writing()
    assert connection.transport.eof_written
    return connection


def test_a_lingering_client_that_reads_slowly_is_given_the_rest(bench: Bench) -> None:
    """RFC 9112 section 9.6: the answer is not to be lost; the two seconds count from its last byte."""
    connection = slow_after_a_refusal(bench, 100_000)
    bench.clock.advance(3)
    assert not connection.transport.closed
    for left in (90_000, 80_000):
        connection.transport.buffered = left
        bench.clock.advance(75)
        assert not connection.transport.closed
    connection.transport.buffered = 0
    connection.protocol.resume_writing()
    bench.clock.advance(1)
    assert not connection.transport.closed
    bench.clock.advance(1)
    assert connection.transport.aborted


def test_a_lingering_client_that_stops_reading_is_dropped_by_the_idle_deadline(bench: Bench) -> None:
    connection = slow_after_a_refusal(bench, 100_000)
    bench.clock.advance(2)
    connection.transport.buffered = 90_000
    bench.clock.advance(75)
    assert not connection.transport.closed
    bench.clock.advance(75)
    assert connection.transport.aborted


def test_what_was_written_before_a_cut_is_left_to_a_client_that_reads_slowly(bench: Bench) -> None:
    """Case mid-stream-reset-visible: what came before the cut is the client's."""
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.begin()
    connection.transport.buffered = 100_000
    connection.protocol.pause_writing()
    bench.exchange.client.abort()
    assert connection.transport.closed
    for left in (90_000, 80_000):
        bench.clock.advance(75)
        assert not connection.transport.aborted
        connection.transport.buffered = left
    bench.clock.advance(150)
    assert connection.transport.aborted


def test_the_end_of_a_last_response_is_left_to_a_client_that_reads_slowly(bench: Bench) -> None:
    """RFC 9112 section 9.6: a slow client is not a client that is gone."""
    connection = bench.connect()
    connection.send(GET[:-2] + b"Connection: close\r\n\r\n")
    bench.exchange.begin()
    connection.transport.buffered = 100_000
    connection.protocol.pause_writing()
    bench.exchange.client.send_end(None)
    assert connection.transport.closed
    for left in (90_000, 80_000):
        connection.transport.buffered = left
        bench.clock.advance(75)
        assert not connection.transport.aborted
    bench.clock.advance(75)
    assert connection.transport.aborted


# --- the end ----------------------------------------------------------------------------------------------


def test_a_response_that_is_cut_has_no_last_chunk(bench: Bench) -> None:
    """Case mid-stream-reset-visible; RFC 9112 section 8."""
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.begin()
    bench.exchange.client.send_data(b"data: 1\n\n")
    bench.exchange.client.abort()
    assert connection.received().endswith(b"9\r\ndata: 1\n\n\r\n")
    assert connection.transport.closed
    assert "gone" not in bench.exchange.heard


def test_a_cut_response_without_framing_ends_in_a_reset(bench: Bench) -> None:
    """RFC 9112 section 8: for an HTTP/1.0 client a FIN would be the end of a whole body."""
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.0\r\n\r\n")
    bench.exchange.begin()
    bench.exchange.client.send_data(b"half")
    bench.exchange.client.abort()
    assert connection.transport.aborted
    assert connection.transport.socket.options[0][:2] == (socket.SOL_SOCKET, socket.SO_LINGER)


def test_a_client_that_leaves_while_a_response_is_owed_is_noticed(bench: Bench) -> None:
    """Case client-gone-before-first-byte."""
    connection = bench.connect()
    connection.send(POST_5 + b"hello")
    connection.protocol.connection_lost(ConnectionResetError())
    assert bench.exchange.heard == ["start", "end", "gone"]
    assert not bench.context.clients


def test_eof_while_a_response_is_owed_is_a_disconnect(bench: Bench) -> None:
    """Case half-close-policy."""
    connection = bench.connect()
    connection.send(GET)
    assert not connection.eof()
    assert bench.exchange.heard == ["start", "gone"]


def test_eof_while_a_response_is_owed_may_be_waited_out(engine: str) -> None:
    """Case half-close-policy, with the switch; RFC 9112 section 9.6."""
    bench = Bench(engine, half_close="wait")
    connection = bench.connect()
    connection.send(GET)
    assert connection.eof()
    assert bench.exchange.heard == ["start"]
    bench.exchange.respond(b"hello")
    assert b"\r\nconnection: close\r\n" in connection.received()
    assert connection.transport.closed


def test_eof_inside_a_body_is_a_disconnect_whatever_the_policy(engine: str) -> None:
    bench = Bench(engine, half_close="wait")
    connection = bench.connect()
    connection.send(POST_5 + b"he")
    assert not connection.eof()
    assert bench.exchange.heard[-1] == "gone"


def test_an_idle_connection_is_closed_after_its_time(bench: Bench) -> None:
    """Case keepalive-longer-than-client-pool."""
    connection = bench.connect()
    connection.send(GET)
    bench.clock.advance(100)
    assert not connection.transport.closed
    bench.exchange.respond()
    bench.clock.advance(74)
    assert not connection.transport.closed
    bench.clock.advance(2)
    assert connection.transport.closed
    assert connection.received().startswith(b"HTTP/1.1 200")


def test_a_head_that_is_not_finished_in_time_gets_408(bench: Bench) -> None:
    connection = bench.connect()
    bench.clock.advance(50)
    connection.send(b"GET / HT")
    bench.clock.advance(29)
    assert connection.received() == b""
    bench.clock.advance(2)
    assert connection.received().startswith(b"HTTP/1.1 408 ")
    assert connection.transport.eof_written


def test_draining_closes_idle_connections_and_announces_the_end_on_others(bench: Bench) -> None:
    """Case sigterm-finishes-inflight."""
    idle, busy, begun = bench.connect(), bench.connect(), bench.connect()
    busy.send(GET)
    begun.send(b"GET ")
    bench.context.draining = True
    for connection in (idle, busy, begun):
        connection.client.on_drain()
    assert idle.transport.closed
    assert not busy.transport.closed
    assert not begun.transport.closed
    bench.exchange.respond(b"hello")
    assert b"\r\nconnection: close\r\n" in busy.received()
    assert busy.transport.closed
    late = bench.connect()
    assert late.transport.closed


def test_connection_close_ends_the_connection(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET[:-2] + b"Connection: close\r\n\r\n")
    bench.exchange.respond(b"hello", fields=[(b"content-length", b"5")])
    assert connection.received().endswith(b"\r\nconnection: close\r\n\r\nhello")
    assert connection.transport.closed


def test_a_reader_that_stalls_after_the_end_is_dropped_by_the_idle_deadline(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET[:-2] + b"Connection: close\r\n\r\n")
    connection.transport.buffered = 1000
    bench.exchange.respond(b"hello")
    assert connection.transport.closed
    assert not connection.transport.aborted
    bench.clock.advance(80)
    assert connection.transport.aborted


@pytest.mark.parametrize("head", [POST_5, POST_CHUNKED], ids=["length", "chunked"])
def test_a_body_that_stops_coming_gets_408(bench: Bench, head: bytes) -> None:
    connection = bench.connect()
    connection.send(head + b"2\r\n")
    bench.clock.advance(70)
    connection.send(b"h")
    bench.clock.advance(70)
    assert connection.received() == b""
    bench.clock.advance(80)
    assert connection.received().startswith(b"HTTP/1.1 408 ")
    assert bench.exchange.heard[-1] == "error"
    assert connection.transport.eof_written


def test_a_body_that_we_do_not_read_is_not_late(engine: str) -> None:
    bench = Bench(engine, kept=False)
    connection = bench.connect()
    connection.send(b"POST / HTTP/1.1\r\n%bContent-Length: 900000\r\n\r\n%b" % (HOST, b"x" * 900_000))
    assert connection.transport.paused
    bench.clock.advance(1000)
    assert connection.received() == b""
    bench.exchange.taken(100_000)
    bench.clock.advance(74)
    assert connection.received() == b""


def test_a_reader_that_stalls_is_dropped_and_a_slow_one_is_not(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.begin()
    connection.transport.buffered = 100_000
    connection.protocol.pause_writing()
    for left in (90_000, 80_000):
        connection.transport.buffered = left
        bench.clock.advance(75)
        assert not connection.transport.closed
    bench.clock.advance(76)
    assert connection.transport.aborted
    assert bench.exchange.gone_for is READER_TIMEOUT


def test_a_request_that_waits_for_its_answer_has_no_deadline(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(POST_5 + b"hello")
    bench.clock.advance(3600)
    assert not connection.transport.closed
    assert bench.exchange.heard == ["start", "end"]


def test_credit_that_is_owed_at_the_end_is_given_when_the_socket_took_the_bytes(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    connection.protocol.pause_writing()
    bench.exchange.respond(b"hello")
    assert connection.client.write_paused
    connection.protocol.resume_writing()
    assert bench.exchange.heard == ["start", "writable"]
    connection.protocol.pause_writing()
    connection.protocol.resume_writing()
    assert bench.exchange.heard == ["start", "writable"]


def test_pending_bytes_counts_what_is_gathered_and_what_the_transport_holds(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    connection.transport.buffered = 1000
    bench.exchange.begin()
    assert connection.client.pending_bytes > 1000
    connection.received()
    assert connection.client.pending_bytes == 1000


def test_an_exchange_that_answers_at_once_serves_a_pipeline_without_recursion(engine: str) -> None:
    bench = Bench(engine)
    make = bench.make_exchange

    def answering(request: Any, client: Any) -> FakeExchange:
        exchange = make(request, client)
        exchange.start = exchange.respond  # type: ignore[method-assign]
        return exchange

    bench.context.exchanges = answering
    connection = bench.connect()
    connection.send(GET * 1300)
    assert len(bench.exchanges) == 1300
    assert connection.received().count(b"HTTP/1.1 200") == 1300


def test_a_trailer_with_a_line_break_cuts_the_response(bench: Bench) -> None:
    """Case crlf-in-response-header: checked again here, at the last place that can."""
    connection = bench.connect()
    connection.send(GET[:-2] + b"TE: trailers\r\n\r\n")
    bench.exchange.respond(b"hello", trailers=[(b"x", b"1\r\nSet-Cookie: s=1")])
    assert b"Set-Cookie" not in connection.received()
    assert connection.transport.closed


def test_errors_carry_their_cause() -> None:
    """The two error types that this layer meets are not mixed up."""
    assert not issubclass(DownstreamError, UpstreamError)


def test_a_whole_head_above_the_limit_is_refused(engine: str) -> None:
    bench = Bench(engine, max_header_bytes=100)
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 100 + b"\r\n\r\n")
    assert connection.received().startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("start", [b"1;" + b"x" * 5000, b"z", b"\r5", b"\n"])
def test_a_chunk_line_that_can_never_be_one_is_refused_before_it_ends(bench: Bench, start: bytes) -> None:
    connection = bench.connect()
    connection.send(POST_CHUNKED + start)
    assert connection.received().startswith(b"HTTP/1.1 400 ")


def test_a_pipelined_request_before_eof_is_answered_where_eof_is_waited_out(engine: str) -> None:
    bench = Bench(engine, half_close="wait")
    connection = bench.connect()
    connection.send(GET + GET)
    bench.exchange.client.send_head(b"HTTP/1.1 204 No Content\r\n\r\n", Framing.NONE)
    bench.exchange.client.send_end(None)
    assert connection.eof()
    bench.turn()
    assert len(bench.exchanges) == 2
    bench.exchange.respond(b"hello")
    assert b"\r\nconnection: close\r\n" in connection.received()


def test_a_kept_http_10_connection_is_told_of_a_shutdown(bench: Bench) -> None:
    """The head was composed before the shutdown began."""
    connection = bench.connect()
    connection.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    client = bench.exchange.client
    head, framing = headers.response_head(200, [], bench.exchange.request, True, client.will_close)
    bench.context.draining = True
    client.send_head(head, framing)
    client.send_end(None)
    assert connection.received() == b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    assert connection.transport.closed


def test_credit_that_is_owed_is_given_back_when_the_client_leaves(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    connection.protocol.pause_writing()
    bench.exchange.respond(b"hello")
    connection.protocol.connection_lost(None)
    assert bench.exchange.heard == ["start", "gone"]


def test_what_an_exchange_says_after_its_end_is_ignored(bench: Bench) -> None:
    connection = bench.connect()
    connection.send(GET)
    exchange = bench.exchange
    exchange.client.abort()
    connection.transport.take()
    exchange.client.send_interim(b"HTTP/1.1 103 X\r\n\r\n")
    exchange.client.answer(b"HTTP/1.1 503 X\r\n\r\n", True)
    exchange.respond(b"late")
    exchange.client.abort()
    assert connection.received() == b""


def test_bytes_after_the_last_response_of_a_connection_are_thrown_away(bench: Bench) -> None:
    """RFC 9112 section 9.6: nothing after the request that said close is a request."""
    connection = bench.connect()
    connection.send(GET[:-2] + b"Connection: close\r\n\r\n" + GET)
    bench.exchange.respond(b"hello")
    connection.send(GET)
    assert len(bench.exchanges) == 1
    assert connection.transport.eof_written


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("end", ["abort", "answer", "respond"])
@pytest.mark.parametrize("chunked", [False, True])
def test_an_exchange_may_end_while_its_body_is_handed_in(
    bench: Bench, version: bytes, end: str, chunked: bool
) -> None:
    """The bytes that are left in hand have no body any more."""
    make = bench.make_exchange

    def ending(request: Any, client: Any) -> FakeExchange:
        exchange = make(request, client)

        def finish() -> None:
            if end == "abort":
                exchange.begin()
                client.abort()
            elif end == "answer":
                client.answer(b"HTTP/1.1 502 X\r\nContent-Length: 0\r\n\r\n", client.will_close)
            else:
                exchange.respond(b"early")
            exchange.body.release()

        exchange.on_body = finish  # type: ignore[method-assign]
        return exchange

    bench.context.exchanges = ending
    connection = bench.connect()
    if chunked and version == b"1.1":
        connection.send(POST_CHUNKED + b"5\r\nhello\r\n" * 3)
    else:
        connection.send(
            b"POST / HTTP/%b\r\n%bContent-Length: 90000\r\n\r\n" % (version, HOST) + b"x" * 50_000
        )
    connection.send(b"x" * 10_000)
    assert bench.arena.used == 0
    assert connection.transport.closed or connection.transport.eof_written or not chunked


def test_a_client_that_does_not_read_is_given_no_second_exchange(bench: Bench) -> None:
    """Else a pipeline that nobody reads would grow without end, and its first exchange never get its credit."""
    connection = bench.connect()
    connection.send(GET + GET)
    first = bench.exchange
    connection.protocol.pause_writing()
    first.respond(b"hello")
    connection.send(GET)
    assert bench.exchanges == [first]
    connection.protocol.resume_writing()
    bench.turn()
    assert first.heard == ["start", "writable"]
    assert len(bench.exchanges) == 2
    bench.exchange.respond(b"hello")
    bench.turn()
    assert len(bench.exchanges) == 3


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_connection_that_waits_for_its_reader_ends_with_a_shutdown(bench: Bench, moment: str) -> None:
    connection = bench.connect()
    connection.send(GET)
    connection.protocol.pause_writing()
    bench.exchange.respond(b"hello")
    bench.context.draining = True
    if moment == "before":
        connection.client.on_drain()
    connection.protocol.resume_writing()
    bench.turn()
    assert connection.transport.closed


def test_a_request_behind_a_response_that_is_not_read_is_answered_after_eof(engine: str) -> None:
    """RFC 9112 section 9.6, where EOF is waited out."""
    bench = Bench(engine, half_close="wait")
    connection = bench.connect()
    connection.send(GET)
    connection.protocol.pause_writing()
    bench.exchange.respond(b"hello")
    connection.send(GET)
    assert connection.eof()
    connection.protocol.resume_writing()
    bench.turn()
    assert len(bench.exchanges) == 2
    bench.exchange.respond(b"hello")
    bench.turn()
    assert connection.transport.closed


def test_credit_that_is_owed_when_a_response_is_cut_is_given_back_when_the_client_leaves(
    bench: Bench,
) -> None:
    connection = bench.connect()
    connection.send(GET)
    bench.exchange.begin()
    connection.protocol.pause_writing()
    connection.client.abort()
    connection.protocol.connection_lost(None)
    assert bench.exchange.heard == ["start", "gone"]
