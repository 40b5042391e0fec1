"""Proxies as child processes: start, await their ready files, notice a death, stop.

Theory of operation
-------------------
1. All are started, then all are awaited. Ready means that the ready file is there, not that the port answers:
   something else may hold the port.
2. Whatever goes wrong after the first start, an interrupt included, stops every proxy that was started.
3. Any exit while running is a death, exit code 0 too; the error quotes the last 20 lines of the proxy's log.
4. A stop sends SIGTERM once to each, gives all of them the grace plus 5 s together, then kills.
5. Files are `h2ping-NAME-HOST-RUN.ready` and `.log`, RUN being new for each run, so that concurrent runs on a
   host or a shared file system never share or delete one another's files.
6. Each proxy has a session of its own, so that Ctrl-C reaches the servers before it; it ends by itself when
   its parent is gone (`-exit-with-parent`, or `tether.py` around a program that has no such flag).

Runs in Gym's interpreter too: standard library only, and nothing of it starts before `start`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from h2ping import tether
from h2ping.errors import H2pingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h2ping.gym.sidecar import Block, Instance

TAIL_LINES = 20
READY_POLL = 0.05
KILL_AFTER = 5.0
"""Seconds after the grace: a proxy that cuts its last requests needs a moment to say so."""


class ProxyError(H2pingError):
    """A proxy that did not start, or ended while it was needed."""


@dataclass
class Proxy:
    """One child process and its files."""

    name: str
    listen: str
    upstream: str
    command: list[str]
    environment: dict[str, str]
    ready: Path
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        self.ready.unlink(missing_ok=True)
        try:
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
        except OSError as error:
            raise ProxyError(f"cannot start the proxy {self.name}: {error}") from None

    def is_ready(self) -> bool:
        return self.ready.exists()

    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def tail(self) -> str:
        """The end of its log, as one indented block."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError as error:
            lines = [f"(no log: {error})"]
        return "\n".join(f"    {line}" for line in lines)

    def obituary(self, when: str) -> str:
        """Why it is gone, with the end of its log."""
        code = self.exit_code()
        text = self.tail()
        hint = f" (is {self.listen} already in use?)" if "cannot bind" in text else ""
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        return f"the proxy {self.name} {how} {when}{hint}\nEnd of {self.log}:\n{text}"


class Fleet:
    """The proxies of one run."""

    def __init__(
        self,
        proxies: Sequence[Proxy],
        grace: float,
        startup_timeout: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.proxies = list(proxies)
        self._grace = grace
        self._startup_timeout = startup_timeout
        self._sleep = sleep
        self._now = now

    def start(self) -> None:
        """Start all and wait until all are ready, or stop all and raise ProxyError."""
        try:
            for proxy in self.proxies:
                proxy.start()
            self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _await_ready(self) -> None:
        deadline = self._now() + self._startup_timeout
        while waiting := [proxy for proxy in self.proxies if not proxy.is_ready()]:
            for proxy in waiting:
                if proxy.exit_code() is not None:
                    raise ProxyError(proxy.obituary("before it was ready"))
            if self._now() >= deadline:
                names = ", ".join(proxy.name for proxy in waiting)
                raise ProxyError(
                    f"not ready after {self._startup_timeout:g}s (startup_timeout_seconds): {names}\n"
                    f"End of {waiting[0].log}:\n{waiting[0].tail()}"
                )
            self._sleep(READY_POLL)

    def failure(self) -> str:
        """Why the run cannot go on; empty while every proxy runs."""
        for proxy in self.proxies:
            if proxy.exit_code() is not None:
                return proxy.obituary("while it was needed")
        return ""

    def stop(self) -> None:
        """Let requests in flight finish, then kill. Repeating it does nothing."""
        running = [proxy.process for proxy in self.proxies if proxy.process is not None]
        for process in running:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
        deadline = self._now() + self._grace + KILL_AFTER
        for process in running:
            _wait_or_kill(process, max(0.0, deadline - self._now()))
        for proxy in self.proxies:
            proxy.ready.unlink(missing_ok=True)


def _wait_or_kill(process: subprocess.Popen[bytes], timeout: float) -> None:
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def fleet_of(block: Block, program: Sequence[str], gym_log_dir: str | None = None) -> Fleet:
    """A fleet for a checked block; `program` is h2ping's own command, for a block that names no `binary`."""
    folder = log_folder(block, gym_log_dir)
    run = uuid.uuid4().hex
    proxies = []
    for instance in block.instances:
        stem = f"h2ping-{instance.name}-{socket.gethostname()}-{run}"
        ready = folder / f"{stem}.ready"
        proxies.append(
            Proxy(
                name=instance.name,
                listen=str(instance.listen),
                upstream=instance.upstream,
                command=command(block, instance, program, str(ready)),
                environment=block.environment,
                ready=ready,
                log=folder / f"{stem}.log",
            )
        )
    return Fleet(proxies, block.grace, block.startup_timeout_seconds)


def command(block: Block, instance: Instance, program: Sequence[str], ready_file: str) -> list[str]:
    """What is executed for an instance."""
    flags = block.flags(instance, ready_file)
    if block.binary:
        return [*tether.prefix(sys.executable, os.getpid()), str(binary_path(block)), *flags]
    if not instance.listen.is_loopback:
        flags.append("-unsafe-listen")  # said once by the block's own warning
    return [*program, *flags, "-exit-with-parent"]


def binary_path(block: Block) -> Path:
    """The program that `binary:` names. Raises ProxyError unless it is a file that can be executed."""
    path = Path(block.binary).expanduser().absolute()
    if not path.is_file():
        raise ProxyError(f"sidecar.binary: {path} is not a file")
    if not os.access(path, os.X_OK):
        raise ProxyError(f"sidecar.binary: {path} is not executable")
    return path


def log_folder(block: Block, gym_log_dir: str | None = None) -> Path:
    """Where ready files and logs go, made if need be."""
    named = block.log_dir or gym_log_dir
    if named:
        folder = Path(named).expanduser().absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            key = "sidecar.log_dir" if block.log_dir else "nemo_gym_log_dir"
            raise ProxyError(f"{key}: cannot make {folder}: {error.strerror}") from None
        return folder
    folder = Path(tempfile.gettempdir()) / f"nemo_gym_h2ping-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid() or folder.is_symlink():
        # Anyone may make names in /tmp; a folder that is not ours could make us write through its links.
        raise ProxyError(f"{folder} belongs to somebody else; set sidecar.log_dir")
    return folder
