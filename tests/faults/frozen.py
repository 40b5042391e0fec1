"""An upstream in a process of its own, so that it can be stopped (SIGSTOP) and continued; and the cells that do it.

The process says on its standard output what it has: `port N`, `half PATH`, `executed PATH`. A line `go` on its
standard input lets the answers go that it holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

from tests.faults.cell import BODY, HALF, PATIENCE, Cell, answer_to
from tests.faults.result import Moment
from tests.support.bell import Bell, pace
from tests.support.client import request_bytes
from tests.support.scripted_origin import Origin, context_for

if TYPE_CHECKING:
    from tests.support.scripted_origin import Request


class Upstream:
    """The process, as the tests see it."""

    def __init__(self, certificate: tuple[str, str]) -> None:
        self._certificate = certificate
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self.bell = Bell()
        self.said: Counter[str] = Counter()
        self.port = 0
        self.stopped = False
        self._asked = False
        self._continued = asyncio.Event()

    async def start(self) -> None:
        """Start it, once for all the cells that share it."""
        if not self._asked:
            self._asked = True
            await self._spawn()
        await self.bell.until(lambda: self.port > 0, "port")

    async def _spawn(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.faults.frozen", *self._certificate,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=os.environ,
        )  # fmt: skip
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode().strip():
            if line.startswith("port "):
                self.port = int(line[5:])
            self.said[line] += 1
            self.bell.ring()

    async def freeze(self, seconds: float) -> None:
        """Stop it for so long; the others that ask for the same wait with the first."""
        assert self._process is not None
        if self.stopped:
            return
        self.stopped = True
        self._process.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(b"go\n")
        self._continued.set()

    async def continued(self) -> None:
        await asyncio.wait_for(self._continued.wait(), PATIENCE)

    async def close(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        await self._process.wait()
        if self._reader is not None:
            await self._reader


class FrozenCell(Cell):
    """A cell whose upstream stands still for a while."""

    def __init__(self, fault: str, moment: Moment, name: str, upstream: Upstream, seconds: float) -> None:
        super().__init__(fault, moment, name)
        self._upstream = upstream
        self._seconds = seconds

    async def open(self) -> str:
        await self._upstream.start()
        return f"https://localhost:{self._upstream.port}"

    async def _said(self, line: str) -> None:
        await self._upstream.bell.until(lambda: self._upstream.said[line] > 0, line)

    async def reach(self) -> None:
        client = await self.connect()
        if self.moment is Moment.BEFORE_SETTINGS:
            return  # it is stopped before the first byte
        if self.moment is Moment.IDLE:
            client.send(request_bytes("POST", f"{self.path}/first", BODY))
            assert (await client.response("POST")).status == 200
            return
        self.send(half=self.moment is Moment.HALF_SENT)
        await self._said(f"{'half' if self.moment is Moment.HALF_SENT else 'executed'} {self.path}")
        if self.moment is Moment.HALF_RECEIVED:
            await self.read_half()

    async def strike(self) -> None:
        await self._upstream.freeze(self._seconds)

    async def heal(self) -> None:
        await self._upstream.continued()

    async def _follow(self) -> None:
        await super()._follow()
        await pace(0.5)  # what lay in its socket while it was stopped is executed now, if it is
        self.executed[self.path] = self._upstream.said[f"executed {self.path}"]

    def resent(self) -> int:
        return max(0, self._upstream.said[f"request {self.path}"] - 1)

    async def close(self) -> None:
        await self._upstream.close()


# --- the process itself -----------------------------------------------------------------------------------------


async def _main(chain: str, key: str) -> None:
    loop = asyncio.get_running_loop()
    go = asyncio.Event()

    def say(line: str) -> None:
        print(line, flush=True)

    async def serve(request: Request) -> None:
        path = request.path.decode()
        say(f"request {path}")
        if path.endswith(Moment.HALF_SENT.name):
            await request.received(HALF)
            say(f"half {path}")
        await request.complete(within=PATIENCE)
        whole = answer_to(request.path)
        held = path.endswith((Moment.WAITING.name, Moment.DRAINING.name, Moment.HALF_RECEIVED.name))
        if path.endswith(Moment.HALF_RECEIVED.name):
            request.head(200, [(b"content-length", b"%d" % len(whole))])
            request.data(whole[:HALF])
        say(f"executed {path}")
        if held:
            await go.wait()
        if path.endswith(Moment.HALF_RECEIVED.name):
            request.data(whole[HALF:], end=True)
        else:
            request.respond(200, whole)

    origin = Origin(context_for((chain, key), ["h2"]), handler=serve)
    await origin.start()
    say(f"port {origin.port}")

    def on_line() -> None:
        sys.stdin.readline()
        go.set()

    loop.add_reader(sys.stdin.fileno(), on_line)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
