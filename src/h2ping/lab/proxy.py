"""h2ping as a user runs it: a process of its own in front of the lab."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

LISTENING = re.compile(r"listening on \S*?:(\d+) ")
START_PATIENCE = 20.0
STOP_PATIENCE = 10.0
LOG_LINES = 400


class ProxyDied(RuntimeError):
    """The process ended before it listened; the text has its last lines."""


class Proxy:
    """`python -m h2ping --upstream URL --ca-file FILE FLAGS...` on a free port, in `port` once it listens."""

    def __init__(self, upstream: str, ca_file: str, *flags: str) -> None:
        self._command = [
            sys.executable, "-m", "h2ping", "--listen", "127.0.0.1:0", "--upstream", upstream,
            "--ca-file", ca_file, "--exit-with-parent", "--shutdown-grace", "2s", *flags,
        ]  # fmt: skip
        self.port = 0
        self.log: deque[str] = deque(maxlen=LOG_LINES)
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
        try:
            await asyncio.wait_for(self._listening.wait(), START_PATIENCE)
        except asyncio.TimeoutError:
            await self.stop()
        if not self.port:
            raise ProxyDied("h2ping did not start:\n" + "\n".join(list(self.log)[-10:]))

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            text = line.decode(errors="replace").rstrip()
            self.log.append(text)
            found = LISTENING.search(text)
            if found and not self.port:
                self.port = int(found.group(1))
                self._listening.set()
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

    def resident_bytes(self) -> int:
        """Its resident memory now, 0 when it is gone."""
        return resident_bytes(self.pid)


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
