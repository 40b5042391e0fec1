"""The fixed script: pieces of the engine, each a step to repeat; `python -m bench.callgrind` runs it.

`python bench/callgrind/pieces.py NAME ROUNDS` makes the piece, then takes its step ROUNDS times. Inputs are
constants, and nothing here may depend on time, on addresses, or on the order of a set.
"""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST = [
    (b":method", b"POST"),
    (b":scheme", b"https"),
    (b":authority", b"integrate.api.nvidia.com"),
    (b":path", b"/v1/chat/completions"),
    (b"accept", b"application/json"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"authorization", b"Bearer nvapi-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"),
    (b"content-length", b"34123"),
    (b"content-type", b"application/json"),
    (b"user-agent", b"AsyncOpenAI/Python 1.60.0"),
    (b"x-request-id", b"5b2ef2c0-6c1e-4a3f-8d9e-0123456789ab"),
    (b"x-stainless-lang", b"python"),
]
RESPONSE = [
    (b":status", b"200"),
    (b"content-type", b"application/json"),
    (b"content-length", b"34123"),
    (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
    (b"nvcf-reqid", b"5b2ef2c0-6c1e-4a3f-8d9e-0123456789ab"),
    (b"nvcf-status", b"fulfilled"),
    (b"access-control-expose-headers", b"nvcf-reqid"),
    (b"vary", b"Origin"),
]
CLASSES = {b"authorization": 2, b"content-length": 1, b"x-request-id": 1, b"date": 1, b"nvcf-reqid": 1}


def classify(name: bytes) -> int:
    return CLASSES.get(name, 0)


def fast(module: str) -> Any:
    return importlib.import_module(f"h2ping._fast.{module}")


def hpack_encode_request() -> Callable[[], object]:
    encode = fast("hpack").Encoder(classify).encode_block
    return lambda: encode(REQUEST)


def hpack_decode_request() -> Callable[[], object]:
    return decoding(REQUEST)


def hpack_decode_response() -> Callable[[], object]:
    return decoding(RESPONSE)


def decoding(fields: list[tuple[bytes, bytes]]) -> Callable[[], object]:
    encoder = fast("hpack").Encoder(classify)
    decode = fast("hpack").Decoder(65536, 1000).decode_block
    decode(encoder.encode_block(fields))
    block = encoder.encode_block(fields)
    return lambda: decode(block)


def arena_body(size: int) -> Callable[[], object]:
    arena = fast("arena").Arena(1 << 24)
    octets = b"x" * size

    def step() -> None:
        body = arena.open(size, True)
        body.append(octets)
        body.finish()
        body.sent_to(size)
        body.release()

    return step


def arena_body_1kb() -> Callable[[], object]:
    return arena_body(1024)


def arena_body_64kb() -> Callable[[], object]:
    return arena_body(65536)


PIECES = [hpack_encode_request, hpack_decode_request, hpack_decode_response, arena_body_1kb, arena_body_64kb]


def main(name: str, rounds: int) -> None:
    (piece,) = (piece for piece in PIECES if piece.__name__ == name)
    step = piece()
    gc.disable()
    for _ in range(rounds):
        step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
