"""What the tests with real Gyms rely on: nothing that they start is left on the machine."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gym.conftest import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAEMON = """
import os, signal, sys
ready, told = os.pipe()
if not os.fork():
    if os.fork():
        os._exit(0)
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("daemon", flush=True)
    os.write(told, b"!")
    signal.pause()
os.wait()
os.read(ready, 1)
"""
"""A command whose child's child has a session of its own, another parent and no ear for SIGTERM, as Ray's have."""

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl(2)")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Run]]:
    runs: list[Run] = []

    def start(then: str) -> Run:
        run = Run([sys.executable, "-c", DAEMON + then], tmp_path, {}, reaped=True)
        runs.append(run)
        run.wait_for("daemon")
        return run

    yield start
    for run in runs:
        run.close()


def test_what_a_command_leaves_behind_ends_with_it(start: Callable[[str], Run]) -> None:
    """`end` reads the output to its end, which comes only when nobody holds it any more."""
    assert start("sys.exit(7)").end() == 7


def test_a_signal_reaches_the_command_and_its_end_is_told(start: Callable[[str], Run]) -> None:
    assert start("signal.pause()").end(signal.SIGTERM) == 128 + signal.SIGTERM


def test_everything_ends_when_the_test_lets_go(start: Callable[[str], Run]) -> None:
    """As when pytest itself is killed: its end of the pipe is gone."""
    dropped = start("signal.pause()")
    assert dropped.process.stdin is not None
    dropped.process.stdin.close()
    dropped.end()
