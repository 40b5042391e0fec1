"""Nothing that h11 refuses becomes a request at the upstream; what both take, both read alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
import pytest

from tests.support.client_bench import Bench
from tests.support.fake_exchange import has_body

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = b"Host: here\r\n"
SEEDS = [
    b"GET /v1/models HTTP/1.1\r\n" + HOST + b"Accept: */*\r\n\r\n",
    b"POST /v1 HTTP/1.1\r\n" + HOST + b"Content-Length: 5\r\n\r\nhello",
    b"POST /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    + HOST
    + b"\r\n5\r\nhello\r\n1;a=b\r\n!\r\n0\r\nX: 1\r\n\r\n",
    b"PUT / HTTP/1.0\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi",
]
WRONG = [
    b"\0",
    b"\r",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"\x0b",
    b"\x7f",
    b"\xa0",
    b":",
    b",",
    b"+",
    b"-",
    b"_",
    b"0",
    b";",
]
FRAMINGS = [
    b"Content-Length: 5",
    b"Content-Length: 6",
    b"Content-Length: +5",
    b"Content-Length: 0x5",
    b"Content-Length: 5, 6",
    b"Content-Length:",
    b"Content-Length: 1e1",
    b"Content-Length: 99999999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: Chunked ",
    b"Transfer-Encoding: gzip",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked",
    b" Transfer-Encoding: chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Host: there",
]
CHUNK_LINES = [
    b"+5",
    b"-5",
    b"0x5",
    b"5_0",
    b"5 ",
    b" 5",
    b"FFFFFFFFFFFFFFFF1",
    b"",
    b"g",
    b"5;\0",
    b"5\t",
    b"5,5",
]


def malformed() -> Iterator[bytes]:
    """Seeds with one byte put in, taken out or replaced anywhere; framing fields in pairs; chunk sizes."""
    for seed in SEEDS:
        for at in range(len(seed)):
            yield seed[:at] + seed[at + 1 :]
            for wrong in WRONG:
                yield seed[:at] + wrong + seed[at:]
                yield seed[:at] + wrong + seed[at + 1 :]
    for first in FRAMINGS:
        for second in [b"", *FRAMINGS]:
            fields = first + b"\r\n" + (second + b"\r\n" if second else b"")
            for version in (b"1.1", b"1.0", b"1.2", b"2.0"):
                yield b"POST / HTTP/" + version + b"\r\n" + HOST + fields + b"\r\n5\r\nhello\r\n0\r\n\r\n"
    for line in CHUNK_LINES:
        yield (
            b"POST / HTTP/1.1\r\n"
            + HOST
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + line
            + b"\r\nhello\r\n0\r\n\r\n"
        )


def by_h11(stream: bytes) -> tuple[bytes, bytes, bytes] | str | None:
    """Method, target and body of the first request; None while it is not whole; "refused", "refused head"."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=64 << 10)
    # RFC 9112 section 2.2 lets a server ignore an empty line before a request; h11 does not.
    connection.receive_data(stream[2:] if stream.startswith(b"\r\n") else stream)
    method = target = body = b""
    began = False
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                began = True
                method, target = event.method, event.target
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                return method, target, body
            else:
                return None
    except h11.RemoteProtocolError:
        return "refused" if began else "refused head"


def by_h2ping(engine: str, stream: bytes) -> tuple[bytes, bytes, bytes] | str | None:
    bench = Bench(engine)
    connection = bench.connect()
    connection.send(stream)
    if not bench.exchanges:
        return "refused" if connection.transport.eof_written else None
    exchange = bench.exchanges[0]
    if exchange.error is not None:
        return "refused"
    if has_body(exchange.request) and "end" not in exchange.heard:
        return None
    return exchange.request.method, exchange.request.target, exchange.bytes


def test_nothing_that_h11_refuses_becomes_a_request(engine: str) -> None:
    """RFC 9112 section 11.2: request smuggling begins where two parsers disagree."""
    refused = heads = 0
    for stream in malformed():
        theirs, ours = by_h11(stream), by_h2ping(engine, stream)
        if theirs == "refused head":
            heads += 1
            assert begun(engine, stream) == 0, stream
        elif theirs == "refused":
            refused += 1
            assert not isinstance(ours, tuple), stream
        elif isinstance(theirs, tuple) and isinstance(ours, tuple):
            assert ours == theirs, stream
        elif theirs is None:
            assert not isinstance(ours, tuple), stream
    assert refused >= 20
    assert heads >= 500


def begun(engine: str, stream: bytes, before: bytes = b"") -> int:
    """Exchanges that the stream began, which is when a request may reach the upstream; `before`: answered first."""
    bench = Bench(engine)
    connection = bench.connect()
    if before:
        connection.send(before + stream)
        bench.exchange.respond(b"first")
        bench.turn()
    else:
        connection.send(stream)
    return len(bench.exchanges) - bool(before)


def test_a_head_that_h11_refuses_is_refused_behind_another_request_too(engine: str) -> None:
    """RFC 9112 section 9.3.2: a pipelined request is read like the first one."""
    first = SEEDS[0]
    assert begun(engine, SEEDS[1], before=first) == 1
    refused = 0
    for stream in malformed():
        if by_h11(stream) == "refused head":
            refused += 1
            assert begun(engine, stream, before=first) == 0, stream
    assert refused >= 500


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_well_formed_is_taken_by_both(engine: str, seed: bytes) -> None:
    assert by_h2ping(engine, seed) == by_h11(seed)
