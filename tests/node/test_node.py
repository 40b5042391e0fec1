"""`h2ping node --run COMMAND`: a job step, a container's entry point."""

from __future__ import annotations

import signal
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from h2ping import node

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.gym.conftest import Run

FLAGS = ("--upstream", "https://localhost:1", "--listen", "127.0.0.1:0", "--shutdown-grace", "2s")
ASK = """
import os, urllib.request, urllib.error
try:
    urllib.request.urlopen(os.environ["H2PING_BASE_URL"] + "/v1/models")
except urllib.error.HTTPError as error:
    print("answered", error.headers["h2ping-cause"], "127.0.0.1" in os.environ["no_proxy"], flush=True)
"""
WAIT = "import signal; print('up', flush=True); signal.pause()"


def test_the_command_runs_with_a_proxy_that_is_ready(h2ping: Callable[..., Run]) -> None:
    run = h2ping(
        "node", *FLAGS, "--run", sys.executable, "-c", ASK, HTTP_PROXY="http://127.0.0.1:9", no_proxy=""
    )
    assert run.end() == 0
    assert "answered connect-failed True" in run.text
    assert "upstream error: GET /v1/models: " in run.text
    assert run.lines[-1].endswith("stopped")


def test_its_exit_code_is_ours(h2ping: Callable[..., Run]) -> None:
    assert h2ping("node", *FLAGS, "--run", "sh", "-c", "exit 7").end() == 7


def test_without_a_proxy_the_command_does_not_run(h2ping: Callable[..., Run]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        run = h2ping("node", "--upstream", "https://localhost:1", "--listen", listen, "--run", "echo", "ran")
        assert run.end() == 1
    assert "cannot bind" in run.text
    assert "ran" not in run.lines


def test_a_bad_flag_is_told_in_one_line(h2ping: Callable[..., Run]) -> None:
    run = h2ping("node", "--nope", "1", "--run", "true")
    assert run.end() == 2
    assert run.lines == ["h2ping node: flag provided but not defined: -nope"]


def test_a_command_is_needed(h2ping: Callable[..., Run]) -> None:
    assert h2ping("node", *FLAGS).end() == 2


def test_sigterm_stops_the_command_and_then_the_proxy(
    h2ping: Callable[..., Run], until: Callable[[Callable[[], bool]], None]
) -> None:
    run = h2ping("node", *FLAGS, "--run", sys.executable, "-c", WAIT)
    address = run.wait_for(r"127\.0\.0\.1:\d+ -> ").split()[2]
    run.wait_for("^up$")
    assert run.end(signal.SIGTERM) == 128 + signal.SIGTERM
    assert not answers(address)


def test_killed_with_sigkill_it_leaves_nothing_behind(
    h2ping: Callable[..., Run], until: Callable[[Callable[[], bool]], None]
) -> None:
    run = h2ping("node", *FLAGS, "--run", sys.executable, "-c", WAIT)
    address = run.wait_for(r"127\.0\.0\.1:\d+ -> ").split()[2]
    run.wait_for("^up$")
    run.end(signal.SIGKILL)
    until(lambda: not answers(address))


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


class FakeProxy:
    """Dies when told, and may refuse to start."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        self.exit_code = None

    def stop(self, timeout: float = 0) -> None:
        pass

    def echo_log(self) -> None:
        pass


class Case:
    def __init__(self) -> None:
        self.now = 0.0
        self.proxy = FakeProxy()
        self.nurse = node.Nurse(self.proxy, lambda: self.now)  # type: ignore[arg-type]

    def die(self, after: float) -> str:
        self.now += after
        self.proxy.exit_code = 1
        return self.nurse.look()


@pytest.mark.pure
def test_a_proxy_that_dies_is_started_again(capsys: pytest.CaptureFixture[str]) -> None:
    case = Case()
    assert case.die(100.0) == ""
    assert "the proxy exited with code 1" in capsys.readouterr().err
    assert case.proxy.starts == 0
    case.now += node.FIRST_WAIT
    assert case.nurse.look() == ""
    assert case.proxy.starts == 1


@pytest.mark.pure
def test_the_wait_doubles_while_it_dies_early() -> None:
    case = Case()
    for wait in (0.5, 1.0, 2.0, 4.0):
        assert case.die(1.0) == ""
        case.now += wait - 0.01
        assert case.nurse.look() == ""
        starts = case.proxy.starts
        case.now += 0.01
        case.nurse.look()
        assert case.proxy.starts == starts + 1


@pytest.mark.pure
def test_five_early_deaths_in_a_row_stop_the_command() -> None:
    case = Case()
    for _ in range(4):
        assert case.die(1.0) == ""
        case.now += node.LONGEST_WAIT
        case.nurse.look()
    assert "died 5 times in a row" in case.die(1.0)


@pytest.mark.pure
def test_a_long_life_forgives_early_deaths() -> None:
    case = Case()
    for age in (1.0, 1.0, 1.0, 60.0, 1.0, 1.0, 1.0):
        assert case.die(age) == ""
        case.now += node.LONGEST_WAIT
        case.nurse.look()
