"""How the HTTP/1.1 side reads requests (RFC 9112): strict about framing, patient with packet borders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.refusal import assert_refused
from tests.cases.timing import SOON
from tests.support.client import with_key
from tests.support.framing import Code, Kind

if TYPE_CHECKING:
    from tests.support.stage import Stage


async def test_blank_lines_before_a_request_are_dropped(stage: Stage) -> None:
    """Case crlf-heartbeat-ignored (RFC 9112 section 2.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/1", b"first")
    first = await origin.request(1)
    assert await first.complete() == b"first"
    for _ in range(8):
        client.send(b"\r\n")
        await client.silent(0.05)
    first.respond(200, b"one")
    assert (await client.response("POST")).body == b"one"
    client.send(b"\r\n")
    client.request("POST", "/2", b"second")
    second = await origin.request(2)
    assert await second.complete() == b"second"
    second.respond(200, b"two")
    response = await client.response("POST")
    assert (response.status, response.body) == (200, b"two")
    assert len(origin.requests) == 2


async def test_blank_lines_do_not_hide_that_the_client_left(stage: Stage) -> None:
    """Case crlf-heartbeat-ignored: they must not stop disconnect detection."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/1", b"first")
    request = await origin.request(1)
    client.send(b"\r\n\r\n")
    client.close()
    assert await request.was_reset(within=SOON) == Code.CANCEL


async def test_a_folded_header_line_is_refused(stage: Stage) -> None:
    """Case obs-fold-rejected (RFC 9112 section 5.2)."""
    await assert_refused(
        stage,
        b"POST / HTTP/1.1\r\nHost: x\r\nX-A: 1\r\n Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\nx",
    )


@pytest.mark.parametrize("size", ["+5", "-1", "0x5", "5_0", "5 ", "FFFFFFFFFFFFFFFF1"])
@pytest.mark.parametrize("when", ["first", "later"])
async def test_a_chunk_size_that_is_not_plain_hex_is_refused(stage: Stage, size: str, when: str) -> None:
    """Case chunk-size-not-plain-hex (RFC 9112 section 7.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(with_key(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"))
    if when == "later":
        client.send(b"3\r\nabc\r\n")
        await (await origin.request(1)).received(3)
    client.send(size.encode() + b"\r\nhello\r\n0\r\n\r\n")
    response = await client.response("POST", within=SOON)
    assert (response.status, response.closes) == (400, True)
    assert await client.closed() == b""
    for request in origin.requests:
        assert await request.was_reset() == Code.CANCEL
        assert not [f for f in request.conn.all(Kind.DATA, request.stream) if f.ends_stream]
        assert bytes(request.body) in (b"", b"abc")


async def test_a_request_in_single_bytes_is_one_request(stage: Stage) -> None:
    """Case one-byte-at-a-time."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    head = b"POST /1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send_slowly(head + b"5\r\nhello\r\n1;note=it\r\n \r\n6\r\nworld!\r\n0\r\n\r\n")
    first = await origin.request(1)
    assert await first.complete() == b"hello world!"
    first.respond(200, b"one")
    assert (await client.response("POST")).body == b"one"

    client.send(with_key(head) + b"5\r\nhello\r")
    second = await origin.request(2)
    await second.received(5)
    client.send(b"\n0\r\n\r\n")
    assert await second.complete() == b"hello"
    second.respond(200, b"two")
    assert (await client.response("POST")).body == b"two"
    for request in (first, second):
        ends = [f for f in request.conn.frames if f.stream == request.stream and f.ends_stream]
        assert len(ends) == 1
