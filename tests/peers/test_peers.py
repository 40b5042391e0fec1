"""Real clients through h2ping to real servers: completions, events, 40 MB uploads, equal hashes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
from typing import TYPE_CHECKING

import aiohttp
import httpx
import openai
import requests

from tests.peers.openai_app import EVENTS
from tests.peers.servers import LARGE, program
from tests.support.proxy import CANARY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.peers.servers import Peer
    from tests.support.proxy import Proxy
    from tests.support.stage import Stage

TEXT = "".join(f"{number} " for number in range(EVENTS))
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()


def base(proxy: Proxy) -> str:
    return f"http://127.0.0.1:{proxy.port}"


async def test_the_openai_client_gets_completions_streams_and_large_uploads(stage: Stage, peer: Peer) -> None:
    proxy = await stage.proxy(peer.url)
    async with openai.AsyncOpenAI(base_url=base(proxy) + "/v1", api_key=CANARY, max_retries=0) as client:
        for text in ("How good is this?", "x" * len(LARGE)):
            raw = await client.chat.completions.with_raw_response.create(
                model="judge", messages=[{"role": "user", "content": text}]
            )
            sent = hashlib.sha256(raw.http_request.content).hexdigest()
            assert raw.parse().choices[0].message.content == sent

        stream = await client.chat.completions.create(
            model="judge", messages=[{"role": "user", "content": "And this?"}], stream=True
        )
        assert "".join([part.choices[0].delta.content or "" async for part in stream]) == TEXT

        models = await client.models.list()
        assert [model.id for model in models.data] == ["judge"]


async def test_the_aiohttp_client_gets_completions_streams_and_large_uploads(
    stage: Stage, peer: Peer
) -> None:
    proxy = await stage.proxy(peer.url)
    auth = {"authorization": f"Bearer {CANARY}"}
    async with aiohttp.ClientSession(base(proxy), headers=auth) as session:
        body = json.dumps({"model": "judge", "messages": []}).encode()
        async with session.post("/v1/chat/completions", data=body) as answer:
            text = (await answer.json())["choices"][0]["message"]["content"]
            assert text == hashlib.sha256(body).hexdigest()

        async with session.post("/v1/chat/completions", json={"model": "judge", "stream": True}) as answer:
            assert answer.content_type == "text/event-stream"
            events = [line async for line in answer.content if line.startswith(b"data: ")]
        assert events[-1] == b"data: [DONE]\n"
        assert len(events) == EVENTS + 1

        async with session.post("/upload", data=io.BytesIO(LARGE)) as answer:
            assert await answer.json() == {"sha256": LARGE_SHA256, "size": len(LARGE)}

        async with session.post("/upload", data=_pieces(LARGE)) as answer:
            assert await answer.json() == {"sha256": LARGE_SHA256, "size": len(LARGE)}

        async with session.post("/echo", data=io.BytesIO(LARGE)) as answer:
            assert hashlib.sha256(await answer.read()).hexdigest() == LARGE_SHA256


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A chunked upload."""
    for start in range(0, len(body), 1 << 18):
        yield body[start : start + (1 << 18)]


async def test_httpx_requests_and_curl_pass_too(any_stage: Stage, peer: Peer, tmp_path: Path) -> None:
    proxy = await any_stage.proxy(peer.url)
    url, body = base(proxy), LARGE[:3_000_000]
    digest = hashlib.sha256(body).hexdigest()
    async with httpx.AsyncClient(trust_env=False, timeout=60) as web:
        assert (await web.post(f"{url}/upload", content=body)).json()["sha256"] == digest
        assert (await web.post(f"{url}/echo", content=body)).content == body

    def ask() -> bytes:
        with requests.Session() as session:
            session.trust_env = False
            assert session.post(f"{url}/upload", data=body, timeout=60).json()["sha256"] == digest
            return session.post(f"{url}/echo", data=body, timeout=60).content

    assert await asyncio.get_running_loop().run_in_executor(None, ask) == body

    file = tmp_path / "body"
    file.write_bytes(body)
    out = await _curl("--data-binary", f"@{file}", f"{url}/upload")
    assert json.loads(out)["sha256"] == digest


async def _curl(*arguments: str) -> bytes:
    """curl sends `Expect: 100-continue` with a body of that size by itself."""
    process = await asyncio.create_subprocess_exec(
        program("curl"), "--silent", "--show-error", "--fail", "--noproxy", "*", *arguments,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return out


async def test_nghttpd_serves_a_large_file_and_echoes_an_upload(stage: Stage, nghttpd: Peer) -> None:
    proxy = await stage.proxy(nghttpd.url)
    async with aiohttp.ClientSession(base(proxy)) as session:
        async with session.get("/large") as answer:
            assert answer.status == 200
            assert hashlib.sha256(await answer.read()).hexdigest() == LARGE_SHA256
        async with session.head("/large") as answer:
            assert answer.headers["content-length"] == str(len(LARGE))
        async with session.post("/large", data=io.BytesIO(LARGE)) as answer:
            assert hashlib.sha256(await answer.read()).hexdigest() == LARGE_SHA256
        async with session.get("/none") as answer:
            assert answer.status == 404


async def test_many_calls_at_once_reach_each_peer(any_stage: Stage, peer: Peer) -> None:
    """200 at once, beyond what one connection is filled with; none fails."""
    proxy = await any_stage.proxy(peer.url)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base(proxy), connector=connector) as session:

        async def call(number: int) -> bool:
            body = b"%d" % number * 500
            async with session.post("/upload", data=body) as answer:
                return bool((await answer.json())["sha256"] == hashlib.sha256(body).hexdigest())

        assert await asyncio.gather(*(call(number) for number in range(200))) == [True] * 200
