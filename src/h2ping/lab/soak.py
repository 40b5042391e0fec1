"""`h2ping lab soak`: the judge trace at 1:100 for minutes on end, over a path and an origin that break at random.

Theory of operation
-------------------
1. So many callers at a time, each with one call after the other; delays are drawn from the judge's and the fast
   calls' distributions. Some calls ask for a fault of their own, some are given up by their client. Each carries a
   key that is searched for in all that h2ping shows (log, admin pages, error answers), also while calls run.
2. Beside them `Chaos` (chaos.py) breaks connections, dials, names, trust, and the origin's process.
3. The proxy keeps its copies (`-memory-pressure keep`) under a tight limit, so nothing that was provably not
   processed has an excuse: a failure whose cause says so counts as lost. `Ledger` (ledger.py) holds the books.
4. Growth is judged between counts of the quiet process: after ten minutes (or half of a shorter run), then every
   few minutes, each after all calls ended (growth.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2ping.lab import growth
from h2ping.lab.certificate import Certificate
from h2ping.lab.chaos import Chaos
from h2ping.lab.client import LoadClient
from h2ping.lab.growth import WARM_MINUTES, Mark
from h2ping.lab.ledger import Ledger
from h2ping.lab.proxy import Proxy, resident_bytes
from h2ping.lab.relay import Relay
from h2ping.lab.report import Report, mebibytes
from h2ping.lab.rollout import PING_INTERVAL, PING_TIMEOUT
from h2ping.lab.trace import FAST, JUDGE, Scale
from h2ping.timers import ACCELERATOR_IDLE

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTS = (
    [("x-lab-refuse", "1")], [("x-lab-refuse", "2")], [("x-lab-goaway", "1")], [("x-lab-goaway", "2")],
    [("x-lab-half", "40")], [("x-lab-interim", "3")], [("x-lab-trailers", "1")], [("x-lab-early", "reset")],
    [("x-lab-early", "wait")], [("x-lab-size", "300000")],
    # RFC 9113 section 7, all but REFUSED_STREAM, which x-lab-refuse says while it is true.
    *([("x-lab-reset", str(code))] for code in (0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13)),
)  # fmt: skip
"""What a call with a fault of its own asks for."""
CUTS = ("fin", "rst")
ADMIN_PAGES = ("/metrics", "/connections", "/ready", "/live")
PATIENCE = 90.0
"""Of a client that does not mean to leave: far above anything that ends by itself."""
MARK_MINUTES = 5.0
ALL_KINDS_MINUTES = 10.0
"""Runs of at least so long have met every kind of chaos and fault."""


@dataclass(frozen=True)
class Plan:
    """Minutes are real; the path's times are divided by the scale."""

    minutes: float = 5.0
    callers: int = 120
    scale: Scale = Scale(100)  # noqa: RUF009 - frozen
    fault_share: float = 0.06
    cut_share: float = 0.001
    """Calls that take their whole connection down with them."""
    leave_share: float = 0.03
    chaos_every: float = 2.0
    max_memory: int = 4 << 20
    seed: int = 1

    def phases(self) -> list[float]:
        """Minutes at which there is a mark."""
        warm = min(self.minutes / 2, WARM_MINUTES)
        count = max(1, round((self.minutes - warm) / MARK_MINUTES))
        return [warm + (self.minutes - warm) * number / count for number in range(count + 1)]


class Soak:
    """One run."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self.tell = tell
        self.random = random.Random(plan.seed)
        self.ledger = Ledger(f"sk-canary-{secrets.token_hex(12)}")
        self.faults: Counter[str] = Counter()
        self.marks: list[Mark] = []
        self._started = 0.0

    async def run(self) -> Report:
        """Play it."""
        scale = self.plan.scale
        flags = [
            "--ping-interval", scale.flag(PING_INTERVAL), "--ping-timeout", scale.flag(PING_TIMEOUT),
            "--idle-limit", scale.flag(ACCELERATOR_IDLE), "--max-conns", "8", "--max-conn-age", "20s",
            "--max-memory", str(self.plan.max_memory), "--memory-pressure", "keep", "--queue-timeout", "60s",
            "--admin-listen", "127.0.0.1:0", "--log-level", "info", "--log-format", "json",
        ]  # fmt: skip
        certificate = Certificate()
        try:
            async with Relay(0, idle_cut=ACCELERATOR_IDLE, scale=scale) as relay:
                async with Chaos(relay, certificate, scale, self.plan.seed) as self.chaos:
                    program = ("-m", "h2ping.lab.census")
                    self.proxy = Proxy(relay.url, certificate.ca_file, *flags, program=program)
                    self.proxy.on_line = self.ledger.read
                    self.chaos.proxy = self.proxy
                    async with self.proxy:
                        self._started = time.monotonic()
                        for minute in self.plan.phases():
                            await self._phase(self._started + minute * 60)
                        metrics = await self.proxy.ask("/metrics")
                return self._report(metrics)  # the origin is gone: all that it executed is in the books
        finally:
            certificate.close()

    async def _phase(self, end: float) -> None:
        """Calls until `end`, then quiet, then a mark."""
        async with LoadClient(self.proxy.port) as client:
            progress = asyncio.ensure_future(self._tell_progress())
            try:
                callers = (self._caller(client, end) for _ in range(self.plan.callers))
                await asyncio.gather(self._break_things(end), *callers)
            finally:
                progress.cancel()
        if self.proxy.ended:
            raise self.proxy.obituary("h2ping died under load")
        self.marks.append(await self._mark())
        self.tell(f"  quiet: {self.marks[-1].words()}")

    async def _caller(self, client: LoadClient, end: float) -> None:
        while time.monotonic() < end and not self.proxy.ended:
            delays = JUDGE if self.random.random() < 0.4 else FAST
            fields = [
                ("x-lab-delay", f"{delays.at(self.random.random()):.3f}"),
                ("authorization", f"Bearer {self.ledger.canary}"),
            ]
            if self.random.random() < self.plan.cut_share:
                fields.append(("x-lab-cut", self.random.choice(CUTS)))
            elif self.random.random() < self.plan.fault_share:
                fault = self.random.choice(FAULTS)
                self.faults[": ".join(fault[0])] += 1
                fields += fault
            size = self.random.choice((200, 2000, 2000, 20_000, 200_000))
            leaves = self.random.random() < self.plan.leave_share
            name = self.ledger.next_call()
            outcome = await client.call(
                name,
                f"/{name}/v1/chat/completions?key={self.ledger.canary}",
                b'{"model":"judge","user":"%s","input":"%s"}' % (self.ledger.canary.encode(), b"x" * size),
                fields=fields,
                patience=self.random.random() * 2 if leaves else PATIENCE,
            )
            left = leaves and outcome.error == "timeout"
            self.ledger.note(outcome, left=left, distrust=self.chaos.distrust)
            if not outcome.lived and not left:
                await asyncio.sleep(self.random.random())  # as callers do; none hammers what is broken

    async def _break_things(self, end: float) -> None:
        while time.monotonic() < end and not self.proxy.ended:
            await asyncio.sleep(self.plan.chaos_every * (0.5 + self.random.random()))
            try:
                await self._break()
            except OSError:  # h2ping cannot be asked; when it is gone, that is the news
                if not self.proxy.ended:
                    raise
        await self.chaos.settle()

    async def _break(self) -> None:
        await self.chaos.strike()

    async def _search_pages(self) -> None:
        for page in ADMIN_PAGES:
            self.ledger.search(page, await self.proxy.ask(page))

    async def _mark(self) -> Mark:
        await self._search_pages()
        for _ in range(300):
            mark = await self._count()
            if not mark.left:
                break
            await asyncio.sleep(0.1)
        # Longer than the delay after which pages of the body memory go back.
        await asyncio.sleep(5.0)
        return await self._count(census=True)

    async def _count(self, *, census: bool = False) -> Mark:
        objects: dict[str, int] = {}
        proxy, pid = self.proxy, self.proxy.pid
        if census:
            seen = len(proxy.census)
            os.kill(pid, signal.SIGUSR1)
            await proxy.watch.until(lambda: len(proxy.census) > seen)
            objects = json.loads(proxy.census[-1])
        minute = (time.monotonic() - self._started) / 60
        return Mark(
            minute,
            self.ledger.calls,
            resident_bytes(pid),
            growth.descriptors(pid),
            objects,
            await proxy.state(),
        )

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(15.0)
            await self._search_pages()
            size = mebibytes(resident_bytes(self.proxy.pid))
            self.tell(f"  {self.ledger.calls} calls, {size}, {self.chaos.struck.total()} times chaos")

    def _report(self, metrics: str) -> Report:
        report = Report("soak")
        chaos = self.chaos
        self.ledger.check(report, metrics, chaos.books.executions)
        tricked = sum(impostor.arrived for impostor in chaos.impostors.values())
        report.claim("requests sent to who is not the upstream", 0, tricked, not tricked)
        breaches = chaos.books.breaches
        report.claim("protocol breached", 0, len(breaches), not breaches)
        report.claim("defects in the log", 0, len(self.proxy.defects), not self.proxy.defects)
        growth.check(report, self.marks)
        if self.plan.minutes >= ALL_KINDS_MINUTES:
            missed = [kind for kind in chaos.kinds if not chaos.struck[kind]]
            report.claim("kinds of chaos that never struck", "none", missed or "none", not missed)
            asked = len(self.faults)
            report.claim("kinds of fault that calls asked for", len(FAULTS), asked, asked == len(FAULTS))
        report.facts["chaos"] = dict(chaos.struck)
        report.facts["marks"] = "".join(f"\n          {mark.words()}" for mark in self.marks)
        if self.proxy.defects:
            report.facts["defects"] = list(self.proxy.defects)[:5]
        if breaches:
            report.facts["breaches"] = breaches[:5]
        return report


async def run(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Run it; `tell` gets a line now and then."""
    return await Soak(plan, tell).run()
