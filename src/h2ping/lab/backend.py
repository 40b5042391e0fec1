"""The lab's origin as a process of its own, for real signals: SIGTERM ends it gracefully, SIGSTOP freezes it.

Theory of operation
-------------------
1. The process (`python -m h2ping.lab.backend CHAIN_FILE SCALE`) says on its standard output what happens, a line each:
   `port N`, `executed ID`, `breach TEXT`, and `struck yes|no` as the answer to an order.
2. An order is a word on its standard input, a key of ORDERS. The end of its standard input ends it: no orphans.
3. On SIGTERM it closes its port, retires its connections (GOAWAY), and ends once they are gone or after GRACE.
4. `Books` outlive the processes: an id that two of them executed was executed twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING

from h2ping.lab import frames
from h2ping.lab.certificate import Leaf
from h2ping.lab.frames import Code, FrameType
from h2ping.lab.loop import new_loop
from h2ping.lab.origin import LabOrigin
from h2ping.lab.script import Script
from h2ping.lab.trace import Scale
from h2ping.lab.watch import Watch
from h2ping.timers import ALB_AGE, ALB_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from h2ping.lab.call import Call
    from h2ping.lab.session import Session

GRACE = 3.0
PATIENCE = 20.0
"""For what takes milliseconds on a machine that is not busy; a frozen process answers once it goes on."""


class Books:
    """What all the processes of a run did."""

    def __init__(self) -> None:
        self.executions: Counter[str] = Counter()
        self.breaches: list[str] = []

    @property
    def twice(self) -> list[str]:
        """Ids that were executed more than once."""
        return [name for name, count in self.executions.items() if count > 1]


class Backend:
    """One such process, as the run sees it."""

    def __init__(self, books: Books, chain_file: str, scale: Scale) -> None:
        self._books = books
        self._command = [sys.executable, "-m", "h2ping.lab.backend", chain_file, str(scale.factor)]
        self._process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]
        self._answers: list[str] = []
        self._asked = 0
        self._watch = Watch()
        self.port = 0

    async def start(self) -> None:
        """Return once it listens."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        self._reader = asyncio.ensure_future(self._read())
        await self._watch.until(lambda: self.port > 0, PATIENCE)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode().rstrip():
            word, _, rest = line.partition(" ")
            if word == "executed":
                self._books.executions[rest] += 1
            elif word == "breach":
                self._books.breaches.append(rest)
            elif word == "struck":
                self._answers.append(rest)
            elif word == "port":
                self.port = int(rest)
            self._watch.changed()

    async def order(self, word: str) -> bool:
        """Give it one of ORDERS; whether there was anything to strike."""
        assert self._process.stdin is not None
        self._asked += 1
        mine = self._asked
        self._process.stdin.write(f"{word}\n".encode())
        await self._watch.until(lambda: len(self._answers) >= mine, PATIENCE)
        return self._answers[mine - 1] == "yes"

    def send_signal(self, number: int) -> None:
        """SIGSTOP and SIGCONT, for instance."""
        self._process.send_signal(number)

    async def end(self) -> None:
        """SIGTERM; returns when it is gone and all that it said was read."""
        self._process.terminate()
        await asyncio.wait_for(self._process.wait(), PATIENCE)
        await self._reader


# --- the process ------------------------------------------------------------------------------------------------


def say(text: str) -> None:
    """To the run."""
    os.write(1, f"{text}\n".encode())


class Breaches(list[str]):
    """What clients did against RFC 9113, told at once."""

    def append(self, breach: str) -> None:
        say(f"breach {breach}")


class Told(LabOrigin):
    """An origin that tells what it executes."""

    def execute(self, call: Call) -> None:
        say(f"executed {call.steer.id}")
        super().execute(call)


def _raw(make: Callable[[Session], bytes]) -> Callable[[LabOrigin], bool]:
    """Write these bytes on some connection, in the middle of whatever happens there."""

    def strike(origin: LabOrigin) -> bool:
        if busy := [session for session in origin.sessions if session.streams]:
            session = random.choice(busy)
            session.send_raw(make(session))
        return bool(busy)

    return strike


def _cut_short(session: Session) -> bytes:
    """A frame that says 100 octets and has 10; FIN follows."""
    asyncio.get_running_loop().call_soon(session.close)
    return frames.frame(FrameType.HEADERS, 4, session.last_id, bytes(100))[:19]


def _retire(origin: LabOrigin) -> bool:
    if origin.sessions:
        random.choice(origin.sessions).retire()
    return bool(origin.sessions)


def _retire_all(origin: LabOrigin) -> bool:
    for session in list(origin.sessions):
        session.retire()
    return True


def _goaway(code: int, *, rising: bool = False) -> Callable[[LabOrigin], bool]:
    """In one step, no warning: what is under way towards us is refused, and stays so whatever is said later."""

    def strike(origin: LabOrigin) -> bool:
        if origin.sessions:
            session = random.choice(origin.sessions)
            session.goaway(session.last_id, code, b"lab")
            if rising and not session.closed:
                session.send_raw(frames.goaway(frames.MAX_STREAM_ID, code))
        return bool(origin.sessions)

    return strike


def _acknowledge(acknowledge: bool) -> Callable[[LabOrigin], bool]:
    def strike(origin: LabOrigin) -> bool:
        origin.script.ignore_pings = not acknowledge
        return True

    return strike


ORDERS: dict[str, Callable[[LabOrigin], bool]] = {
    "retire": _retire,
    "retire-all": _retire_all,
    "goaway": _goaway(Code.NO_ERROR),
    "goaway-with-an-error": _goaway(Code.INTERNAL_ERROR),
    "mute": _acknowledge(False),
    "unmute": _acknowledge(True),
    "truncated-frame": _raw(_cut_short),
    # Not as RFC 9113 section 6.8 has it, each in its own way.
    "goaway-short": _raw(lambda _: frames.frame(FrameType.GOAWAY, 0, 0, bytes(4))),
    "goaway-on-a-stream": _raw(lambda session: frames.frame(FrameType.GOAWAY, 0, session.last_id, bytes(8))),
    "goaway-rising": _goaway(Code.NO_ERROR, rising=True),
}
"""What a process can be told to do; each says whether it could."""


async def serve(chain_file: str, factor: float) -> None:
    """Until SIGTERM and a grace, or until the run is gone."""
    script = Script(max_age=ALB_AGE, max_requests=ALB_REQUESTS, keep_records=False)
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    origin = Told(script, scale=Scale(factor), certificate=Leaf(chain_file))
    origin.violations = Breaches()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with origin:
        say(f"port {origin.port}")

        async def obey() -> None:
            while word := (await orders.readline()).decode().strip():
                say(f"struck {'yes' if ORDERS[word](origin) else 'no'}")
            over.set()

        obeying = asyncio.ensure_future(obey())
        await over.wait()
        origin.stop_listening()
        _retire_all(origin)
        with contextlib.suppress(asyncio.TimeoutError):
            await origin.until(lambda: not origin.sessions, GRACE)
        obeying.cancel()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the run's, which ends this process too
    new_loop().run_until_complete(serve(sys.argv[1], float(sys.argv[2])))
