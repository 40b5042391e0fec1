"""Mutations: a seed of the corpus, cut, doubled, joined with another, its bytes and numbers changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

LARGEST_BYTES = 4096
TELLING = (0, 1, 4, 7, 8, 9, 10, 13, 32, 58, 127, 128, 254, 255)
"""Bytes that are an edge of something: lengths, flags, CR, LF, colon, high bits."""


def mutate(seeds: list[bytes], chance: random.Random) -> bytes:
    """One new input."""
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 3, 8))):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0 and at < len(data):
            data[at] = chance.choice(TELLING)
        elif kind == 1 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del data[at : at + chance.choice((1, 1, 4, 9, 40))]
        elif kind == 3:
            data[at:at] = bytes(chance.choice(TELLING) for _ in range(chance.choice((1, 2, 9))))
        elif kind == 4:
            other = chance.choice(seeds)
            start = chance.randrange(len(other) + 1)
            data[at:at] = other[start : start + chance.choice((4, 9, 30, 200))]
        else:
            start = chance.randrange(len(data) + 1)
            data[at:at] = data[start : start + chance.choice((1, 9, 60))]
    return bytes(data[:LARGEST_BYTES])
