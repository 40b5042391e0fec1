"""Every target over its corpus, then over mutations of it for some seconds (`H2PING_FUZZ_SECONDS`, all together).

An input that fails is left in build/fuzz/ and shown; put it into tests/fuzz/corpus/ with the fix.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.fuzz.mutate import mutate
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
FINDINGS = Path("build") / "fuzz"
SECONDS = float(os.environ.get("H2PING_FUZZ_SECONDS", "10"))
KEPT = 2000


def seeds_of(name: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert found
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_clean(name: str) -> None:
    for seed in seeds_of(name):
        TARGETS[name](seed)


@pytest.mark.timeout(0)
@pytest.mark.flaky(reruns=0)
@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_the_corpus_are_clean(name: str) -> None:
    number = int(os.environ.get("H2PING_FUZZ_SEED", "0")) or random.randrange(1 << 30)
    chance = random.Random(number)
    seeds = seeds_of(name)
    end = time.monotonic() + SECONDS / len(TARGETS)
    runs = 0
    while time.monotonic() < end:
        data = mutate(seeds, chance)
        runs += 1
        try:
            TARGETS[name](data)
        except BaseException:
            FINDINGS.mkdir(parents=True, exist_ok=True)
            (FINDINGS / f"{name}-{number}-{runs}").write_bytes(data)
            print(f"H2PING_FUZZ_SEED={number}, input {runs}: {data!r}")
            raise
        if runs % 20 == 0 and len(seeds) < KEPT:
            seeds.append(data)  # so that mutations of mutations come too
    print(f"{name}: {runs} inputs from seed {number}")
