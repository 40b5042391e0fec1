"""Wiring, listeners, signals, and the order of starting and draining. Nothing per request.

Order of a start: check everything, bind every listener, then the ready files, then the log line.
Order of a stop: close the listeners, let requests finish under one deadline, cut the rest, close the upstream's
connections, remove the ready files, say `stopped`. A second signal stops at once.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
from typing import TYPE_CHECKING

from h2ping import __version__, lifecycle, log
from h2ping._fast import IMPLEMENTATION, Arena
from h2ping.admin import Admin
from h2ping.clock import Deadlines, LoopClock
from h2ping.downstream import ClientContext, make_client
from h2ping.errors import ConfigError
from h2ping.instance import Instance
from h2ping.memory import Memory
from h2ping.metrics import Metrics
from h2ping.upstream.connection import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from h2ping.config import Settings

BACKLOG = 8192
"""Connections that the kernel accepts for us while the loop is busy; a burst of thousands must not see SYN drops.
The kernel caps it at net.core.somaxconn."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def serve(instances: Sequence[Settings], on_listening: Callable[[], None] = lambda: None) -> int:
    """Run until a signal. Returns the exit code. Raises ConfigError for what cannot work.

    `on_listening` is called after the log line of that name, which is the first line of a good start.
    """
    import uvloop

    lifecycle.raise_file_limit()
    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(Server(instances, on_listening).run())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class Listener:
    """One instance, its listener and its clients."""

    def __init__(self, instance: Instance, clock: LoopClock) -> None:
        settings = instance.settings
        self.instance = instance
        self.address = str(settings.listen)
        self.context = ClientContext(
            settings=settings,
            exchanges=instance.make_exchange,
            head_deadlines=Deadlines(
                clock, settings.client_head_timeout, lambda client: client.on_head_timeout()
            ),
            idle_deadlines=Deadlines(
                clock, settings.client_idle_timeout, lambda client: client.on_idle_timeout()
            ),
            clients=set(),
            draining=False,
            program=settings.program,
            on_refused=instance.on_refused,
        )
        self._server: asyncio.Server | None = None

    async def bind(self) -> None:
        settings = self.instance.settings
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: make_client(self.context), settings.listen.host, settings.listen.port, backlog=BACKLOG
            )
        except OSError as error:
            reason = (
                "address already in use" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
            )
            holder = lifecycle.port_holder(settings.listen) if error.errno == errno.EADDRINUSE else None
            held = f" (held by {holder})" if holder else ""
            raise ConfigError("", log.cannot_bind(settings.listen, reason + held)) from None
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        """Accept no more; idle clients are let go."""
        self.context.draining = True
        if self._server is not None:
            self._server.close()
        for client in list(self.context.clients):
            client.on_drain()

    def cut_clients(self) -> None:
        for client in list(self.context.clients):
            client.abort()


class Server:
    """The process: one or more instances, one memory limit."""

    def __init__(self, instances: Sequence[Settings], on_listening: Callable[[], None]) -> None:
        self._on_listening = on_listening
        self._settings = instances
        self._main = instances[0]
        self._stop = asyncio.Event()
        self._signals = 0
        self._grace = self._main.shutdown_grace

    async def run(self) -> int:
        """Start, wait for a signal, drain. The exit code."""
        main = self._main
        clock = LoopClock(asyncio.get_running_loop())
        metrics = Metrics(__version__, IMPLEMENTATION)
        memory = Memory(
            Arena(main.max_memory), clock, main.queue_timeout, keep=main.memory_pressure == "keep"
        )
        listeners = [
            Listener(Instance(settings, clock, memory, metrics.instance(settings.name)), clock)
            for settings in self._settings
        ]
        admin = (
            Admin(main.admin_listen, metrics, lambda: state(listeners, memory, clock))
            if main.admin_listen
            else None
        )
        ready: lifecycle.ReadyFile | None = None
        watch: lifecycle.ParentWatch | None = None
        try:
            if main.exit_with_parent:
                watch = lifecycle.exit_with_parent(self._on_parent_gone)
            for listener in listeners:
                await listener.bind()
            if admin is not None:
                await admin.start()
            self._watch_signals()
            for listener in listeners:
                log.listening(listener.instance.settings, listener.address)
            if IMPLEMENTATION != "compiled":
                log.plain_engine()
            self._on_listening()
            if admin is not None:
                log.note(f"probes and metrics on http://{admin.address}/")
            if main.ready_file:
                ready = lifecycle.ReadyFile(main.ready_file)
            if admin is not None:
                admin.ready = True
            lifecycle.notify("READY=1")
            _settle_heap()
            await self._stop.wait()
            lifecycle.notify("STOPPING=1")
            if admin is not None:
                admin.ready = False
            await self._drain(listeners)
        finally:
            for listener in listeners:
                listener.close()
            if admin is not None:
                await admin.close()
            memory.close()
            if watch is not None:
                watch.close()
            if ready is not None:
                ready.remove()
        log.stopped(main)
        return 0

    async def _drain(self, listeners: Sequence[Listener]) -> None:
        grace = self._grace
        log.draining(self._main, grace, sum(len(listener.instance.exchanges) for listener in listeners))
        for listener in listeners:
            listener.close()
        self._stop.clear()
        again = asyncio.ensure_future(self._stop.wait())
        empty = asyncio.ensure_future(_until_empty(listeners))
        await asyncio.wait([empty, again], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not empty.done():
            why = "a second signal" if again.done() else None
            cut = sum(listener.instance.cut_all() for listener in listeners)
            log.drain_incomplete(self._main, cut, grace, why)
        again.cancel()
        await empty
        # The last responses leave with the client connections that carry them.
        await asyncio.gather(*(self._close_instance(listener) for listener in listeners))

    async def _close_instance(self, listener: Listener) -> None:
        await listener.instance.close()
        for _ in range(10):
            if not any(client.pending_bytes for client in listener.context.clients):
                break
            await asyncio.sleep(0.02)
        listener.cut_clients()

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: log.loop_exception(context))
        for number in STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, or a job put in the background
                loop.add_signal_handler(number, self._request_stop)

    def _on_parent_gone(self) -> None:
        log.warning("the parent process is gone")
        self._grace = 0.0
        self._request_stop()

    def _request_stop(self) -> None:
        self._signals += 1
        if self._signals > 2:
            os._exit(0)
        self._stop.set()


async def _until_empty(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        await listener.instance.until_empty()


def state(listeners: Sequence[Listener], memory: Memory, clock: LoopClock) -> dict[str, object]:
    """What /connections shows."""
    now = clock.now()
    return {
        "memory": {
            "limit": memory.arena.limit,
            "used": memory.arena.used,
            "resident": memory.arena.resident,
            "waiting": memory.waiting,
            "copies_given_up": memory.given_up,
        },
        "instances": [
            {
                "name": listener.instance.settings.name,
                "listen": listener.address,
                "upstream": listener.instance.settings.upstream.url,
                "clients": len(listener.context.clients),
                "requests": len(listener.instance.exchanges),
                "waiting": listener.instance.pool.waiting,
                "dialled": listener.instance.pool.dialled,
                "dials_failed": listener.instance.pool.dials_failed,
                "connections": [
                    describe(connection, now) for connection in listener.instance.pool.connections
                ],
            }
            for listener in listeners
        ],
    }


def _settle_heap() -> None:
    """A full collection over a large heap takes tens of milliseconds: what lives for ever is left out of it."""
    gc.collect()
    gc.freeze()
