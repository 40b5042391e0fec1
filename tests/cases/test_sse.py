"""Streams of events: each leaves as it came, and one that breaks looks broken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import httpx
import pytest

from tests.cases.timing import SOON
from tests.support.framing import Code

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request
    from tests.support.stage import Stage

KINDS = [b"text/event-stream;charset=utf-8", b"application/json", None]
FIRST, SECOND = b"data: 1\n\n", b"data: 2\n\n"


async def test_each_event_leaves_at_once_whatever_its_content_type(stage: Stage) -> None:
    """Case flush-each-event-any-content-type: the second is not sent before the first was read."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    for number, kind in enumerate(KINDS, 1):
        client.request("GET", f"/{number}")
        request = await origin.request(number)
        request.head(200, [] if kind is None else [(b"content-type", kind)])
        request.data(FIRST)
        response = await client.head(within=SOON)
        assert response.get(b"content-type") == kind
        assert await client.chunk(within=SOON) == FIRST
        request.data(SECOND)
        assert await client.chunk(within=SOON) == SECOND
        request.data(b"", end=True)
        await client.finish(response)
        assert (response.complete, response.body) == (True, b"")


def _break(request: Request, how: str) -> None:
    if how == "RST_STREAM":
        request.reset(Code.INTERNAL_ERROR)
    elif how == "FIN":
        request.conn.fin(close_notify=False)
    else:
        request.conn.rst()


@pytest.mark.parametrize("how", ["RST_STREAM", "FIN", "RST"])
async def test_a_broken_event_stream_ends_without_the_last_chunk(stage: Stage, how: str) -> None:
    """Case mid-stream-reset-visible (RFC 9112 section 8)."""
    origin = await stage.origin()
    proxy = await stage.proxy(origin)
    client = await stage.client(proxy)
    client.request("GET", "/")
    request = await origin.request(1)
    request.head(200, [(b"content-type", b"text/event-stream")])
    request.data(FIRST)
    request.data(SECOND)
    assert (await client.head()).status == 200
    got = b""
    while len(got) < len(FIRST + SECOND):
        got += await client.chunk()
    assert got == FIRST + SECOND
    _break(request, how)
    assert await client.closed(within=SOON) == b""


async def test_client_libraries_notice_a_broken_event_stream(any_stage: Stage) -> None:
    """Case mid-stream-reset-visible, as aiohttp and httpx tell it."""

    async def half(request: Request) -> None:
        request.head(200, [(b"content-type", b"text/event-stream")])
        request.data(FIRST)
        request.data(SECOND)
        await taken.wait()
        request.reset(Code.INTERNAL_ERROR)

    taken = asyncio.Event()
    origin = await any_stage.origin(half)
    proxy = await any_stage.proxy(origin)
    url = f"http://127.0.0.1:{proxy.port}/"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        assert await answer.content.readexactly(len(FIRST + SECOND)) == FIRST + SECOND
        taken.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.read()
    taken.clear()
    async with httpx.AsyncClient(trust_env=False) as web, web.stream("GET", url) as stream:
        raw, parts = stream.aiter_raw(), b""
        while parts != FIRST + SECOND:
            parts += await anext(raw)
        taken.set()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(raw)
