"""An OpenAI-like application (ASGI): the same behaviour as node_origin.js and go_origin.

POST /v1/chat/completions  a completion whose text is the SHA-256 of the request body, or with
                           `"stream": true` five events, each sent by itself, and `[DONE]`
POST /upload               the SHA-256 and the size of the body, as JSON
POST /echo                 the body
GET  /v1/models            a list
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Message = dict[str, Any]

EVENTS = 5


def completion(text: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "judge",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def chunk(text: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "judge",
        "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}],
    }


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    """The ASGI callable."""
    if scope["type"] != "http":
        return

    async def start(status: int, kind: bytes) -> None:
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]}
        )  # fmt: skip

    async def write(body: bytes, *, more: bool) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": more})

    digest, size, kept = hashlib.sha256(), 0, bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        piece = message.get("body", b"")
        digest.update(piece)
        size += len(piece)
        kept += piece
        more = message.get("more_body", False)
    path = scope["path"]
    if path == "/v1/models":
        await start(200, b"application/json")
        await write(json.dumps({"object": "list", "data": [{"id": "judge"}]}).encode(), more=False)
    elif path == "/upload":
        await start(200, b"application/json")
        await write(json.dumps({"sha256": digest.hexdigest(), "size": size}).encode(), more=False)
    elif path == "/echo":
        await start(200, b"application/octet-stream")
        await write(bytes(kept), more=False)
    elif path == "/v1/chat/completions":
        if json.loads(kept).get("stream"):
            await start(200, b"text/event-stream")
            for number in range(EVENTS):
                await write(b"data: " + json.dumps(chunk(f"{number} ")).encode() + b"\n\n", more=True)
            await write(b"data: [DONE]\n\n", more=False)
        else:
            await start(200, b"application/json")
            await write(json.dumps(completion(digest.hexdigest())).encode(), more=False)
    else:
        await start(404, b"text/plain")
        await write(b"no such path", more=False)
