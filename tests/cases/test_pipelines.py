"""Requests that share a connection: written ahead, followed by garbage, by a half close, by the end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.cases.timing import ABSENCE, SOON
from tests.support.client import request_bytes, with_key
from tests.support.framing import Code

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

GET = with_key(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n")


async def _echo_path(request: Request) -> None:
    await request.complete()
    request.respond(200, request.path)


BEHIND: dict[str, tuple[bytes, list[bytes]]] = {
    "two more": (GET % 2 + GET % 3, [b"/2", b"/3"]),
    "a body": (b"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\ntwo", [b"/2"]),
    "a chunked body": (
        b"POST /2 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n" + GET % 3,
        [b"/2", b"/3"],
    ),
    "a blank line": (b"\r\n", []),
    "half a head": (GET % 2 + b"GET /3 HTT", [b"/2"]),
    "half a body": (GET % 2 + b"POST /3 HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", [b"/2"]),
    "half a chunk": (
        GET % 2 + b"POST /3 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", [b"/2"],
    ),
    "a request that says close": (b"GET /2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" + GET % 3, [b"/2"]),
}  # fmt: skip


async def test_what_came_before_a_half_close_is_answered_and_then_the_connection_ends(stage: Stage) -> None:
    """RFC 9112 sections 9.3.2 and 9.6, with `-half-close=wait`: all whole requests, in order, and nothing else."""
    origin = await stage.origin(_echo_path)
    proxy = await stage.proxy(origin, "--half-close=wait")
    wrong: list[tuple[object, ...]] = []
    for name, (raw, answers) in BEHIND.items():
        client = await stage.client(proxy)
        client.send(GET % 1 + raw)
        client.half_close()
        for number, path in enumerate([b"/1", *answers]):
            response = await client.response(within=SOON)
            if (response.body, response.complete) != (path, True):
                wrong.append((name, number, response.status, response.body))
            if response.closes and number < len(answers):
                wrong.append((name, number, "said close too early"))
        if rest := await client.closed(within=SOON):
            wrong.append((name, "rest", rest))
    assert not wrong
    assert not [
        request for request in origin.requests if request.path == b"/3" and request.body and request.ended
    ]


async def test_a_half_close_cancels_what_is_behind_it_by_default(stage: Stage) -> None:
    """*Policy* (RFC 9112 section 9.6): a half-closed client is gone, with all that it asked for."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(GET % 1 + GET % 2)
    request = await origin.request(1)
    client.half_close()
    assert await request.was_reset(within=SOON) == Code.CANCEL
    assert await client.closed() == b""
    await origin.no_request(1, ABSENCE)


async def test_hundreds_of_requests_written_ahead_are_answered_in_order(stage: Stage) -> None:
    """RFC 9112 section 9.3.2: more than is held at a time; the rest waits in the socket."""
    origin = await stage.origin(_echo_path)
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(b"".join(GET % number + b"\r\n" * (number % 3) for number in range(3000)))
    for number in range(3000):
        assert (await client.response()).body == b"/%d" % number


AFTER: dict[str, tuple[bytes, int]] = {
    "garbage": (b"garbage\r\n\r\n", 400),
    "more than the length": (b"XX", 0),
    "a bare LF": (b"\n" + GET % 2, 400),
    "a second head of garbage": (b"GET /2 HTTP/1.1\r\nHost: x\r\nX : 1\r\n\r\n", 400),
    "another protocol": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "a version that is none": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
}


async def test_what_follows_a_request_and_is_none_is_refused_after_its_answer(stage: Stage) -> None:
    """RFC 9112 section 2.2: the good request keeps its answer, whatever stands behind it."""
    origin = await stage.origin(_echo_path)
    proxy = await stage.proxy(origin)
    wrong: list[tuple[object, ...]] = []
    for name, (raw, status) in AFTER.items():
        client = await stage.client(proxy)
        client.send(with_key(b"POST /1 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi") + raw)
        first = await client.response("POST", within=SOON)
        if (first.status, first.body) != (200, b"/1"):
            wrong.append((name, first.status))
        if status:
            second = await client.response(within=SOON)
            if second.status != status or not second.closes or await client.closed(within=SOON):
                wrong.append((name, second.status))
    assert not wrong


async def test_a_client_that_leaves_takes_its_waiting_requests_with_it(stage: Stage) -> None:
    """RFC 9112 section 9.3.2: nothing is executed for nobody."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(GET % 1 + GET % 2)
    request = await origin.request(1)
    client.rst()
    assert await request.was_reset(within=SOON) == Code.CANCEL
    await origin.no_request(1, ABSENCE)


@pytest.mark.parametrize("rest", [200_000, 2_000_000])
async def test_a_request_behind_an_unwanted_body_is_answered_or_refused_with_notice(
    stage: Stage, rest: int
) -> None:
    """RFC 9112 section 9.6: the rest of a body is read to its end, or the answer before said `close`."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(request_bytes("POST", "/1", None, [("Content-Length", str(rest))]))
    (await origin.request(1)).respond(401, b"no")
    response = await client.response("POST", within=SOON)
    assert (response.status, response.body, response.complete) == (401, b"no", True)
    client.send(bytes(rest) + GET % 2)
    if not response.closes:
        (await origin.request(2)).respond(200, b"two")
        assert (await client.response()).body == b"two"
    else:
        assert await client.closed() == b""
        await origin.no_request(1, ABSENCE)


async def test_requests_of_a_drained_connection_end_with_the_one_in_flight(stage: Stage) -> None:
    """RFC 9112 section 9.6: after `Connection: close` nothing more is taken."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.send(GET % 1 + GET % 2)
    request = await origin.request(1)
    stopped = asyncio.ensure_future(proxy.stop())
    await proxy.logged("shutdown requested")
    request.respond(200, b"one")
    response = await client.response()
    assert (response.body, response.closes) == (b"one", True)
    assert await client.closed() == b""
    assert await stopped == 0
    assert len(origin.requests) == 1
