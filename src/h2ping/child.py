"""h2ping as a child process of a Python program: notebooks, tests, Ray actors, and our own commands.

    with h2ping.running(upstream="https://HOST") as proxy:
        client = openai.OpenAI(base_url=proxy.openai_base_url)

Theory of operation
-------------------
1. The proxy is a process of its own, never a thread of the caller's: a busy interpreter must not delay a
   PING.
2. It has `-exit-with-parent`, so that it ends when the caller is killed, too.
3. It is ready when its ready file is there; where it listens is then read from its log, because port 0 means
   that the system picks one.
4. When it cannot start, the error holds the end of its log.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from h2ping.address import Upstream
from h2ping.errors import H2pingError
from h2ping.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import TextIO

READY_POLL = 0.02
TAIL_LINES = 20
KILL_AFTER = 5.0
"""Seconds after its grace that a proxy gets until it is killed."""
STOP_TIMEOUT = 60.0 + KILL_AFTER

_LISTENING = re.compile(r"listening on (\S+) -> (\S+) \(HTTP/2")


class StartError(H2pingError):
    """The proxy did not start; the message holds the end of its log."""


class Running:
    """One h2ping process. A context manager; `start` and `stop` for whoever cannot use one."""

    def __init__(
        self,
        flags: Sequence[str],
        *,
        startup_timeout: float = 15.0,
        stop_timeout: float | None = STOP_TIMEOUT,
        echo: TextIO | None = None,
    ) -> None:
        self._flags = list(flags)
        self._startup_timeout = startup_timeout
        self._stop_timeout = stop_timeout
        self._echo = echo
        self._echoed = 0
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.listening: list[tuple[str, str]] = []
        """Address and upstream of each instance, once it runs."""

    def start(self) -> Running:
        """Start and wait until it is ready. Raises StartError."""
        self._folder = Path(tempfile.mkdtemp(prefix="h2ping-"))
        self._echoed = 0
        ready = self._folder / "ready"
        command = [
            sys.executable, "-m", "h2ping", *self._flags,
            "-log-format", "text", "-ready-file", str(ready), "-exit-with-parent",
        ]  # fmt: skip
        try:
            with self.log_file.open("wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._await(ready)
        except BaseException:
            self.stop(0)
            raise
        return self

    def _await(self, ready: Path) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._startup_timeout
        while not ready.exists():
            if self._process.poll() is not None:
                raise self._not_started(f"h2ping exited with code {self._process.returncode}")
            if time.monotonic() >= deadline:
                raise self._not_started(f"h2ping was not ready after {self._startup_timeout:g} s")
            time.sleep(READY_POLL)
        self.listening = _LISTENING.findall(self.log())
        if not self.listening:
            raise self._not_started("h2ping did not say where it listens (log level?)")

    def _not_started(self, what: str) -> StartError:
        """With the end of the log, unless that is shown where it is echoed to."""
        return StartError(what if self._echo is not None else f"{what}:\n{self.tail()}")

    def stop(self, timeout: float | None = -1.0) -> int | None:
        """Let requests in flight finish, then kill. Returns the exit code; repeating it does nothing."""
        if timeout is not None and timeout < 0:
            timeout = self._stop_timeout
        process, self._process = self._process, None
        code = None
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
        self.echo_log()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return code

    def __enter__(self) -> Running:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("h2ping is not running")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def base_url(self) -> str:
        """`http://HOST:PORT`: what stands instead of `https://UPSTREAM`."""
        if not self.listening:
            raise RuntimeError("h2ping is not running")
        return f"http://{reachable(self.listening[0][0])}"

    @property
    def openai_base_url(self) -> str:
        """The base URL for clients of the OpenAI API, which put `/chat/completions` behind it."""
        return openai_url(self.base_url, self.listening[0][1])

    @property
    def log_file(self) -> Path:
        if self._folder is None:
            raise RuntimeError("h2ping is not running")
        return self._folder / "log"

    def echo_log(self) -> None:
        """Copy what is new in the log to where `echo` says."""
        if self._echo is None or self._folder is None or not self.log_file.exists():
            return
        with self.log_file.open("rb") as log:
            log.seek(self._echoed)
            new = log.read()
        self._echoed += len(new)
        self._echo.write(new.decode("utf-8", "replace"))
        self._echo.flush()

    def log(self) -> str:
        """What it has logged so far."""
        return self.log_file.read_text(errors="replace")

    def tail(self) -> str:
        lines = self.log().splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines)


def running(
    upstream: str, listen: str = "127.0.0.1:0", *, startup_timeout: float = 15.0, **settings: Any
) -> Running:
    """A proxy for as long as a `with` block lasts. Further settings are h2ping's flags with underscores:
    `ping_interval="5s"`, `max_conns=4`, `insecure_skip_verify=True`.
    """
    flags = ["-upstream", upstream, "-listen", listen]
    grace = parse_duration(str(settings.get("shutdown_grace", "60s")))
    for name, value in settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        flags.append(f"-{name.replace('_', '-')}={text}")
    return Running(flags, startup_timeout=startup_timeout, stop_timeout=grace + KILL_AFTER)


def reachable(address: str) -> str:
    """An address to connect to, for one to listen on: `0.0.0.0` is every interface, and no destination."""
    host, _, port = address.rpartition(":")
    if host in ("", "0.0.0.0", "[::]"):
        host = "127.0.0.1"
    return f"{host}:{port}"


def openai_url(base_url: str, upstream: str) -> str:
    """With `/v1` behind it, unless the upstream's own path is put before each request's path already."""
    return base_url if Upstream.parse(upstream).prefix else f"{base_url}/v1"


def environment(proxy: Running) -> dict[str, str]:
    """What a command that runs beside the proxy is told."""
    values = {"H2PING_BASE_URL": proxy.base_url}
    skip = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if not {"*", "127.0.0.1"} & {part.strip() for part in skip.split(",")}:
        # A client with HTTP_PROXY set would send even a loopback request to that proxy.
        values["NO_PROXY"] = values["no_proxy"] = ",".join(filter(None, [skip, "127.0.0.1", "localhost"]))
    return values
