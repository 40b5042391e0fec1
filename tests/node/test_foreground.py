"""A command run on the user's behalf: its signals, its exit code, its end."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from tests.gym.conftest import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARENT = """
import signal, sys
from h2ping import foreground
translate = {signal.SIGTERM: signal.SIGINT} if sys.argv[1] == "translated" else {}
looks = iter(["", "a proxy died"]) if sys.argv[1] == "stopped" else iter(lambda: "", None)
sys.exit(foreground.run([sys.executable, "-c", sys.argv[2]], look=lambda: next(looks, ""),
translate=translate))
"""
CHILD = """
import os, signal, sys
caught = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: caught.append(number))
print("pid", os.getpid(), flush=True)
while not caught:
    signal.pause()
print("got", signal.Signals(caught[0]).name, len(caught), flush=True)
sys.exit(7)
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(how: str = "plain", child: str = CHILD, before: tuple[str, ...] = ()) -> Run:
        run = Run([*before, sys.executable, "-c", PARENT, how, child], tmp_path, dict(os.environ))
        runs.append(run)
        return run

    yield start
    for run in runs:
        run.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_is_passed_on_once_and_the_exit_code_taken_over(
    parent: Callable[..., Run], number: signal.Signals
) -> None:
    run = parent()
    run.wait_for("pid")
    assert run.end(number) == 7
    assert run.lines[-1] == f"got {number.name} 1"


def test_ctrl_c_for_the_whole_group_reaches_the_command_once(parent: Callable[..., Run]) -> None:
    run = parent()
    run.wait_for("pid")
    assert run.end(signal.SIGINT, group=True) == 7
    assert run.lines[-1] == "got SIGINT 1"


def test_a_signal_is_translated(parent: Callable[..., Run]) -> None:
    run = parent("translated")
    run.wait_for("pid")
    assert run.end(signal.SIGTERM) == 7
    assert run.lines[-1] == "got SIGINT 1"


def test_a_command_of_a_background_job_can_be_interrupted(parent: Callable[..., Run]) -> None:
    """A non-interactive shell starts background jobs with SIGINT ignored (POSIX, asynchronous lists)."""
    run = parent("translated", before=("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"))
    run.wait_for("pid")
    assert run.end(signal.SIGTERM) == 7


def test_a_reason_to_stop_ends_the_command_and_is_told(parent: Callable[..., Run]) -> None:
    run = parent("stopped")
    run.wait_for("pid")
    assert run.end() == 1
    assert "a proxy died" in run.text
    assert run.lines[-1] == "got SIGTERM 1"


def test_death_by_a_signal_is_128_and_its_number(parent: Callable[..., Run]) -> None:
    assert parent(child="import os, signal; os.kill(os.getpid(), signal.SIGKILL)").end() == 137


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent ended"
)
def test_the_command_ends_when_we_are_killed(parent: Callable[..., Run]) -> None:
    run = parent()
    run.wait_for("pid")
    run.end(signal.SIGKILL)
    assert run.lines[-1] == "got SIGTERM 1"


def test_a_command_that_is_not_there_is_127(h2ping: Callable[..., Run], tmp_path: Path) -> None:
    run = h2ping(
        "node", "--upstream", "https://localhost:1", "--listen", "127.0.0.1:0", "--run", "no-such-program"
    )
    assert run.end() == 127
    assert "cannot execute no-such-program" in run.text
