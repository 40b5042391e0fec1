"""Corners of the upstream's side: who may be asked, what a broken path means, what an early end leaves whole."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.framing import Code, Flag, Kind, Setting, data, frame, goaway, ping, rst_stream, settings

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage


async def test_an_upstream_that_refuses_for_ever_gets_the_same_bytes_a_few_times(stage: Stage) -> None:
    """RFC 9113 section 8.7: fields and body are equal in each attempt, which are bounded and spread in time."""

    async def refuse(request: Request) -> None:
        await request.complete()
        request.reset(Code.REFUSED_STREAM)

    origin = await stage.origin(refuse)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    response = await client.ask("POST", "/", b"abc" * 50_000, within=30)
    assert (response.status, response.cause) == (502, "stream-refused")
    assert len(origin.requests) == 8
    assert {bytes(request.body) for request in origin.requests} == {b"abc" * 50_000}
    assert len({tuple(request.fields) for request in origin.requests}) == 1
    assert len(origin.connections) == 1
    assert origin.requests[-1].at - origin.requests[0].at > 1


@pytest.mark.parametrize("last_ids", [(3, 7), (5, 3), (2**31 - 1, 3)], ids=["grows", "shrinks", "two steps"])
async def test_goaway_may_come_more_than_once(stage: Stage, last_ids: tuple[int, int]) -> None:
    """RFC 9113 section 6.8: an id that grows is the peer's fault, and what was re-sent is not taken back."""
    origin = await stage.origin()
    origin.tolerated = True  # it answers none of what it took back
    proxy = await stage.proxy(origin)
    clients = [await stage.client(proxy) for _ in range(4)]
    for number, client in enumerate(clients):
        client.request("POST", f"/{number}", b"x")
        await (await origin.request(number + 1)).complete()
    (conn,) = origin.connections
    conn.send(*(goaway(last) for last in last_ids))
    await origin.request(6, within=SOON)
    await origin.no_request(6, ABSENCE)
    for request in origin.requests:
        if request.conn is not conn or request.stream <= 3:
            request.respond(200, request.path)
    assert [(await client.response("POST")).body for client in clients] == [b"/0", b"/1", b"/2", b"/3"]


@pytest.mark.parametrize("notify", [True, False], ids=["close_notify", "FIN only"])
async def test_an_early_answer_before_the_end_of_the_connection_is_delivered(
    stage: Stage, notify: bool
) -> None:
    """RFC 9113 section 8.1: 413, RST_STREAM(NO_ERROR), GOAWAY and the end in one write, the upload half way."""
    origin = await stage.origin(settings={Setting.INITIAL_WINDOW_SIZE: 1000}, credit=False)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("POST", "/", bytes(300_000))
    request = await origin.request(1)
    await request.received(1000)
    conn = request.conn
    head = conn.response(1, 413, [(b"content-length", b"3")])
    conn.fin(head, data(1, b"big", end=True), rst_stream(1, Code.NO_ERROR), goaway(1), close_notify=notify)
    response = await client.response("POST", within=SOON)
    assert (response.status, response.body, response.complete) == (413, b"big", True)


async def test_a_connection_lost_inside_the_last_padding_ends_the_response_unfinished(
    any_stage: Stage,
) -> None:
    """RFC 9113 section 8.1: all content is there, but the frame that ends the stream is not; the client is told."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    last = frame(Kind.DATA, Flag.PADDED | Flag.END_STREAM, 1, b"\x09whole" + bytes(9))
    request.conn.fin(request.conn.response(1, 200), last[:-4])
    response = await client.response("POST", within=SOON)
    assert response.status == 200
    assert not response.complete
    await proxy.logged("connection-lost")


async def test_an_upstream_that_never_acknowledges_our_settings_serves(stage: Stage) -> None:
    """RFC 9113 section 6.5.3 lets us wait; nothing that we do hangs on it."""
    origin = await stage.origin(ack_settings=False)
    origin.tolerated = True
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number in (1, 2):
        client.request("POST", "/", bytes(100_000))
        request = await origin.request(number)
        await request.complete()
        request.respond(200, b"ok")
        assert (await client.response("POST")).body == b"ok"


async def test_a_stream_limit_that_shrinks_below_those_open_is_waited_out(any_stage: Stage) -> None:
    """RFC 9113 section 5.1.2: no new stream until enough have ended."""
    origin = await any_stage.origin(settings={Setting.MAX_CONCURRENT_STREAMS: 3})
    proxy = await any_stage.proxy(origin, "--max-conns=1")
    clients = [await any_stage.client(proxy) for _ in range(5)]
    for number, client in enumerate(clients[:3], 1):
        client.request("POST", "/", b"x")
        await origin.request(number)
    (conn,) = origin.connections
    conn.send(settings({Setting.MAX_CONCURRENT_STREAMS: 1}), ping(b"roundtri"))
    await conn.saw(Kind.PING, ack=True)
    for client in clients[3:]:
        client.request("POST", "/", b"x")
    for allowed, ended in ((3, 2), (4, 3), (5, 4)):
        for request in origin.requests[:ended]:
            if not request.answered:
                request.respond(200)
        if allowed == 3:
            await origin.no_request(3, ABSENCE)
        else:
            await origin.request(allowed, within=SOON)
            await origin.no_request(allowed, ABSENCE)
    origin.requests[-1].respond(200)
    assert [(await client.response("POST")).status for client in clients] == [200] * 5


async def test_a_connection_whose_reply_is_late_gets_no_new_request(any_stage: Stage) -> None:
    """The path may be gone: what comes next goes elsewhere, what is there goes on when the reply comes."""
    origin = await any_stage.origin(ack_pings=False)
    proxy = await any_stage.proxy(origin, "--ping-interval=200ms", "--ping-timeout=4s")
    client = await any_stage.client(proxy)
    client.request("POST", "/a", b"x")
    first = await origin.request(1)
    asked = await first.conn.saw(Kind.PING, ack=False)
    await first.conn.saw_none(Kind.RST_STREAM, 1.4)  # past a quarter of the timeout
    other = await any_stage.client(proxy)
    other.request("POST", "/b", b"x")
    second = await origin.request(2)
    assert second.conn is not first.conn
    first.conn.send(ping(asked.payload, ack=True))
    for request in (first, second):
        request.respond(200, request.path)
    assert (await client.response("POST")).body == b"/a"
    assert (await other.response("POST")).body == b"/b"


async def test_enhance_your_calm_slows_the_connection_that_said_it_too(any_stage: Stage) -> None:
    """RFC 9113 section 6.8: its streams go on, with fewer PINGs ("too_many_pings" is what gRPC says)."""
    origin = await any_stage.origin()
    proxy = await any_stage.proxy(origin, "--ping-interval=200ms")
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    conn = request.conn
    await conn.saw(Kind.PING, ack=False)
    conn.send(goaway(1, Code.ENHANCE_YOUR_CALM))
    await conn.bell.until(lambda: len(conn.pings()) >= 5, "five PINGs")
    assert conn.pings()[4].at - conn.pings()[2].at > 0.6
    request.respond(200, b"ok")
    assert (await client.response("POST")).body == b"ok"


async def test_records_that_do_not_decrypt_end_the_connection_only(any_stage: Stage) -> None:
    """RFC 8446 section 5.2: bad_record_mac. Whether the request was processed is not known."""
    origin = await any_stage.origin()
    origin.tolerated = True
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    request.conn.transport.write(b"\x17\x03\x03\x00\x20" + bytes(32))
    response = await client.response("POST", within=SOON)
    assert (response.status, response.cause) == (502, "connection-lost")
    client.request("POST", "/", b"x")
    (await origin.request(2)).respond(200)
    assert (await client.response("POST")).status == 200


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_an_upstream_that_wants_a_certificate_of_ours_says_so(
    any_stage: Stage, version: ssl.TLSVersion
) -> None:
    """In TLS 1.3 the alert comes after the handshake, where SETTINGS would (RFC 8446 section 4.4.2.4)."""
    origin = await any_stage.origin()
    origin.tolerated = True
    origin.context.verify_mode = ssl.CERT_REQUIRED
    origin.context.load_verify_locations(str(any_stage.certificates.ca))
    origin.context.maximum_version = version
    proxy = await any_stage.proxy(origin)
    response = await any_stage.ask(proxy, "POST", "/", b"x")
    assert (response.status, response.cause) == (502, "tls-failed")
    assert not origin.requests


async def test_an_address_is_no_server_name(any_stage: Stage) -> None:
    """RFC 6066 section 3: no SNI for 127.0.0.1, whose certificate names the address; TLS 1.2 is enough."""
    origin = await any_stage.origin()
    origin.host = "127.0.0.1"
    origin.context.maximum_version = ssl.TLSVersion.TLSv1_2
    proxy = await any_stage.proxy(origin)
    client = await any_stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    assert request.conn.sni is None
    request.respond(200)
    assert (await client.response()).status == 200


async def test_a_host_that_no_name_can_be_is_told(any_stage: Stage) -> None:
    """RFC 1035 section 2.3.4: a label has 63 octets at most."""
    proxy = await any_stage.proxy(f"https://{'a' * 70}.example")
    response = await any_stage.ask(proxy, "POST", "/", b"x")
    assert (response.status, response.cause) == (502, "dns-failed")
