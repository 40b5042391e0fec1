"""What an OpenAI-like endpoint answers: pure functions from a request to bytes."""

from __future__ import annotations

import functools
import json
import re

VERDICT = "My final verdict is: [[A>B]]"

_STREAM = re.compile(rb'"stream"\s*:\s*true')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{0,200})"')


def wants_events(body: bytes) -> bool:
    """Whether a request body asks for server-sent events. A look, no parse: bodies are seen in part only."""
    return _STREAM.search(body) is not None


def model_of(body: bytes) -> str:
    """The model that a request body names."""
    found = _MODEL.search(body)
    return found.group(1).decode("utf-8", "replace") if found else "lab"


def models() -> bytes:
    """The answer of `/v1/models`."""
    model = {"id": "lab", "object": "model", "created": 0, "owned_by": "h2ping"}
    return _dump({"object": "list", "data": [model]})


def chat(number: int, model: str) -> bytes:
    """The answer of `/v1/chat/completions`."""
    return _dump(
        {
            "id": f"chatcmpl-lab-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": model,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": VERDICT},
                    "finish_reason": "stop",
                    "logprobs": None,
                }
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9},
        }
    )


def chat_events(number: int, model: str, count: int) -> list[bytes]:
    """`count` chunks of a streamed chat completion and the closing `[DONE]`."""
    parts: list[bytes] = []
    for index in range(count):
        last = index == count - 1
        delta: dict[str, str] = {} if last else {"content": f"{index} "}
        if index == 0:
            delta = {"role": "assistant", **delta}
        chunk = {
            "id": f"chatcmpl-lab-{number}",
            "object": "chat.completion.chunk",
            "created": 0,
            "model": model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": "stop" if last else None}],
        }
        parts.append(b"data: " + _dump(chunk) + b"\n\n")
    parts.append(b"data: [DONE]\n\n")
    return parts


def response(number: int, model: str, text: str = VERDICT, status: str = "completed") -> dict[str, object]:
    """The object that `/v1/responses` answers with."""
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": f"msg-lab-{number}",
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [content],
    }
    return {
        "id": f"resp-lab-{number}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [message] if text else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 8,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 9,
        },
    }


def response_events(number: int, model: str, count: int) -> list[bytes]:
    """The events of a streamed response, in the order that the openai client insists on."""
    text = "".join(f"{index} " for index in range(count))
    place: dict[str, object] = {"item_id": f"msg-lab-{number}", "output_index": 0, "content_index": 0}
    begun: dict[str, object] = {"type": "output_text", "text": "", "annotations": []}
    whole: dict[str, object] = {**begun, "text": text}
    item: dict[str, object] = {"id": f"msg-lab-{number}", "type": "message", "role": "assistant"}
    opened: dict[str, object] = {**item, "status": "in_progress", "content": []}
    closed: dict[str, object] = {**item, "status": "completed", "content": [whole]}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": response(number, model, "", "in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": opened},
        {"type": "response.content_part.added", **place, "part": begun},
    ]
    events += [
        {"type": "response.output_text.delta", **place, "delta": f"{index} ", "logprobs": []}
        for index in range(count)
    ]
    events += [
        {"type": "response.output_text.done", **place, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **place, "part": whole},
        {"type": "response.output_item.done", "output_index": 0, "item": closed},
        {"type": "response.completed", "response": response(number, model, text)},
    ]
    return [
        b"event: %b\ndata: %b\n\n" % (str(event["type"]).encode(), _dump({**event, "sequence_number": index}))
        for index, event in enumerate(events)
    ]


def responses(number: int, model: str) -> bytes:
    """The answer of `/v1/responses`."""
    return _dump(response(number, model))


def echo(method: str, path: str, length: int, digest: str | None) -> bytes:
    """The answer of `/echo`: what arrived."""
    return _dump({"method": method, "path": path, "length": length, "sha256": digest})


def problem(text: str) -> bytes:
    """The body of an answer that is not 200."""
    return _dump({"error": {"message": text, "type": "lab", "code": None}})


@functools.lru_cache(maxsize=8)
def filler(size: int) -> bytes:
    """`size` bytes that are the same every time and differ within any 64 KiB."""
    block = b"".join(index.to_bytes(4, "big") for index in range(16_411))
    return (block * (size // len(block) + 1))[:size]


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
