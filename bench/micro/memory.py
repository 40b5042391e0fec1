"""Memory of one of many: what the operating system holds more once they are there."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import pytest

from bench.account import memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable


def resident_bytes_each(make: Callable[[int], object], count: int) -> float:
    """Resident bytes for each of `count` things that `make` makes from their numbers, beyond the first few."""
    if not os.path.exists("/proc/self/smaps_rollup"):
        pytest.skip("needs /proc/self/smaps_rollup")
    kept = [make(number) for number in range(100)]
    gc.collect()
    before = memory_bytes(os.getpid())["rss"]
    kept += [make(number) for number in range(100, 100 + count)]
    each = (memory_bytes(os.getpid())["rss"] - before) / count
    print(f"{each:,.0f} bytes each")
    return each
