"""h2ping as a user runs it: a process of its own in front of the lab."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING, Any

from h2ping.lab.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

LISTENING = re.compile(r"listening on \S*?:(\d+) ")
ADMIN = re.compile(r"probes and metrics on http://\S*?:(\d+)/")
DEFECTS = ("Traceback", "was never awaited", "Task exception", "Exception in callback", "internal-error")
START_PATIENCE = 20.0
STOP_PATIENCE = 10.0
LOG_LINES = 400
LAST_LINES = 40


class ProxyDied(RuntimeError):
    """The process ended by itself; the text has its last lines."""


class Proxy:
    """`python -m h2ping -upstream URL -ca-file FILE FLAGS...` on a free port, in `port` once it listens."""

    def __init__(
        self, upstream: str, ca_file: str, *flags: str, program: Sequence[str] = ("-m", "h2ping")
    ) -> None:
        self._command = [
            sys.executable, *program, "--listen", "127.0.0.1:0", "--upstream", upstream,
            "--ca-file", ca_file, "--exit-with-parent", "--shutdown-grace", "2s", *flags,
        ]  # fmt: skip
        self.port = 0
        self.admin_port = 0
        """Of its admin listener, when it has one and said so."""
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.on_line: Callable[[str], None] | None = None
        """Gets every line."""
        self.watch = Watch()
        self.census: list[str] = []
        """What lab.census wrote, as JSON."""
        self.defects: deque[str] = deque(maxlen=LOG_LINES)
        """Lines that nothing may cause."""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Return once it listens."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=clean_environment(),
        )
        self._reader = asyncio.get_running_loop().create_task(self._read())
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._listening.wait(), START_PATIENCE)
        if not self.port:
            await self.stop()
            raise self.obituary("h2ping did not start")

    @property
    def ended(self) -> bool:
        """It is gone, though nobody stopped it."""
        return self._process is not None and self._process.returncode is not None

    def obituary(self, what: str) -> ProxyDied:
        """The error to raise, with its exit code and last lines."""
        code = self._process.returncode if self._process is not None else None
        return ProxyDied(f"{what} (exit code {code}):\n" + "\n".join(list(self.log)[-LAST_LINES:]))

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            if self.on_line is not None:
                self.on_line(text)
            if text.startswith("census "):
                self.census.append(text[7:])
                self.watch.changed()
            elif any(word in text for word in DEFECTS):
                self.defects.append(text)
            if (admin := ADMIN.search(text)) and not self.admin_port:
                self.admin_port = int(admin.group(1))
            found = LISTENING.search(text)
            if found and not self.port:
                self.port = int(found.group(1))
                self._listening.set()
        # A signal sent before it was waited for would take its exit code away: Popen looks by itself first.
        await self._process.wait()
        self._listening.set()  # it ended; `port` says whether it ever listened

    async def stop(self) -> int:
        """SIGTERM, then SIGKILL; returns the exit code."""
        process = self._process
        assert process is not None
        if process.returncode is None:
            process.terminate()
        try:
            code = await asyncio.wait_for(process.wait(), STOP_PATIENCE)
        except asyncio.TimeoutError:
            process.kill()
            code = await process.wait()
        if self._reader is not None:
            await self._reader
        return code

    async def ask(self, page: str) -> str:
        """A page of its admin listener, which must be on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.admin_port)
        writer.write(f"GET {page} HTTP/1.1\r\nHost: lab\r\n\r\n".encode())
        answer = await reader.read(-1)
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()

    async def state(self) -> dict[str, Any]:
        """What /connections says."""
        state: dict[str, Any] = json.loads(await self.ask("/connections"))
        return state

    def resident_bytes(self) -> int:
        """Its resident memory now, 0 when it is gone."""
        return resident_bytes(self.pid)


def processor_seconds(pid: int) -> float:
    """What all its threads have used so far, by /proc; 0 where there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """VmRSS where there is /proc, what ps says elsewhere."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        return 0
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return 0
    listed = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return int(listed.stdout.strip() or 0) * 1024


def clean_environment() -> dict[str, str]:
    """Ours without what would change the proxy's settings behind the lab's back."""
    unwanted = ("GOMEMLIMIT", "GOMAXPROCS", "NOTIFY_SOCKET", "SSL_CERT_FILE", "SSL_CERT_DIR")
    return {
        name: value
        for name, value in os.environ.items()
        if name not in unwanted and (not name.startswith("H2PING_") or name == "H2PING_NO_EXTENSIONS")
    }
