"""A folder with a fake `gym`, a fake proxy and an env.yaml, and the launcher run in it."""

from __future__ import annotations

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import reaper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAKE = Path(__file__).parent / "fake"
HANG = 40.0
"""Seconds after which a wait is a hang, not slowness."""

ENV_YAML = """\
judge_url: https://judge.example/v1
judge:
  responses_api_models:
    vllm_model:
      entrypoint: app.py
      base_url: ["${{judge_url}}"]
sidecar:
  enabled: true
  binary: {binary}
  shutdown_grace: 5s
  startup_timeout_seconds: 20
  log_dir: {logs}
  instances:
    - {{name: judge, upstream: "https://Judge.Example/ignored", listen: "127.0.0.1:{port}"}}
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


class Run:
    """A process whose output can be awaited line by line. `reaped`: nothing that it starts outlives it or us."""

    def __init__(
        self, command: list[str], folder: Path, environment: dict[str, str], *, reaped: bool = False
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, reaper.__file__, *command] if reaped else command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE if reaped else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._arrived: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._arrived.put(line.rstrip("\n"))
        self._arrived.put(None)

    def wait_for(self, pattern: str) -> str:
        """The first line, from here on, that the pattern is found in."""
        while (line := self._arrived.get(timeout=HANG)) is not None:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"it ended without {pattern!r}:\n{self.text}")

    def end(self, send: int | None = None, *, group: bool = False) -> int:
        """Its exit code, after the signal if there is one."""
        if send is not None:
            (os.killpg if group else os.kill)(self.process.pid, send)
        code = self.process.wait(HANG)
        while (line := self._arrived.get(timeout=HANG)) is not None:
            self.lines.append(line)
        return code

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()  # the reaper ends everything and then itself
            self.process.wait(HANG)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self._reader.join(2.0)
        if (
            not self._reader.is_alive()
        ):  # else something that outlived it holds the pipe, and close would block
            self.process.stdout.close()


class Place:
    """The folder of one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.logs = folder / "logs"
        self.events_file = folder / "events"
        self.port = free_port()
        self.environment = {
            **os.environ,
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "PYTHONPATH": str(FAKE),
            "FAKE_GYM_EVENTS": str(self.events_file),
            "FAKE_GYM": "",
            "FAKE_SIDECAR": "",
            "NEMO_GYM_EXTRA_ROOTS": "",
        }
        self.bin.mkdir()
        self.gym = self.script("gym", "import sys\nfrom nemo_gym.cli.main import main\nsys.exit(main())\n")
        self.binary = self.script("fake-sidecar", (FAKE / "sidecar.py").read_text())
        self.write("env.yaml", ENV_YAML.format(binary=self.binary, logs=self.logs, port=self.port))
        self.runs: list[Run] = []

    def script(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(f"#!{sys.executable}\n{text}")
        path.chmod(0o755)
        return path

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def replace(self, old: str, new: str) -> None:
        path = self.folder / "env.yaml"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def launch(self, *words: str, **environment: str) -> Run:
        """`h2ping gym WORDS` in this folder."""
        return self.start([sys.executable, "-m", "h2ping", "gym", *words], **environment)

    def start(self, command: list[str], **environment: str) -> Run:
        run = Run(command, self.folder, {**self.environment, **environment})
        self.runs.append(run)
        return run

    def events(self) -> list[str]:
        return self.events_file.read_text().splitlines() if self.events_file.exists() else []

    def servers(self) -> str:
        """The configuration that the servers were given."""
        return (self.folder / "servers.yaml").read_text()

    def proxy_pid(self) -> int:
        (ready,) = self.logs.glob("*.ready")
        return int(ready.read_text())

    def port_is_free(self) -> bool:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return listener.connect_ex(("127.0.0.1", self.port)) != 0

    def close(self) -> None:
        for run in self.runs:
            run.close()
        for ready in self.logs.glob("*.ready"):
            with suppress(ProcessLookupError):
                os.kill(int(ready.read_text()), signal.SIGKILL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The launcher meets no engine, so the run over the plain twins need not repeat its tests."""
    if os.environ.get("H2PING_NO_EXTENSIONS", "") in ("", "0"):
        return
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(
                pytest.mark.skip(reason="tested with the compiled engine; no engine plays a part")
            )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if not os.environ.get("H2PING_REQUIRE_PEERS"):
        pytest.importorskip(
            "omegaconf", reason="the fake Gym reads its configuration with it, as the real one"
        )
    here = Place(tmp_path)
    yield here
    here.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that another process does without telling us."""

    def wait(condition: Callable[[], bool]) -> None:
        clock = threading.Event()
        for _ in range(int(HANG / 0.02)):
            if condition():
                return
            clock.wait(0.02)
        raise AssertionError("it did not happen")

    return wait
