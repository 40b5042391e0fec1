"""What must hold for any bytes that a client sends, over both twins (RFC 9112)."""

from __future__ import annotations

import itertools
import re
from typing import Any

import httptools
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from h2ping import headers
from h2ping.downstream.protocol import CompiledOctets
from h2ping.errors import DownstreamError
from tests.support.client_bench import Bench
from tests.support.fake_exchange import has_body

TOKENS = st.text("abcXYZ019!#$%&'*+-.^_`|~", min_size=1, max_size=12).map(str.encode)
VALUES = st.binary(max_size=20).map(lambda value: bytes(b for b in value if b == 9 or (b >= 32 and b != 127)))
HOST = b"Host: here\r\n"
# How a fault is worded may hang on how much of it was seen at once; that it is one may not.
DETAIL = re.compile(rb"Content-Length: \d+|h2ping: bad-request: .*\n")


@st.composite
def heads(draw: st.DrawFn, framing: bytes = b"") -> bytes:
    """A well-formed head."""
    method = draw(st.sampled_from([b"GET", b"POST", b"PUT", b"FROB", b"OPTIONS"]))
    fields = draw(st.lists(st.tuples(TOKENS, VALUES), max_size=6))
    lines = b"".join(b"%b:%b\r\n" % field for field in fields if field[0].lower() not in (b"host", b"te"))
    return b"%b /%b HTTP/1.1\r\n%b%b%b\r\n" % (method, draw(TOKENS), HOST, framing, lines)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A whole request: no body, one of known length, or a chunked one with extensions and trailers."""
    kind = draw(st.sampled_from(["none", "length", "chunked"]))
    if kind == "none":
        return draw(heads())
    body = draw(st.binary(max_size=40))
    if kind == "length":
        return draw(heads(b"Content-Length: %d\r\n" % len(body))) + body
    pieces = draw(st.lists(st.binary(min_size=1, max_size=20), max_size=4))
    extension = draw(st.sampled_from([b"", b";a", b';a="b"', b";a=b;c"]))
    trailers = draw(st.sampled_from([b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nX-More:\r\n"]))
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return draw(heads(b"Transfer-Encoding: chunked\r\n")) + chunks + b"0\r\n" + trailers + b"\r\n"


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Requests one after the other, empty lines between, perhaps one byte wrong."""
    between = st.sampled_from([b"", b"\r\n", b"\r\n\r\n"])
    stream = b"".join(draw(between) + draw(requests()) for _ in range(draw(st.integers(1, 3))))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(stream) - 1))
        wrong = draw(
            st.sampled_from([b"", b"\r", b"\n", b" ", b"\0", b":", b",", b"+", b"0", b"\x80", b"\r\n"])
        )
        stream = stream[:at] + wrong + stream[at + draw(st.integers(0, 1)) :]
    return stream


def outcome(engine: str, pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], bytes, bool]:
    """What the upstream would see, what the client reads, and whether the connection ended."""
    bench = Bench(engine)
    connection = bench.connect()
    written = b""
    for piece in pieces:
        connection.send(piece)
        while bench.exchanges and bench.exchange.client.exchange is not None and is_whole(bench.exchange):
            bench.exchange.respond(b"ok")
            written += connection.received()
        written += connection.received()
    seen = [
        (exchange.request, exchange.bytes, exchange.trailers, is_whole(exchange))
        for exchange in bench.exchanges
    ]
    written = DETAIL.sub(b"", written)
    return seen, written, connection.transport.eof_written or connection.transport.closed


def is_whole(exchange: Any) -> bool:
    return "end" in exchange.heard or not has_body(exchange.request)


# The fixture is a name, the same for all examples.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stream=streams(), cuts=st.lists(st.integers(0, 400), max_size=6))
@example(stream=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n\r\n", cuts=[25, 26, 28])
def test_any_byte_stream_is_read_the_same_whole_byte_by_byte_or_split_anywhere(
    stream: bytes, cuts: list[int], engine: str
) -> None:
    """RFC 9112 section 2.2: a message is parsed as octets, however they come."""
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    split = [stream[start:end] for start, end in itertools.pairwise(edges)]
    whole = outcome(engine, [stream])
    assert outcome(engine, split) == whole
    assert outcome(engine, [stream[at : at + 1] for at in range(len(stream))]) == whole


@given(stream=streams())
def test_both_twins_say_the_same_to_any_byte_stream(stream: bytes) -> None:
    if CompiledOctets is None:
        pytest.skip("the compiled engine was not built, or is switched off")
    assert outcome("c", [stream]) == outcome("py", [stream])


NEAR_HEADS = st.one_of(
    heads(),
    st.builds(
        lambda raw, at, byte: raw[: at % len(raw)] + byte + raw[at % len(raw) + 1 :],
        heads(),
        st.integers(0, 300),
        st.binary(max_size=2),
    ),
    st.binary(max_size=60),
    st.text("GET /HTP1.0:\r\n ", max_size=60).map(str.encode),
)


@given(raw=NEAR_HEADS)
@example(raw=b"G / HTTP/1.1\r\n\r\n")
@example(raw=b"G / HTTP/1.1\r\n\r\n\r\n")
@example(raw=b"G / HTTP/1.1\r\na:\r\n\r\n")
@example(raw=b"G / HTTP/1.1\r\na:\r\r\n\r\n")
def test_the_compiled_scan_of_a_head_agrees_with_the_plain_one(raw: bytes) -> None:
    heads = pytest.importorskip("h2ping._fast.heads")
    try:
        headers.check_head(raw)
    except DownstreamError:
        assert not heads.is_well_formed(raw)
        assert heads.split_head(raw, {}) is None
    else:
        assert heads.is_well_formed(raw)
        method, target, version, fields = headers.split_head(raw)
        lowered = [(name.lower(), value) for name, value in fields]
        host = [field for field in lowered if field[0] == b"host"]
        rest = [field for field in lowered if field[0] != b"host"]
        assert heads.split_head(raw, {}) == (method, target, version, lowered, [])
        assert heads.split_head(raw, {b"host": True}) == (method, target, version, lowered, host)
        assert heads.split_head(raw, {b"host": False}) == (method, target, version, rest, host)


@given(fields=st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=5))
@example(fields=[(b"a", b"b\r")])
@example(fields=[(b"a\0", b"b")])
def test_the_compiled_writer_of_fields_agrees_with_the_plain_one(fields: list[tuple[bytes, bytes]]) -> None:
    heads = pytest.importorskip("h2ping._fast.heads")
    assert heads.field_lines(b"first\r\n", fields, b"\r\n") == headers.plain_field_lines(
        b"first\r\n", fields, b"\r\n"
    )


@given(raw=NEAR_HEADS)
def test_httptools_splits_a_checked_head_as_the_plain_split_does(raw: bytes) -> None:
    """Two parsers that read one head differently are how requests are smuggled (RFC 9112 section 11.2)."""
    try:
        headers.check_head(raw)
    except DownstreamError:
        return
    method, target, version, fields = headers.split_head(raw)
    seen: list[tuple[bytes, bytes]] = []
    sink = type(
        "Sink", (), {"on_header": staticmethod(lambda name, value: seen.append((name, value.strip(b" \t"))))}
    )()
    parser = httptools.HttpRequestParser(sink)
    try:
        parser.feed_data(b"POST" + raw[len(method) :])
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return
    assert seen == fields
    assert parser.get_http_version() == version
    assert target in raw
