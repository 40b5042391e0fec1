"""Memory of one of many: what the operating system holds more once they are there."""

from __future__ import annotations

import gc
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import pytest

from bench.account import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


def resident_bytes_each(prepare: Callable[..., Callable[[], object]], count: int, *given: object) -> float:
    """Resident bytes for each of `count` things that `prepare(*given)()` makes, beyond the first hundred.

    In a process of its own: in this one they would take what the tests before have left free.
    """
    if not os.path.exists("/proc/self/smaps_rollup"):
        pytest.skip("needs /proc/self/smaps_rollup")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        each = pool.submit(_measure, prepare, count, given).result()
    print(f"{each:,.0f} bytes each")
    return each


def _measure(prepare: Callable[..., Callable[[], object]], count: int, given: tuple[object, ...]) -> float:
    make = prepare(*given)
    kept = [make() for _ in range(100)]
    gc.collect()
    before = memory_bytes(os.getpid())["rss"]
    kept += [make() for _ in range(count)]
    return (memory_bytes(os.getpid())["rss"] - before) / count
