"""`h2ping.running`: a proxy for a notebook, a test, an actor."""

from __future__ import annotations

import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

import h2ping
from h2ping.child import StartError, openai_url, reachable
from tests.gym.conftest import Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UPSTREAM = "https://localhost:1"


def cause(url: str) -> str:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(url)
    with caught.value as error:
        return error.headers["h2ping-cause"] or ""


def test_base_url_answers_while_the_block_lasts() -> None:
    with h2ping.running(upstream=UPSTREAM, connect_timeout="5s") as proxy:
        assert proxy.base_url.startswith("http://127.0.0.1:")
        assert cause(f"{proxy.base_url}/v1/models") == "connect-failed"
        assert proxy.openai_base_url == f"{proxy.base_url}/v1"
        port = int(proxy.base_url.rpartition(":")[2])
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_a_chosen_address_is_kept() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
    with h2ping.running(upstream=UPSTREAM, listen=listen) as proxy:
        assert proxy.base_url == f"http://{listen}"


def test_a_start_that_fails_says_why() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        with pytest.raises(StartError, match="cannot bind"):
            h2ping.running(upstream=UPSTREAM, listen=f"127.0.0.1:{holder.getsockname()[1]}").start()


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(StartError, match="flag provided but not defined: -no-such-setting"):
        h2ping.running(upstream=UPSTREAM, no_such_setting=1).start()


def test_it_ends_when_its_parent_is_killed(
    tmp_path: Path, until: Callable[[Callable[[], bool]], None]
) -> None:
    script = (
        "import h2ping, signal\n"
        f"with h2ping.running(upstream={UPSTREAM!r}) as proxy:\n"
        "    print(proxy.pid, flush=True)\n"
        "    signal.pause()\n"
    )
    run = Run([sys.executable, "-c", script], tmp_path, dict(os.environ))
    pid = int(run.wait_for(r"^\d+$"))
    run.end(signal.SIGKILL)
    until(lambda: not alive(pid))
    run.close()


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that nobody waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.pure
@pytest.mark.parametrize(
    ("address", "destination"),
    [
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("0.0.0.0:1", "127.0.0.1:1"),
        ("[::]:1", "127.0.0.1:1"),
        ("[::1]:1", "[::1]:1"),
    ],
)
def test_every_interface_is_no_destination(address: str, destination: str) -> None:
    assert reachable(address) == destination


@pytest.mark.pure
def test_a_path_of_the_upstream_stands_for_the_version_of_the_api() -> None:
    """The proxy puts it before each request's path already."""
    assert openai_url("http://a", "https://b") == "http://a/v1"
    assert openai_url("http://a", "https://b/v1") == "http://a"
