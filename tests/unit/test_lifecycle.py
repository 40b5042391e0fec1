"""Ready file, systemd, the parent, who holds a port, the file limit."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from h2ping import STARTED_BY, lifecycle
from h2ping.address import Address
from h2ping.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")


def test_the_ready_file_holds_the_process_id_and_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "x.ready"
    ready = lifecycle.ReadyFile(str(path))
    assert path.read_bytes() == b"%d\n" % os.getpid()
    assert os.listdir(tmp_path) == ["x.ready"]
    ready.remove()
    ready.remove()
    assert os.listdir(tmp_path) == []


def test_a_stale_ready_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.ready"
    path.write_text("1\n")
    lifecycle.ReadyFile(str(path))
    assert path.read_text() == f"{os.getpid()}\n"


def test_the_ready_file_of_another_process_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.ready"
    ready = lifecycle.ReadyFile(str(path))
    path.write_text("1\n")
    ready.remove()
    assert path.read_text() == "1\n"


@pytest.mark.parametrize("name", ["missing/x.ready", "."])
def test_a_ready_file_that_cannot_be_written_ends_with_code_1(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(ConfigError, match=f"cannot write -ready-file {path}: .") as caught:
        lifecycle.ReadyFile(str(path))
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == []


def test_what_is_no_file_is_never_taken_for_the_ready_file(tmp_path: Path) -> None:
    """Root could replace a device, and opening a FIFO waits for its writer."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="it exists and is not a regular file") as caught:
        lifecycle.forget_stale_ready_file(str(path))
    assert caught.value.exit_code == 1
    assert os.listdir(tmp_path) == ["pipe"]


@pytest.mark.sockets
@pytest.mark.parametrize("kind", ["path", pytest.param("abstract", marks=LINUX)])
def test_systemd_is_told_where_it_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """sd_notify(3): a name that opens with @ is in the abstract namespace."""
    name = str(tmp_path / "notify") if kind == "path" else f"@h2ping-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0", 1) if kind == "abstract" else name)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert lifecycle.notify("READY=1")
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("value", ["", "relative", "/nonexistent/notify", "@h2ping-nobody-listens"])
def test_without_a_listening_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", value)
    assert not lifecycle.notify("READY=1")


# --- the parent -----------------------------------------------------------------------------------

CHILD = """
import asyncio, os, sys
from h2ping import lifecycle
if "poll" in sys.argv:
    lifecycle._open_pidfd = lambda process: None
    lifecycle.PARENT_POLL = 0.01
async def main():
    gone = asyncio.Event()
    watch = lifecycle.exit_with_parent(gone.set)
    print(os.getpid(), flush=True)
    await asyncio.wait_for(gone.wait(), 20)
    print("gone", flush=True)
asyncio.run(main())
"""
PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], *sys.argv[2:]])
sys.stdin.read()
"""


@pytest.mark.sockets
@pytest.mark.parametrize("way", ["kernel", "poll"])
def test_the_end_of_the_parent_is_noticed(way: str) -> None:
    """The parent is killed, so that it can tell nobody."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    assert int(parent.stdout.readline()) > 0
    parent.kill()
    parent.wait(10)
    assert parent.stdout.readline() == "gone\n"
    assert parent.stdout.read() == ""
    parent.stdin.close()
    parent.stdout.close()


@pytest.mark.sockets
async def test_a_parent_that_went_before_the_watch_stood_is_noticed_at_once() -> None:
    calls: list[str] = []
    lifecycle.ParentWatch(lambda: calls.append("gone"), parent=os.getpid())
    assert calls == ["gone"]


@pytest.mark.sockets
async def test_a_parent_that_went_while_we_were_imported_is_noticed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "getppid", lambda: 1)
    lifecycle.exit_with_parent(lambda: calls.append("gone"))
    assert calls == ["gone"]


@pytest.mark.sockets
async def test_a_living_parent_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "_open_pidfd", lambda process: None)
    monkeypatch.setattr(lifecycle, "PARENT_POLL", 0.001)
    looks = asyncio.Semaphore(0)
    parent = STARTED_BY

    def counted() -> int:
        looks.release()
        return parent

    monkeypatch.setattr(os, "getppid", counted)
    watch = lifecycle.exit_with_parent(lambda: pytest.fail("it lives"))
    for _ in range(4):
        await asyncio.wait_for(looks.acquire(), 10)
    assert watch is not None
    watch.close()
    watch.close()


async def test_process_1_has_no_parent_to_watch() -> None:
    assert lifecycle.exit_with_parent(lambda: None, parent=0) is None


# --- ports and files ------------------------------------------------------------------------------


@pytest.mark.sockets
@LINUX
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_holds_a_port_is_named(family: socket.AddressFamily) -> None:
    try:
        held = socket.create_server(("localhost" if family == socket.AF_INET else "::1", 0), family=family)
    except OSError:
        pytest.skip("no IPv6 here")
    with held:
        holder = lifecycle.port_holder(Address("127.0.0.1", held.getsockname()[1]))
    assert holder is not None
    assert holder.startswith(f"process {os.getpid()} (")


@pytest.mark.sockets
def test_a_free_port_is_held_by_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    assert lifecycle.port_holder(Address("127.0.0.1", port)) is None


def test_a_system_that_shows_nothing_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError

    monkeypatch.setattr(lifecycle, "_listening_inodes", lambda port: ["1"])
    monkeypatch.setattr(os, "listdir", refuse)
    assert lifecycle.port_holder(Address("127.0.0.1", 1)) is None


def test_the_file_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: made.append(limits))
    assert lifecycle.raise_file_limit() == 4096
    assert made == [(4096, 4096)]


def test_a_file_limit_that_cannot_be_raised_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, limits: tuple[int, int]) -> None:
        raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert lifecycle.raise_file_limit() == 256


def test_a_limit_of_a_few_files_is_named() -> None:
    """In a process of its own, with the limit that it would have there."""
    command = [sys.executable, "-m", "h2ping", "-upstream", "https://127.0.0.1:9", "-listen", "127.0.0.1:0"]
    few = lifecycle.FEWEST_FILES - 1
    done = subprocess.run(
        ["sh", "-c", f'ulimit -n {few}; exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = f"open files are limited to {few} (ulimit -Hn); at least {lifecycle.FEWEST_FILES} are needed"
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert wanted in done.stderr


def test_macos_takes_no_more_than_its_open_max(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: made.append(limits))
    assert lifecycle.raise_file_limit() == lifecycle.MAC_OPEN_MAX


@pytest.mark.parametrize(
    ("soft", "connections", "room"),
    [(1024, 64, 896), (160, 64, 80), (20_000, 640, 19_296), (resource.RLIM_INFINITY, 64, sys.maxsize)],
)
def test_clients_leave_descriptors_for_the_upstream(
    monkeypatch: pytest.MonkeyPatch, soft: int, connections: int, room: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, resource.RLIM_INFINITY))
    assert lifecycle.room_for_clients(connections) == room
