"""What breaks during `h2ping lab soak`: one kind after the other, from a deck that is shuffled when it is empty.

Theory of operation
-------------------
1. A kind is an entry of `Chaos.kinds`; it strikes and heals within two seconds, which is well within what h2ping spends
   on dialling (eight dials, or its connect timeout), and says whether there was anything to strike.
2. What strikes dials takes the connections away first, by GOAWAY, so that somebody has to dial; it has struck when
   somebody did.
3. The origin is a process. SIGTERM means a rolling restart: its successor is up before, the port is closed for
   `downtime` (connects are refused), and what the old one still answers it has a grace for.
4. `distrust` says whether a false certificate or protocol may be complained of: while it is there, and until the last
   dial that met it is over.

DNS fails inside h2ping's process, where lab.census has its hand on the resolver.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from h2ping.lab.backend import ORDERS, Backend, Books
from h2ping.lab.origin import LabOrigin
from h2ping.lab.script import Script

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Self

    from h2ping.lab.certificate import Certificate
    from h2ping.lab.proxy import Proxy
    from h2ping.lab.relay import Link, Relay
    from h2ping.lab.trace import Scale

DOWNTIME = 0.15
"""A quarter of a minute of the path."""
SHORT = 0.1
"""For what fails calls at once."""
MOST_CONNECTIONS = 8
DISTRUST_LINGERS = 3.0
"""The pause after a failed dial is up to a second, and the dial that ends it takes its time on a busy machine."""
PARTS = ("mute", "unmute", "retire-all")
"""Orders that are parts of other kinds."""


class Chaos:
    """`async with`, between the relay and the proxy."""

    def __init__(self, relay: Relay, certificate: Certificate, scale: Scale, seed: int) -> None:
        self.relay = relay
        self.books = Books()
        self.struck: Counter[str] = Counter()
        self.proxy: Proxy
        self._random = random.Random(seed)
        self._scale = scale
        self._chain_file = certificate.write_chain()
        self._backend: Backend
        self._ending: list[asyncio.Task[None]] = []
        self._deck: list[str] = []
        self._distrust_until = 0.0
        self.impostors = {
            "false certificate": LabOrigin(Script(keep_records=False)),
            "no h2": LabOrigin(Script(alpn=("http/1.1",), keep_records=False), certificate=certificate),
        }
        self.kinds: dict[str, Callable[[], Awaitable[bool]]] = {
            "FIN": lambda: self._link(lambda: self._pick().end("fin")),
            "RST": lambda: self._link(lambda: self._pick().end("rst")),
            "black hole": lambda: self._link(lambda: self._pick().end("blackhole")),
            "half-close": lambda: self._link(lambda: self._pick().half_close()),
            "stalled writes": self._stall,
            "late acks": self._late_acks,
            "SIGTERM": self._restart,
            "SIGSTOP": self._freeze,
            "connect refused": lambda: self._outage(self.relay.refuse, self.relay.accept),
            "TLS stalls": lambda: self._outage(self._stall_new, self.relay.resume),
            "name not found": lambda: self._outage(self._toggle_names, self._toggle_names),
            "false certificate": lambda: self._impostor("false certificate"),
            "no h2": lambda: self._impostor("no h2"),
        }
        if sys.platform == "linux":
            self.kinds["connect hangs"] = lambda: self._outage(self.relay.hang, self.relay.accept)
        for order in ORDERS:
            if order not in PARTS:
                self.kinds[order] = lambda order=order: self._backend.order(order)  # type: ignore[misc]

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """The origin, and those that pretend to be it."""
        for impostor in self.impostors.values():
            await impostor.start()
        self._backend = await self._fresh()
        self.relay.target = self._backend.port

    async def stop(self) -> None:
        """All processes are gone, and all that they said is in the books."""
        await self._backend.end()
        await self.settle()
        for impostor in self.impostors.values():
            await impostor.stop()

    async def settle(self) -> None:
        """Wait for the processes that are ending."""
        await asyncio.gather(*self._ending)
        self._ending.clear()

    @property
    def distrust(self) -> bool:
        """Whether h2ping may say just now that the upstream cannot be trusted."""
        return time.monotonic() < self._distrust_until

    async def strike(self) -> None:
        """The next kind."""
        if not self._deck:
            self._deck = self._random.sample(list(self.kinds), len(self.kinds))
        kind = self._deck.pop()
        self.struck[kind] += await self.kinds[kind]()

    # --- the path ---

    async def _link(self, strike: Callable[[], None]) -> bool:
        if not self.relay.links:
            return False
        strike()
        return True

    def _pick(self) -> Link:
        return self._random.choice(list(self.relay.links))

    async def _stall(self) -> bool:
        self.relay.stall()
        await asyncio.sleep(self._random.random())
        self.relay.resume()
        return True

    def _stall_new(self) -> None:
        self.relay.stall_new = True

    # --- dials ---

    async def _outage(
        self, begin: Callable[[], object], heal: Callable[[], object], seconds: float = 1.5
    ) -> bool:
        before = await self._dialled()
        await _done(begin())
        await self._backend.order("retire-all")
        await asyncio.sleep(seconds * (0.5 + self._random.random() / 2))
        struck = await self._dialled() > before
        await _done(heal())
        return struck

    async def _impostor(self, name: str) -> bool:
        """Connections go one by one, until somebody dials: without any, whoever calls now is told at once."""
        self._distrust_until = float("inf")
        before = await self._dialled()
        honest, self.relay.target = self.relay.target, self.impostors[name].port
        struck = False
        for _ in range(MOST_CONNECTIONS):
            await self._backend.order("retire")
            await asyncio.sleep(SHORT)
            if struck := await self._dialled() > before:
                break
        self.relay.target = honest
        self._distrust_until = time.monotonic() + DISTRUST_LINGERS
        return struck

    def _toggle_names(self) -> None:
        os.kill(self.proxy.pid, signal.SIGUSR2)

    async def _dialled(self) -> int:
        return (await self.proxy.state())["instances"][0]["dialled"]  # type: ignore[no-any-return]

    # --- the origin's process ---

    async def _fresh(self) -> Backend:
        backend = Backend(self.books, self._chain_file, self._scale)
        await backend.start()
        return backend

    async def _restart(self) -> bool:
        successor = await self._fresh()
        self._ending.append(asyncio.ensure_future(self._backend.end()))
        await asyncio.sleep(DOWNTIME)
        self._backend = successor
        self.relay.target = successor.port
        return True

    async def _freeze(self) -> bool:
        self._backend.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(2 * self._random.random())
        finally:
            self._backend.send_signal(signal.SIGCONT)
        return True

    async def _late_acks(self) -> bool:
        await self._backend.order("mute")
        await asyncio.sleep(self._random.random())
        return await self._backend.order("unmute")


async def _done(result: object) -> None:
    if asyncio.iscoroutine(result):
        await result
