"""What passes, unchanged, and how failures of the upstream are answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.support.client import request_bytes
from tests.support.framing import Code, goaway
from tests.support.proxy import CANARY

if TYPE_CHECKING:
    from tests.contract.conftest import Launcher
    from tests.support.scripted_origin import Request


async def test_the_upstream_sees_the_request_and_nothing_of_the_proxy(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    fields = [
        ("NVCF-POLL-SECONDS", "3600"),
        ("Connection", "keep-alive"),
        ("X-Custom", "a"),
        ("X-Custom", "b"),
        ("Accept-Encoding", "gzip, deflate"),
        ("User-Agent", "Python/3.13 aiohttp/3.14.5"),
        ("Content-Type", "application/json"),
    ]
    client.request("POST", "/v1/chat/completions?x=1%2F2", b'{"model": "m"}', fields)
    request = await origin.request(1)
    assert await request.complete() == b'{"model": "m"}'
    assert dict(request.fields[:4]) == {
        b":method": b"POST",
        b":scheme": b"https",
        b":authority": origin.authority,
        b":path": b"/v1/chat/completions?x=1%2F2",
    }
    assert request.fields[4:] == [
        (b"authorization", b"Bearer " + CANARY.encode()),
        (b"nvcf-poll-seconds", b"3600"),
        (b"x-custom", b"a"),
        (b"x-custom", b"b"),
        (b"accept-encoding", b"gzip, deflate"),
        (b"user-agent", b"Python/3.13 aiohttp/3.14.5"),
        (b"content-type", b"application/json"),
        (b"content-length", b"14"),
    ]
    answer = [(b"nvcf-reqid", b"r-1"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
    request.respond(200, b"{}", answer)
    response = await client.response("POST")
    assert (response.status, response.body) == (200, b"{}")
    passed = [(name.lower(), value) for name, value in response.fields]
    assert [pair for pair in passed if pair in answer] == answer
    assert not {b"via", b"server", b"x-forwarded-for"} & {name for name, _ in passed}


@pytest.mark.parametrize("size", [0, 1, 1024, 65536, 1_000_000, 20_000_000])
async def test_bodies_of_any_size_pass_both_ways(gym: Launcher, size: int) -> None:
    """20 MB is beyond -retry-body-limit: it streams."""

    async def echo(request: Request) -> None:
        body = await request.complete()
        request.head(200, [(b"content-length", b"%d" % len(body))], end=not body)
        if body:
            await request.pour(body)

    origin = await gym.stage.origin(echo)
    proxy = await gym.start(origin)
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    client = await gym.stage.client(proxy)
    response = await client.ask("POST", "/", body)
    assert (response.status, response.complete) == (200, True)
    assert response.body == body


async def test_a_chunked_body_passes(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.send(
        request_bytes("POST", "/", None, [("Transfer-Encoding", "chunked")])
        + b"5\r\nhello\r\n7\r\n, world\r\n0\r\n\r\n"
    )
    request = await origin.request(1)
    assert await request.complete() == b"hello, world"
    assert request.get(b"transfer-encoding") is None
    request.respond(200)
    assert (await client.response("POST")).status == 200


@pytest.mark.parametrize("status", [400, 401, 404, 408, 429, 500, 502, 503])
async def test_error_statuses_of_the_upstream_pass(gym: Launcher, status: int) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    await request.complete()
    request.respond(status, b"its own words", [(b"retry-after", b"7")])
    response = await client.response("POST")
    assert (response.status, response.body) == (status, b"its own words")
    assert response.get(b"retry-after") == b"7"
    assert response.cause is None
    assert len(origin.requests) == 1


async def test_requests_at_the_same_time_share_a_connection(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    clients = [await gym.stage.client(proxy) for _ in range(40)]
    for client in clients:
        client.request("POST", "/", b"x")
    await origin.request(40)
    assert len({request.conn for request in origin.requests}) <= 3
    for request in origin.requests:
        request.respond(200)
    responses = await asyncio.gather(*(client.response("POST") for client in clients))
    assert [response.status for response in responses] == [200] * 40


async def test_a_client_that_leaves_resets_its_stream(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"x")
    request = await origin.request(1)
    client.close()
    assert await request.was_reset() == Code.CANCEL
    other = await gym.stage.client(proxy)
    other.request("GET", "/")
    following = await origin.request(2)
    assert following.conn is request.conn
    following.respond(200)
    assert (await other.response()).status == 200


async def test_a_reset_stream_is_a_502_in_plain_text(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("POST", "/v1/chat/completions", b"x")
    (await origin.request(1)).reset(Code.INTERNAL_ERROR)
    response = await client.response("POST")
    assert response.status == 502
    assert response.body.startswith(f"{gym.program}: upstream error:".encode())
    await proxy.logged("upstream error: POST /v1/chat/completions: ")
    client.request("GET", "/")
    (await origin.request(2)).respond(200)
    assert (await client.response()).status == 200


async def test_a_problem_is_told_as_json_to_who_asks_for_it(gym: Launcher) -> None:
    """RFC 9457."""
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"x", [("Accept", "application/problem+json")])
    (await origin.request(1)).reset(Code.INTERNAL_ERROR)
    response = await client.response("POST")
    assert response.status == 502
    assert response.get(b"content-type") == b"application/problem+json"
    assert b'"stream-reset"' in response.body


async def test_a_request_refused_by_goaway_is_sent_again(gym: Launcher) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin)
    client = await gym.stage.client(proxy)
    client.request("POST", "/", b"again")
    refused = await origin.request(1)
    await refused.complete()
    refused.conn.fin(goaway(0))
    again = await origin.request(2)
    assert await again.complete() == b"again"
    again.respond(200)
    assert (await client.response("POST")).status == 200


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/a/b"])
async def test_a_path_in_the_upstream_is_put_before_each_request(gym: Launcher, path: str) -> None:
    origin = await gym.stage.origin()
    proxy = await gym.start(origin.url + path)
    client = await gym.stage.client(proxy)
    client.request("GET", "/models?x=1")
    request = await origin.request(1)
    assert request.path == path.rstrip("/").encode() + b"/models?x=1"
    request.respond(200)
    assert (await client.response()).status == 200


async def test_verification_can_be_turned_off(gym: Launcher) -> None:
    origin = await gym.stage.origin(cert=gym.stage.certificates.unknown)
    strict = await gym.start(origin)
    response = await gym.stage.ask(strict, "POST", "/", b"x")
    assert response.status == {"h2ping": 421, "h2-ping-sidecar": 502}[gym.program]
    assert not origin.requests
    loose = await gym.start(origin, "-insecure-skip-verify")
    client = await gym.stage.client(loose)
    client.request("GET", "/")
    (await origin.request(1)).respond(200)
    assert (await client.response()).status == 200
