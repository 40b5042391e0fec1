"""The installed command as a process: started, watched by its log, stopped and checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.bell import PATIENCE, Bell
from tests.support.sanitizers import SANITIZED

CANARY = "c4n4ry-7f31"
"""Stands in credentials of every test request; must never come out of the proxy."""

LISTENING = re.compile(r"listening on (\S+):(\d+) -> ")
DEFECTS = ("Traceback", "was never awaited", "Task exception", "Exception in callback", "internal-error")
"""Nothing of this may be in a log, whatever happened."""

CLEAN_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("H2PING_", "SSL_CERT_", "GOMEMLIMIT", "GOMAXPROCS", "NOTIFY_SOCKET"))
    and not name.lower().endswith("_proxy")
}


def command_for(program: str) -> list[str]:
    """The console script beside this interpreter, or the same thing as a module."""
    script = Path(sys.executable).parent / program
    if script.exists():
        return [str(script)]
    if program == "h2ping":
        return [sys.executable, "-m", "h2ping"]
    return [sys.executable, "-c", "import sys; from h2ping.cli import main_sidecar; sys.exit(main_sidecar())"]


def environment(engine: str, extra: dict[str, str] | None = None) -> dict[str, str]:
    chosen = {"H2PING_NO_EXTENSIONS": "1"} if engine == "py" else {}
    return {**CLEAN_ENVIRONMENT, "PYTHONUNBUFFERED": "1", **chosen, **(extra or {})}


class Proxy:
    """One process. `program` is the console script's name, `engine` c (compiled) or py (plain twins)."""

    def __init__(
        self, *flags: str, program: str = "h2ping", engine: str = "c", env: dict[str, str] | None = None,
        ready_file: Path | None = None, file_limit: int = 0, folder: Path | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        """Where it runs; None: where the tests do."""
        self.flags = [*flags, *([f"--ready-file={ready_file}"] if ready_file else [])]
        self.program = program
        self.ready_file = ready_file
        self.env = environment(engine, env)
        self.file_limit = file_limit
        """RLIMIT_NOFILE, soft and hard; 0 leaves it."""
        self.bell = Bell()
        self.lines: list[tuple[float, str]] = []
        """The log: the loop's time and the line."""
        self.host = "127.0.0.1"
        self.port = 0
        self.expect_code: int | None = 0
        """What `finish` demands; None for a process that the test killed."""
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def log(self) -> str:
        return "\n".join(line for _, line in self.lines)

    async def spawn(self) -> None:
        """Start the process; do not wait for anything."""
        limit = ["/bin/sh", "-c", f'ulimit -n {self.file_limit}; exec "$@"', "sh"] if self.file_limit else []
        self._process = await asyncio.create_subprocess_exec(
            *limit, *command_for(self.program), *self.flags, env=self.env, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, limit=1 << 20,
            cwd=self.folder,
        )  # fmt: skip
        self._reader = asyncio.ensure_future(self._read())

    async def start(self) -> None:
        """Start the process and wait until it listens."""
        await self.spawn()
        line = await self.logged(LISTENING)
        match = LISTENING.search(line)
        assert match is not None
        self.port = int(match[2])

    async def _read(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        loop = asyncio.get_running_loop()
        while line := await stream.readline():
            self.lines.append((loop.time(), line.decode(errors="replace").rstrip("\n")))
            self.bell.ring()
        self._ended = True
        self.bell.ring()

    async def logged(self, pattern: str | re.Pattern[str], within: float = PATIENCE, since: int = 0) -> str:
        """The first log line with that text; fails at once when the process ended without it."""
        found = pattern if isinstance(pattern, re.Pattern) else re.compile(re.escape(pattern))

        def look() -> str | None:
            for _, line in self.lines[since:]:
                if found.search(line):
                    return line
            assert not self._ended, f"the proxy ended without {found.pattern!r} in its log:\n{self.log}"
            return None

        return await self.bell.until(look, f"log line {found.pattern!r}", within, lambda: f"log:\n{self.log}")

    def matching(self, text: str) -> list[str]:
        return [line for _, line in self.lines if text in line]

    def records(self) -> list[dict[str, Any]]:
        """The lines that tell of one request, with `--log-format=json`."""
        parsed = [json.loads(line) for _, line in self.lines if line.startswith("{")]
        return [record for record in parsed if "request_id" in record]

    async def record(self, within: float = PATIENCE, **wanted: object) -> dict[str, Any]:
        """The first record with these values, with `--log-format=json`."""

        def look() -> dict[str, Any] | None:
            for record in self.records():
                if all(record.get(key) == value for key, value in wanted.items()):
                    return record
            return None

        return await self.bell.until(look, f"record with {wanted}", within, lambda: f"log:\n{self.log}")

    async def exited(self, within: float = PATIENCE) -> int:
        """The exit code; the log is complete."""
        code = await asyncio.wait_for(self.process.wait(), within)
        assert self._reader is not None
        await asyncio.wait_for(self._reader, PATIENCE)
        return code

    async def stop(self, sig: signal.Signals = signal.SIGTERM, within: float = PATIENCE) -> int:
        self.process.send_signal(sig)
        return await self.exited(within)

    async def page(self, path: str) -> str:
        """A page of its admin listener."""
        line = await self.logged("probes and metrics on http://")
        port = int(line.partition("on http://")[2].partition("/")[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(-1), PATIENCE)
        writer.close()
        return answer.partition(b"\r\n\r\n")[2].decode()

    async def look_for_secrets(self) -> None:
        """In what its admin listener shows, where it still runs; a proxy that drains may end amid it."""
        is_running = self._process is not None and self._process.returncode is None
        if not is_running or self.expect_code is None or "probes and metrics on http://" not in self.log:
            return
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            for path in ("/metrics", "/connections"):
                assert CANARY not in await self.page(path), f"a secret is in {path}"

    async def finish(self) -> None:
        """Stop it if it runs, and demand a clean end: exit code, no defect, and no secret in log and pages."""
        if self._process is None:
            return
        await self.look_for_secrets()
        try:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(signal.SIGTERM)
            code = await self.exited()
        except (asyncio.TimeoutError, TimeoutError):
            self._process.kill()
            await self.exited()
            raise AssertionError(f"the proxy did not stop on SIGTERM; log:\n{self.log}") from None
        if self.expect_code is not None:
            assert code == self.expect_code, f"exit code {code}; log:\n{self.log}"
        for defect in DEFECTS:
            assert defect not in self.log, f"{defect!r} in the log:\n{self.log}"
        assert CANARY not in self.log, "a secret is in the log"
        if self.ready_file is not None and self.expect_code == 0:
            assert not self.ready_file.exists(), "the ready file was left behind"

    # --- what the system says about the process -------------------------------------------------------------
    def _ps(self, what: str) -> str:
        done = subprocess.run(["ps", "-o", f"{what}=", "-p", str(self.pid)], capture_output=True, text=True)
        return done.stdout.strip()

    def descriptors(self) -> int:
        """Open files."""
        folder = Path(f"/proc/{self.pid}/fd")
        if folder.exists():
            return len(list(folder.iterdir()))
        return len(subprocess.run(["lsof", "-p", str(self.pid)], capture_output=True).stdout.splitlines())

    def resident_bytes(self) -> int:
        """0 under sanitizers, whose shadow would be counted too: the flood is played, its memory is not judged."""
        if SANITIZED:
            return 0
        return int(self._ps("rss")) * 1024

    def cpu_seconds(self) -> float:
        """User and system time so far; to the nanosecond on Linux, where a process's clock can be read."""
        if sys.platform == "linux":
            return time.clock_gettime(~self.pid << 3 | 2)
        total = 0.0
        for part in self._ps("time").replace("-", ":").split(":"):
            total = total * 60 + float(part)
        return total


async def run(
    program: str, *flags: str, env: dict[str, str] | None = None, engine: str = "c"
) -> tuple[int, str]:
    """Run the command to its end: exit code and everything it printed."""
    process = await asyncio.create_subprocess_exec(
        *command_for(program), *flags, env=environment(engine, env), start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    except (asyncio.TimeoutError, TimeoutError):
        process.kill()
        out, _ = await process.communicate()
        raise AssertionError(f"{program} {flags} did not end:\n{out.decode()}") from None
    assert process.returncode is not None
    return process.returncode, out.decode(errors="replace")
