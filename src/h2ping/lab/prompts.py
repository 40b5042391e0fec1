"""Bodies like those of judge calls: JSON with a long conversation, for what depends on how well bodies compress.

Words of a made-up vocabulary, short ones frequent as in a language (Zipf), in sentences of which a share was said
before, as conversations quote themselves and tools print the same lines. By zstd level 1, 512 KiB become 3.1 times
smaller at a share of 0.5, which is English prose in JSON, and 4.4 times at 0.7, which is source code and the output
of tools. A body of one repeated byte would flatter every compression.
"""

from __future__ import annotations

import itertools
import json
import random

VOCABULARY = 4000
_SYLLABLES = [
    first + last for first in "bdfgklmnprstvw" for last in ("a", "e", "i", "o", "u", "an", "er", "is")
]


def prompts(size: int, count: int, quoted: float, seed: int = 1) -> list[bytes]:
    """So many different bodies of exactly `size` bytes; the same ones each time. `quoted`: the share of repeats."""
    chance = random.Random(seed)
    words = _vocabulary(chance)
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    return [_prompt(size, quoted, chance, words, weights) for _ in range(count)]


def _vocabulary(chance: random.Random) -> list[str]:
    words: set[str] = set()
    while len(words) < VOCABULARY:
        words.add("".join(chance.choices(_SYLLABLES, k=chance.choice((1, 2, 2, 3, 3, 4)))))
    return sorted(words, key=lambda word: (len(word), word))


def _prompt(size: int, quoted: float, chance: random.Random, words: list[str], weights: list[float]) -> bytes:
    said: list[str] = []
    messages: list[dict[str, str]] = []
    length = 0
    while length < size:
        turn = []
        for _ in range(chance.randint(3, 30)):
            if said and chance.random() < quoted:
                turn.append(chance.choice(said))
            else:
                sentence = chance.choices(words, cum_weights=weights, k=chance.randint(6, 24))
                turn.append(" ".join(sentence).capitalize() + ".")
        said += turn
        content = " ".join(turn)
        messages.append({"role": "user" if len(messages) % 2 == 0 else "assistant", "content": content})
        length += len(content) + 30
    text = json.dumps({"model": "judge", "temperature": 0.0, "messages": messages})
    # Cut inside the last message's text, so that the body stays JSON of exactly that size.
    end = '"}]}'
    return (text[: size - len(end)].rstrip("\\") + end).ljust(size).encode("ascii")
