"""Several processes behind one listen address (`-workers N`).

Theory of operation
-------------------
1. The parent binds the listeners, once; every worker accepts from the same sockets, so a worker that dies takes no
   waiting connection with it.
2. A worker is the whole proxy with its own pool and its share of the memory limit, of the connections and of the
   queue: what is set holds for all of them together.
3. A worker that dies is replaced, at once the first time and after a growing delay if it dies again soon or cannot be
   started; the line in the log says what it took with it. While none listens the probe says not ready.
4. Signals, the ready file, systemd, probes and metrics are the parent's. A worker says on its standard output when
   it listens and, every second, its state and counts; what a dead worker had counted stays counted.
5. Workers end with their parent, however it ends.

The settings come to a worker pickled on its standard input: parent and worker are the same program.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import signal
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from h2ping import __version__, lifecycle, log
from h2ping._fast import IMPLEMENTATION
from h2ping.admin import Admin
from h2ping.clock import LoopClock
from h2ping.errors import ConfigError
from h2ping.metrics import Metrics
from h2ping.server import STOP_SIGNALS, Server, bind, run_loop
from h2ping.upstream.dial import tls_context

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence

    from h2ping.config import Settings

SNAPSHOT_EVERY = 1.0
KILL_AFTER = 5.0
"""Seconds past the grace until a worker that does not end is killed, as Gym's launcher does with us."""
HEALTHY_AFTER = 10.0
DELAY_MOST = 5.0
LINE_MOST_BYTES = 1 << 20


def serve_by_workers(instances: Sequence[Settings], on_listening: Callable[[], None]) -> int:
    """`server.serve` for `workers` above 1."""
    return run_loop(Supervisor(instances, on_listening).run)


def share_of(settings: Settings, workers: int) -> Settings:
    """What one of `workers` processes may use of an instance's limits."""
    return replace(
        settings,
        max_memory=settings.max_memory // workers,
        max_conns=settings.max_conns // workers,
        max_queue=settings.max_queue and max(1, settings.max_queue // workers),
        workers=1,
        ready_file="",
        admin_listen=None,
        exit_with_parent=True,
    )


class Worker:
    """One process, for as long as it lives."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.listens = False
        self.state: dict[str, Any] = {}
        self.counts: dict[str, Any] = {}

    @property
    def in_flight(self) -> int:
        """Requests, by its latest word."""
        return sum(instance["requests"] for instance in self.state.get("instances", ()))

    async def listen(self) -> bool:
        """Read until it listens. False: it ended before."""
        return await self._read_line() and self.listens

    async def follow(self) -> int:
        """Read until it ends. Its exit code; a signal's number below 0."""
        while await self._read_line():
            pass
        self.listens = False
        return await self.process.wait()

    async def _read_line(self) -> bool:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            return False
        said = json.loads(line)
        self.listens = True
        self.state, self.counts = said["state"], said["counts"]
        return True

    def send(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)


class Supervisor:
    """The parent."""

    def __init__(self, instances: Sequence[Settings], on_listening: Callable[[], None]) -> None:
        self._settings = instances
        self._main = instances[0]
        self._on_listening = on_listening
        self._sockets: list[socket.socket] = []
        self._workers: dict[int, Worker] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._admin: Admin | None = None
        self._draining = asyncio.Event()
        self._stop = asyncio.Event()
        self._past: list[dict[str, Any]] = []
        """Counts of workers that died."""
        self._grace = self._main.shutdown_grace

    async def run(self) -> int:
        """Start, replace what dies, stop. The exit code."""
        main = self._main
        if main.admin_listen:
            self._admin = Admin(main.admin_listen, self, self.state)
        admin = self._admin
        ready: lifecycle.ReadyFile | None = None
        watch: lifecycle.ParentWatch | None = None
        try:
            lifecycle.ignore_user_signals()
            if main.ready_file:
                lifecycle.forget_stale_ready_file(main.ready_file)
            if main.exit_with_parent:
                watch = lifecycle.exit_with_parent(self._on_parent_gone)
            for settings in self._settings:
                tls_context(settings)  # a CA file that cannot be used is told once, and not by every worker
            self._sockets = [bind(settings.listen) for settings in self._settings]
            if admin is not None:
                await admin.start()
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
            await asyncio.gather(*(self._start(number) for number in range(1, main.workers + 1)))
            for settings, sock in zip(self._settings, self._sockets, strict=True):
                log.listening(settings, settings.listen.with_port(sock.getsockname()[1]))
            self._on_listening()
            if admin is not None:
                log.note(f"probes and metrics on http://{admin.address}/")
            if main.ready_file:
                ready = lifecycle.ReadyFile(main.ready_file)
            if admin is not None:
                admin.ready = True
            lifecycle.notify("READY=1")
            await self._stop.wait()
            lifecycle.notify("STOPPING=1")
            if admin is not None:
                admin.ready = False
            await self._drain()
        finally:
            for keeper in self._keepers:
                keeper.cancel()
            for worker in self._workers.values():
                worker.send(signal.SIGKILL)
            for sock in self._sockets:
                sock.close()
            if admin is not None:
                await admin.close()
            if watch is not None:
                watch.close()
            if ready is not None:
                ready.remove()
        log.stopped()
        return 0

    def state(self) -> dict[str, Any]:
        """What /connections shows: the workers' states added up, with the connections of all."""
        return added([worker.state for worker in self._workers.values() if worker.state])

    def render(self, state: Mapping[str, Any] | None = None) -> str:
        """What /metrics shows: the counts of all workers, dead ones too."""
        metrics = Metrics(__version__, IMPLEMENTATION)
        for counts in (*self._past, *(worker.counts for worker in self._workers.values())):
            metrics.add(counts)
        return metrics.render(state)

    async def _start(self, number: int) -> None:
        """Raises ConfigError when the worker does not come up."""
        worker = await self._spawn(number)
        if not await worker.listen():
            code = await worker.process.wait()
            raise ConfigError("", f"worker {number} did not start: {how_it_ended(code)}; see the lines above")
        self._keepers.append(asyncio.get_running_loop().create_task(self._keep(worker)))

    async def _spawn(self, number: int) -> Worker:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "h2ping.workers",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            pass_fds=[sock.fileno() for sock in self._sockets],
            start_new_session=True, limit=LINE_MOST_BYTES,
        )  # fmt: skip
        settings = [share_of(each, self._main.workers) for each in self._settings]
        assert process.stdin is not None
        process.stdin.write(pickle.dumps((settings, [sock.fileno() for sock in self._sockets])))
        process.stdin.close()
        self._workers[number] = worker = Worker(number, process)
        return worker

    async def _keep(self, worker: Worker) -> None:
        """Replace the worker whenever it dies (rule 3), until a stop begins."""
        loop = asyncio.get_running_loop()
        delay = 0.0
        while True:
            begun = loop.time()
            code = await worker.follow()
            stopping = self._draining.is_set()
            if stopping and code == 0:
                return
            log.worker_died(
                worker.number, worker.process.pid, how_it_ended(code), worker.in_flight,
                replacing=not stopping,
            )  # fmt: skip
            self._past.append(worker.counts)
            worker.state, worker.counts = {}, {}
            if stopping:
                return
            self._tell_readiness()
            delay = 0.0 if loop.time() - begun > HEALTHY_AFTER else longer(delay)
            while not await self._replaced(worker.number, delay):
                if self._draining.is_set():
                    return
                delay = longer(delay)
            worker = self._workers[worker.number]
            if await worker.listen():
                log.worker_replaced(worker.number, worker.process.pid)
                self._tell_readiness()

    async def _replaced(self, number: int, delay: float) -> bool:
        """Whether there is a new worker after the delay."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._draining.wait(), delay)
            return False
        try:
            await self._spawn(number)
        except OSError as error:
            log.worker_not_started(number, error)
            return False
        return True

    def _tell_readiness(self) -> None:
        if self._admin is not None and not self._draining.is_set():
            self._admin.ready = any(worker.listens for worker in self._workers.values())

    async def _drain(self) -> None:
        in_flight = sum(worker.in_flight for worker in self._workers.values())
        log.draining(self._grace, in_flight)
        self._draining.set()
        for sock in self._sockets:
            sock.close()
        self._tell_workers()
        ended: asyncio.Future[Any] = asyncio.gather(*self._keepers, return_exceptions=True)
        self._stop.clear()
        again: asyncio.Future[Any] = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait(
            [ended, again], timeout=self._grace + KILL_AFTER, return_when=asyncio.FIRST_COMPLETED
        )
        if again.done():
            self._tell_workers()
            await asyncio.wait([ended], timeout=KILL_AFTER)
        again.cancel()

    def _tell_workers(self) -> None:
        for worker in self._workers.values():
            worker.send(signal.SIGTERM)

    def _on_signal(self) -> None:
        self._stop.set()

    def _on_parent_gone(self) -> None:
        log.warning("the parent process is gone")
        self._grace = 0.0
        self._draining.set()
        for worker in self._workers.values():
            worker.send(signal.SIGKILL)
        self._stop.set()


def longer(delay: float) -> float:
    """The next delay, in seconds, until a worker is started again."""
    return min(DELAY_MOST, delay * 2 or 0.1)


def how_it_ended(code: int) -> str:
    """A process's end in words."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def added(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several processes' states (server.state) as one: numbers added, lists joined, texts of the first."""
    total: dict[str, Any] = {}
    for key, first in states[0].items() if states else ():
        values = [state[key] for state in states]
        if key == "instances":
            total[key] = [added(list(each)) for each in zip(*values, strict=True)]
        elif isinstance(first, dict):
            total[key] = added(values)
        elif isinstance(first, list):
            total[key] = [one for value in values for one in value]
        elif isinstance(first, int):
            total[key] = sum(values)
        else:
            total[key] = first
    return total


# --- the worker's side ----------------------------------------------------------------------------


class Reporter:
    """Says on standard output what the worker is doing."""

    def __init__(self, server: Server, clock: LoopClock) -> None:
        self._server = server
        self._clock = clock
        self._pipe: asyncio.WriteTransport | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._pipe, _ = await loop.connect_write_pipe(asyncio.Protocol, sys.stdout.buffer)
        self.report()

    def report(self) -> None:
        assert self._pipe is not None
        # A parent that does not read gets the next word instead of a backlog of old ones.
        if not self._pipe.get_write_buffer_size():
            state, counts = self._server.snapshot()
            self._pipe.write(json.dumps({"state": state, "counts": counts}).encode() + b"\n")
        self._clock.call_later(SNAPSHOT_EVERY, self.report)


def main() -> int:
    """A worker: settings and listeners come from the parent."""
    settings, descriptors = pickle.loads(sys.stdin.buffer.read())
    sink = log.configure(settings[0].log_level, settings[0].log_format)
    try:
        return run_loop(lambda: _work(settings, descriptors))
    except ConfigError as error:
        log.failed(str(error))
        return error.exit_code
    except Exception as error:
        log.defect("a defect of h2ping ends a worker", error)
        return 1
    finally:
        sink.close()


async def _work(settings: list[Settings], descriptors: list[int]) -> int:
    import socket

    server = Server(settings, lambda: None, sockets=[socket.socket(fileno=each) for each in descriptors])
    return await server.run(Reporter(server, LoopClock(asyncio.get_running_loop())).open)


if __name__ == "__main__":
    raise SystemExit(main())
