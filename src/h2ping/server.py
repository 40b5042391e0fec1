"""Wiring, listeners, signals, and the order of starting and draining. Nothing per request.

Order of a start: check everything, bind every listener, then the ready files, then the log line.
Order of a stop: close the listeners, let requests finish and clients read their responses under one deadline, cut
the rest, close the upstream's connections, remove the ready files, say `stopped`. A second signal stops at once.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from typing import TYPE_CHECKING, Any

from h2ping import __version__, lifecycle, log
from h2ping._fast import IMPLEMENTATION, Arena
from h2ping.admin import Admin
from h2ping.clock import Deadlines, LoopClock
from h2ping.door import Door
from h2ping.downstream import ending
from h2ping.downstream.client import Client
from h2ping.downstream.context import ClientContext
from h2ping.downstream.protocol import make_client
from h2ping.instance import Instance
from h2ping.memory import Memory, share_of_bodies
from h2ping.metrics import Metrics
from h2ping.packing import zstd_packer
from h2ping.upstream.connection import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from h2ping.address import Address
    from h2ping.config import Settings

BACKLOG = 8192
"""Connections that the kernel accepts for us while the loop is busy; a burst of thousands must not see SYN drops.
The kernel caps it at net.core.somaxconn."""
CUT_PATIENCE = 0.2
"""Seconds after the grace in which the answers to what was cut may leave: they are short, and clients are on this
machine."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

LAST_READS = 5
LAST_READ_PAUSE = 0.01
"""Turns of the loop, and seconds between them, for clients that wrote before the signal came. A busy loop may be
late, so it is turns that count."""
HALF_HEAD_READS = 100
"""As many, about a second, for the rest of a request's head."""


def serve(instances: Sequence[Settings], on_listening: Callable[[], None] = lambda: None) -> int:
    """Run until a signal. Returns the exit code. Raises ConfigError for what cannot work.

    `on_listening` is called after the log line of that name, which is the first line of a good start.
    """

    async def run() -> int:
        return await Server(instances, on_listening).run()

    return run_loop(run)


def run_loop(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `work` to its end on a uvloop of its own."""
    import uvloop

    lifecycle.leave_no_core()
    lifecycle.raise_file_limit()
    loop = uvloop.new_event_loop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(work())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def bind(listen: Address) -> socket.socket:
    """A listening socket. Raises ConfigError, with the words `cannot bind`, when there is none to be had."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    both = listen.host in ("", "::") and socket.has_dualstack_ipv6()  # as Go binds them
    try:
        sock = socket.create_server(
            (listen.host, listen.port),
            family=socket.AF_INET6 if both else family,
            backlog=BACKLOG,
            dualstack_ipv6=both,
        )
    except OSError as error:
        raise lifecycle.cannot_bind(listen, error) from None
    sock.setblocking(False)
    return sock


class Clients(set[Client]):
    """Those of one listener, and the news when one goes."""

    def __init__(self) -> None:
        super().__init__()
        self._left = asyncio.Event()

    def discard(self, client: object) -> None:
        """The client's connection is gone."""
        super().discard(client)
        self._left.set()

    def unread(self) -> int:
        """How many have not taken the end of a response yet."""
        return sum(
            1
            for client in self
            if client.exchange is None and (client.pending_bytes or ending.is_delivering(client))
        )

    async def until_heads_are_whole(self) -> None:
        """Return soon: who was writing a head may finish it, and is told when it took too long."""
        for _ in range(HALF_HEAD_READS):
            if not any(client.head_timed for client in self):
                return
            await asyncio.sleep(LAST_READ_PAUSE)
        for client in list(self):
            if client.head_timed:
                client.on_head_timeout()

    async def until_read(self) -> None:
        """Return once all have; while draining each goes when it has."""
        while self.unread():
            self._left.clear()
            await self._left.wait()


class Listener:
    """One instance, its listener and its clients."""

    def __init__(self, instance: Instance, clock: LoopClock) -> None:
        settings = instance.settings
        self.instance = instance
        self.address = str(settings.listen)
        self.clients = Clients()
        self.context = ClientContext(
            settings=settings,
            exchanges=instance.make_exchange,
            head_deadlines=Deadlines(
                clock, settings.client_head_timeout, lambda client: client.on_head_timeout()
            ),
            idle_deadlines=Deadlines(
                clock, settings.client_idle_timeout, lambda client: client.on_idle_timeout()
            ),
            clients=self.clients,
            on_refused=instance.on_refused,
        )

    async def listen(self, sock: socket.socket, most: int) -> None:
        """Take clients from a socket that `bind` made, `most` at a time."""
        self.address = str(self.instance.settings.listen.with_port(sock.getsockname()[1]))
        self.context.door = Door(lambda: make_client(self.context), most, BACKLOG)
        await self.context.door.open(sock)

    async def refuse(self) -> None:
        """Accept no more, but who has connected already."""
        if self.context.door is not None:
            await self.context.door.last_call()
        for _ in range(LAST_READS):
            await asyncio.sleep(0)  # whom the loop has accepted is let in, too
        self.context.draining = True  # responses say so from now on

    def close(self) -> None:
        """Accept no more; idle clients are let go."""
        self.context.draining = True
        if self.context.door is not None:
            self.context.door.close()
        for client in list(self.clients):
            client.on_drain()

    @property
    def in_flight(self) -> int:
        """Requests without an outcome, and responses that their clients are still reading."""
        return len(self.instance.exchanges) + self.clients.unread()

    async def until_finished(self) -> None:
        """Return once every request has its outcome and every client its response."""
        await self.clients.until_heads_are_whole()
        await self.instance.until_empty()
        await self.clients.until_read()

    def cut_clients(self) -> None:
        for client in list(self.clients):
            client.abort()


class Server:
    """The process: one or more instances, one memory limit."""

    def __init__(
        self,
        instances: Sequence[Settings],
        on_listening: Callable[[], None],
        sockets: Sequence[socket.socket] | None = None,
    ) -> None:
        """`sockets`: those of a parent that binds, logs and signals readiness for several workers."""
        self._on_listening = on_listening
        self._sockets = sockets
        self._settings = instances
        self._main = main = instances[0]
        self._clock = LoopClock(asyncio.get_running_loop())
        self._metrics = Metrics(__version__, IMPLEMENTATION)
        self._memory = Memory(
            Arena(share_of_bodies(main.max_memory)), self._clock, main.queue_timeout,
            keep=main.memory_pressure == "keep", limit=main.max_memory,
            packer=zstd_packer() if main.compress_waiting_bodies else None,
        )  # fmt: skip
        self._listeners: list[Listener] = []
        self._stop = asyncio.Event()
        self._grace = self._main.shutdown_grace

    async def run(self, on_ready: Callable[[], Awaitable[None]] | None = None) -> int:
        """Start, wait for a signal, drain. The exit code. `on_ready` is awaited once clients are taken."""
        main, clock = self._main, self._clock
        admin = Admin(main.admin_listen, self._metrics, self.state) if main.admin_listen else None
        ready: lifecycle.ReadyFile | None = None
        watch: lifecycle.ParentWatch | None = None
        try:
            lifecycle.ignore_user_signals()
            if main.ready_file:
                lifecycle.forget_stale_ready_file(main.ready_file)
            if main.exit_with_parent:
                watch = lifecycle.exit_with_parent(self._on_parent_gone)
            self._listeners = [
                Listener(Instance(each, clock, self._memory, self._metrics.instance(each.name)), clock)
                for each in self._settings
            ]
            sockets = self._sockets or [bind(each.listen) for each in self._settings]
            most = lifecycle.room_for_clients(sum(each.max_conns for each in self._settings)) // len(sockets)
            for listener, sock in zip(self._listeners, sockets, strict=True):
                await listener.listen(sock, most)
            if admin is not None:
                await admin.start()
            self._watch_signals()
            if self._sockets is None:
                self._say_listening(admin)
            if main.ready_file:
                ready = lifecycle.ReadyFile(main.ready_file)
            if admin is not None:
                admin.ready = True
            if on_ready is not None:
                await on_ready()
            lifecycle.notify("READY=1")
            _settle_heap()
            await self._stop.wait()
            lifecycle.notify("STOPPING=1")
            if admin is not None:
                admin.ready = False
            await self._drain(self._listeners)
        finally:
            for listener in self._listeners:
                listener.close()
            if admin is not None:
                await admin.close()
            self._memory.close()
            if watch is not None:
                watch.close()
            if ready is not None:
                ready.remove()
        if self._sockets is None:
            log.stopped()
        return 0

    def state(self) -> dict[str, object]:
        """What /connections shows."""
        return state(self._listeners, self._memory, self._clock)

    def snapshot(self) -> tuple[dict[str, object], dict[str, object]]:
        """State and counts, for a parent that adds up those of several workers."""
        return self.state(), self._metrics.counts()

    def _say_listening(self, admin: Admin | None) -> None:
        for listener in self._listeners:
            log.listening(listener.instance.settings, listener.address)
        if IMPLEMENTATION != "compiled":
            log.plain_engine()
        self._on_listening()
        if admin is not None:
            log.note(f"probes and metrics on http://{admin.address}/")

    async def _drain(self, listeners: Sequence[Listener]) -> None:
        grace = self._grace
        self._stop.clear()
        await asyncio.gather(*(each.refuse() for each in listeners))
        for _ in range(LAST_READS):
            # What was written before the signal is a request in flight, also where it is not read yet.
            await asyncio.sleep(LAST_READ_PAUSE)
        if self._sockets is None:
            log.draining(grace, sum(each.in_flight for each in listeners))
        for listener in listeners:
            listener.close()
        again = asyncio.ensure_future(self._stop.wait())
        finished = asyncio.ensure_future(_until_finished(listeners))
        await asyncio.wait([finished, again], timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not finished.done():
            why = "a second signal" if again.done() else None
            unread = sum(each.clients.unread() for each in listeners)
            cut = unread + sum(each.instance.cut_all() for each in listeners)
            log.drain_incomplete(cut, grace, why)
            await asyncio.wait([finished], timeout=CUT_PATIENCE)
            finished.cancel()
        again.cancel()
        # Side by side: an upstream that does not answer takes its time, and there may be hundreds.
        await asyncio.gather(*(each.instance.close() for each in listeners))
        for each in listeners:
            each.cut_clients()

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
        self._stop.set()


async def _until_finished(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        await listener.until_finished()


def state(listeners: Sequence[Listener], memory: Memory, clock: LoopClock) -> dict[str, object]:
    """What /connections shows."""
    now = clock.now()
    return {
        "memory": {
            "limit": memory.limit,
            "used": memory.arena.used,
            "unread": memory.unread,
            "resident": memory.arena.resident,
            "waiting": memory.waiting,
            "copies_given_up": memory.given_up,
            "copies_compressed": memory.packed,
            "readers_cut_off": memory.cut_off,
        },
        "instances": [
            {
                "name": listener.instance.settings.name,
                "listen": listener.address,
                "upstream": listener.instance.settings.upstream.url,
                "clients": len(listener.clients),
                "requests": len(listener.instance.exchanges),
                "waiting": listener.instance.pool.waiting,
                "dialled": listener.instance.pool.dialled,
                "dials_failed": listener.instance.pool.dials_failed,
                "accept_pauses": listener.context.door.pauses if listener.context.door is not None else 0,
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
