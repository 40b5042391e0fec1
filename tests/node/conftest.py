"""Processes whose output can be awaited, as in the launcher's tests."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gym.conftest import Run, free_port, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["free_port", "h2ping", "until"]


@pytest.fixture
def h2ping(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """`h2ping WORDS` in a folder of its own."""
    runs: list[Run] = []

    def start(*words: str, **environment: str) -> Run:
        run = Run([sys.executable, "-m", "h2ping", *words], tmp_path, {**os.environ, **environment})
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()
