"""Responses, field octets and HPACK state (RFC 9113 section 8, RFC 7541)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE
from tests.support.client import request_bytes
from tests.support.framing import Code, Kind, Setting, data, headers, rst_stream, settings

if TYPE_CHECKING:
    from tests.support.stage import Stage


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_a_length_without_a_body_is_no_error_where_none_may_be(
    stage: Stage, method: str, status: int
) -> None:
    """Case head-with-content-length (RFC 9113 section 8.1.1, RFC 9110 section 6.4.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request(method, "/f")
    request = await origin.request(1)
    fields = [] if status == 204 else [(b"content-length", b"1234")]
    request.head(status, fields, end=True)
    response = await client.response(method)
    assert (response.status, response.complete) == (status, True)
    if method == "HEAD":
        assert response.get(b"content-length") == b"1234"
    client.request("GET", "/next")
    (await origin.request(2)).respond(200, b"next")
    assert (await client.response()).body == b"next"


async def test_a_reset_after_a_complete_response_changes_nothing(stage: Stage) -> None:
    """Case rst-no-error-after-complete-response (RFC 9113 section 8.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(request_bytes("POST", "/", None, [("Content-Length", "100000")]) + bytes(50_000))
    request = await origin.request(1)
    await request.received(50_000)
    conn = request.conn
    conn.send(conn.response(1, 200), data(1, b"hello", end=True), rst_stream(1, Code.NO_ERROR))
    response = await client.response("POST")
    assert (response.status, response.body, response.complete) == (200, b"hello", True)
    answered = len(conn.frames)
    client.send(bytes(50_000))
    await conn.saw_none(Kind.DATA, ABSENCE, stream=1, since=answered)
    assert all(frame.number == Code.NO_ERROR for frame in conn.all(Kind.RST_STREAM))


async def test_field_octets_beyond_ascii_pass_unchanged(stage: Stage) -> None:
    """Case latin1-header-bytes (RFC 9110 section 5.5)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(b"GET / HTTP/1.1\r\nHost: x\r\nX-User: \xe5\xbc\xa0\r\n\r\n")
    request = await origin.request(1)
    assert request.get(b"x-user") == b"\xe5\xbc\xa0"
    request.respond(200, b"ok", [(b"x-note", b"caf\xe9")])
    response = await client.response()
    assert (response.status, response.get(b"x-note")) == (200, b"caf\xe9")


async def test_our_encoder_follows_the_peers_table_size(stage: Stage) -> None:
    """Case hpack-table-resize (RFC 7541 sections 4.2 and 6.3). The origin refuses a larger table."""
    origin = await stage.origin(settings={Setting.HEADER_TABLE_SIZE: 0})
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    fields = [("X-Repeated", "the same in each request")]
    client.request("GET", "/1", fields=fields)
    first = await origin.request(1)
    assert first.block[0] & 0xE0 == 0x20, "the first block begins with a table size update"
    first.respond(200, b"1")
    await client.response()
    client.request("GET", "/2", fields=fields)
    second = await origin.request(2)
    second.respond(200, b"2")
    await client.response()

    conn = second.conn
    conn.send(settings({Setting.HEADER_TABLE_SIZE: 4096}))
    await conn.bell.until(lambda: conn.decoder.max_allowed_table_size == 4096, "SETTINGS ACK")
    for number in (3, 4, 5):
        client.request("GET", f"/{number}", fields=fields)
        request = await origin.request(number)
        assert request.get(b"x-repeated") == b"the same in each request"
        request.respond(200, b"%d" % number)
        assert (await client.response()).body == b"%d" % number
    assert len(origin.connections) == 1


async def test_two_size_updates_at_the_start_of_a_block_are_accepted(stage: Stage) -> None:
    """Case hpack-table-resize, our decoder (RFC 7541 section 4.2)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number in (1, 2, 3):
        client.request("GET", f"/{number}")
        request = await origin.request(number)
        conn = request.conn
        if number == 2:
            conn.encoder.header_table_size = 0
            conn.encoder.header_table_size = 4096
        block = conn.encoder.encode([(b":status", b"200"), (b"x-kept", b"in the table")])
        if number == 2:
            assert block.startswith(b"\x20\x3f\xe1\x1f")
        conn.send(headers(request.stream, block), data(request.stream, b"ok", end=True))
        response = await client.response()
        assert (response.status, response.get(b"x-kept")) == (200, b"in the table")
    assert len(origin.connections) == 1
