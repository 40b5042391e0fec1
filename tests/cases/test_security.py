"""Peers that attack: floods, injected headers, smuggled requests, pushed streams, leaked secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import aiohttp
import hpack
import pytest

from tests.cases.refusal import assert_refused
from tests.cases.timing import SOON
from tests.support import names
from tests.support.framing import Code, Kind, continuation, headers, ping, push_promise, settings

if TYPE_CHECKING:
    from tests.support.proxy import Proxy
    from tests.support.scripted_origin import Conn
    from tests.support.stage import Stage


async def _goaway_code(conn: Conn) -> int:
    return (await conn.saw(Kind.GOAWAY)).goaway[1]


@pytest.mark.parametrize(("count", "size"), [(5000, 0), (100, 16384)], ids=["5000 empty", "100 full"])
async def test_a_flood_of_continuation_frames_is_ended(stage: Stage, count: int, size: int) -> None:
    """Case continuation-flood (RFC 9113 section 10.5.1)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    conn = request.conn
    before = proxy.resident_bytes()
    # A literal field without indexing: name "a", and a value far longer than what is sent.
    opening = b"\x88\x00\x01a\x7f\xff\xff\xff\x03" if size else b""
    conn.send(headers(1, opening, end_headers=False))
    for _ in range(count):
        conn.send(continuation(1, b"b" * size, end_headers=False))
    response = await client.response("POST", within=SOON)
    assert (response.status, response.complete) == (502, True)
    assert response.cause in ("flood", "protocol-error")
    assert await _goaway_code(conn) == Code.ENHANCE_YOUR_CALM
    await conn.closed()
    assert proxy.resident_bytes() - before < 16 << 20


async def test_a_flood_of_pings_and_settings_is_ended(stage: Stage) -> None:
    """Case ping-settings-flood (RFC 9113 section 10.5)."""
    origin = await stage.origin(receive_buffer_bytes=65536)
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    conn = request.conn
    conn.stop_reading()
    before = proxy.resident_bytes()
    burst = ping(bytes(8)) * 50 + settings({4: 65535}) * 50
    for _ in range(1000):
        conn.raw(burst)
        if conn.write_full:
            await conn.bell.until(lambda: not conn.write_full or conn.lost, "room to flood")
        if conn.lost:
            break
    response = await client.response("POST")
    assert (response.status, response.cause) == (502, "flood")
    assert proxy.resident_bytes() - before < 16 << 20
    if not conn.lost:
        conn.resume_reading()
    await conn.closed()
    goaways = conn.all(Kind.GOAWAY)
    assert all(frame.goaway[1] == Code.ENHANCE_YOUR_CALM for frame in goaways)
    fresh = await stage.client(proxy)
    fresh.request("GET", "/next")
    following = await origin.request(2)
    assert following.conn is not conn
    following.respond(200, b"next")
    assert (await fresh.response()).body == b"next"


@pytest.mark.parametrize(
    "value", [b"v\r\nSet-Cookie: s=1", b"v\rx", b"v\nx", b"v\0x"], ids=["CRLF", "CR", "LF", "NUL"]
)
async def test_a_field_value_with_line_breaks_ends_its_stream_only(stage: Stage, value: bytes) -> None:
    """Case crlf-in-response-header (RFC 9113 sections 8.2.1 and 10.3)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    victim, other = await stage.client(proxy), await stage.client(proxy)
    victim.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    other.request("POST", "/other", b"x")
    sound = await origin.request(2)
    assert sound.conn is request.conn
    request.respond(200, b"body", [(b"x-a", value)])
    response = await victim.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "malformed-response")
    everything = b"".join(name + text for name, text in response.fields).lower() + response.body
    assert b"set-cookie" not in everything
    assert b"s=1" not in everything
    assert await request.was_reset() == Code.PROTOCOL_ERROR
    sound.respond(200, b"sound")
    assert (await other.response("POST")).body == b"sound"


@pytest.mark.parametrize("order", ["length first", "coding first"])
async def test_both_length_fields_are_refused(stage: Stage, order: str) -> None:
    """Case te-and-cl-rejected (RFC 9112 sections 6.1 and 6.3)."""
    fields = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"]
    if order == "coding first":
        fields.reverse()
    head = b"POST / HTTP/1.1\r\nHost: x\r\n" + b"".join(fields) + b"\r\n"
    await assert_refused(stage, head + b"0\r\n\r\n")


async def test_a_lone_cr_in_a_header_line_is_refused(stage: Stage) -> None:
    """Case bare-cr-smuggling (RFC 9112 section 2.2)."""
    await assert_refused(
        stage,
        b"POST / HTTP/1.1\r\nHost: x\r\nX-Abc: \rxTransfer-Encoding: chunked\r\n\r\n1\r\nA\r\n0\r\n\r\n",
    )


@pytest.mark.parametrize("how", ["PUSH_PROMISE", "HEADERS on an idle stream"])
async def test_what_nobody_asked_for_is_a_connection_error(stage: Stage, how: str) -> None:
    """Case unsolicited-push (RFC 9113 sections 6.6 and 8.4)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    conn = request.conn
    assert conn.peer_settings[2] == 0, "ENABLE_PUSH"
    pushed = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"x"), (b":path", b"/pushed")]
    if how == "PUSH_PROMISE":
        conn.send(push_promise(1, 2, conn.encoder.encode(pushed)))
    else:
        conn.send(conn.response(2, 200))
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "protocol-error")
    assert await _goaway_code(conn) == Code.PROTOCOL_ERROR
    await conn.closed()


async def test_a_push_before_our_settings_were_acknowledged_is_reset_alone(stage: Stage) -> None:
    """Case unsolicited-push: the peer did not know yet (RFC 9113 sections 6.5.3 and 8.4)."""
    origin = await stage.origin(ack_settings=False)
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    conn = request.conn
    pushed = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"x"), (b":path", b"/pushed")]
    conn.send(push_promise(1, 2, conn.encoder.encode(pushed)))
    assert (await conn.saw(Kind.RST_STREAM, within=SOON)).stream == 2
    request.respond(200, b"asked for")
    assert (await client.response("POST")).body == b"asked for"
    assert not conn.all(Kind.GOAWAY)


async def test_an_absolute_target_goes_to_the_upstream_only(stage: Stage) -> None:
    """Case absolute-form-and-connect, absolute-form (RFC 9112 section 3.2.2): the other host is not even looked up."""
    origin, other = await stage.origin(), await stage.origin()
    here = f"{names.ABSOLUTE}:{origin.port}"
    proxy = await stage.proxy(f"https://{here}", env=names.resolver(stage.folder))
    client = await stage.client(proxy)
    hosts = ["evil.example", "evil.example:443", other.authority.decode()]
    for number, host in enumerate(hosts, 1):
        client.send(
            f"POST http://{host}/v1/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 2\r\n\r\nhi".encode()
        )
        request = await origin.request(number)
        assert (request.path, request.get(b":authority")) == (b"/v1/x", here.encode())
        request.respond(200)
        assert (await client.response("POST")).status == 200

    own = await stage.client(proxy)
    host = f"127.0.0.1:{proxy.port}"
    own.send(f"GET http://{host}/v1/y?z=1 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    request = await origin.request(len(hosts) + 1)
    assert (request.path, request.get(b":authority")) == (b"/v1/y?z=1", here.encode())
    request.respond(200)
    assert (await own.response()).status == 200
    assert names.looked_up(stage.folder) - {"127.0.0.1"} == {names.ABSOLUTE}
    assert not other.connections


async def test_connect_opens_no_tunnel(stage: Stage) -> None:
    """Case absolute-form-and-connect, CONNECT (RFC 9110 section 9.3.6)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n")
    response = await client.response("GET", within=SOON)
    assert response.status in (405, 501)
    assert response.closes
    assert await client.closed() == b""
    assert not origin.requests


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_secret_of_a_request_comes_out_again(stage: Stage, form: str) -> None:
    """Case secrets-not-logged."""
    origin = await stage.origin()
    proxy = await stage.proxy(
        origin, "--log-level=debug", "--access-log", f"--log-format={form}", "--admin-listen=127.0.0.1:0"
    )
    secret = "S3CR3T"
    fields = [("Cookie", f"k={secret}"), ("X-Api-Key", secret), ("Proxy-Authorization", f"Basic {secret}")]
    client = await stage.client(proxy)
    client.send(
        f"POST /v1/chat?token={secret} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\n".encode()
        + b"".join(f"{name}: {value}\r\n".encode() for name, value in fields)
        + b"Content-Length: 2\r\n\r\nhi"
    )
    request = await origin.request(1)
    assert request.path == b"/v1/chat?token=S3CR3T"
    secrets = {name for name, value in request.fields if secret.encode() in value and name != b":path"}
    assert secrets <= _never_indexed(request.block)
    await _no_secret_on_the_second_listener(proxy, secret)
    assert b"authorization" in secrets
    request.conn.rst()
    response = await client.response("POST", within=SOON)
    assert response.status == 502
    assert secret.encode() not in response.body
    assert all(secret.encode() not in value for _, value in response.fields)

    bad = await stage.client(proxy)
    bad.send(f"POST /?token={secret} HTTP/1.1\r\nHost: x\r\n Authorization: {secret}\r\n\r\n".encode())
    assert secret.encode() not in (await bad.response()).body
    await proxy.logged("/v1/chat")
    await _no_secret_on_the_second_listener(proxy, secret)
    assert await proxy.stop() == 0
    assert secret not in proxy.log


async def _no_secret_on_the_second_listener(proxy: Proxy, secret: str) -> None:
    found = re.search(r"http://[0-9.]+:[0-9]+", await proxy.logged("probes and metrics on"))
    assert found is not None
    async with aiohttp.ClientSession(found[0]) as session:
        for page in ("/", "/metrics", "/connections", "/readiness"):
            async with session.get(page) as answer:
                assert secret not in await answer.text(), page


def _never_indexed(block: bytes) -> set[bytes]:
    """Names of never-indexed literals in the first block of a connection (RFC 7541 section 6.2.3)."""
    decoded = hpack.Decoder().decode(block, raw=True)
    return {bytes(field[0]) for field in decoded if not getattr(field, "indexable", True)}
