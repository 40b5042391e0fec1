"""`h2ping lab soak`: the judge trace at 1:100 for minutes on end, over a path and an origin that break at random.

Theory of operation
-------------------
1. So many callers at a time, each with one call after the other; delays are drawn from the judge's and the fast
   calls' distributions. Some calls ask for a fault of their own, some are given up by their client.
2. Beside them chaos: the relay cuts, swallows or stalls; connections are retired; PINGs go unanswered for a while;
   the origin is stopped as by SIGTERM (GOAWAY, a grace, the end) and started again.
3. The proxy keeps its copies (`-memory-pressure keep`) under a tight limit, so nothing that was provably not
   processed has an excuse: a failure whose cause says so counts as lost, unless nobody could be reached.
4. Growth is judged between two counts of the quiet process: one early, one at the end, each after all calls ended.
   Objects (tasks, timers, streams, exchanges), descriptors and resident memory must not be more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from h2ping.errors import CAUSES
from h2ping.lab.certificate import Certificate
from h2ping.lab.client import LoadClient, Outcome
from h2ping.lab.origin import LabOrigin
from h2ping.lab.proxy import Proxy, resident_bytes
from h2ping.lab.relay import Relay
from h2ping.lab.report import Report, mebibytes
from h2ping.lab.rollout import PING_INTERVAL, PING_TIMEOUT
from h2ping.lab.script import Script
from h2ping.lab.trace import FAST, JUDGE, Scale
from h2ping.timers import ACCELERATOR_IDLE, ALB_AGE

if TYPE_CHECKING:
    from collections.abc import Callable

NOT_PROCESSED = frozenset(
    ("goaway-refused", "stream-refused", "copy-not-kept", "connect-failed", "connect-timeout", "dns-failed",
     "tls-failed", "queue-full", "queue-timeout", "memory-timeout")
)  # fmt: skip
"""Causes that prove that the request was not processed: such a call should have been sent again until it lived."""
FAULTS = (
    [("x-lab-refuse", "1")], [("x-lab-refuse", "2")], [("x-lab-goaway", "1")], [("x-lab-goaway", "2")],
    [("x-lab-reset", "2")], [("x-lab-reset", "8")], [("x-lab-reset", "11")], [("x-lab-half", "40")],
    [("x-lab-interim", "3")], [("x-lab-trailers", "1")], [("x-lab-early", "reset")], [("x-lab-early", "wait")],
    [("x-lab-size", "300000")],
)  # fmt: skip
"""What a call with a fault of its own asks for."""
CUTS = ("fin", "rst")
UNREACHABLE = frozenset(("connect-failed", "connect-timeout"))
SETTLING = 2.0
"""So long after the origin is back a call may still learn that it was down (eight dials in vain)."""
GROWTH_BYTES = 12 << 20
"""Of resident memory that is no growth: allocators keep what they once had."""


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
    restart_every: float = 30.0
    downtime: float = 0.15
    """A quarter of a minute of the path. What h2ping gives up then, after eight dials, is told apart."""
    max_memory: int = 4 << 20
    warm_minutes: float = 10.0
    """The early count is taken after so long, or half way through a shorter run."""
    seed: int = 1


@dataclass
class Mark:
    """The quiet process, counted."""

    resident: int
    descriptors: int
    objects: dict[str, int]
    state: dict[str, Any]

    def words(self) -> str:
        """For a line."""
        names = ", ".join(f"{count} {name}" for name, count in self.objects.items())
        return f"{mebibytes(self.resident)}, {self.descriptors} descriptors; {names}"


class Soak:
    """One run."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self.tell = tell
        self.random = random.Random(plan.seed)
        self.outcomes: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.undocumented: Counter[str] = Counter()
        self.chaos: Counter[str] = Counter()
        self.marks: list[Mark] = []
        self.unreachable = 0
        """Answers that say, rightly, that the origin was down."""
        self._down_until = 0.0
        self._calls = 0

    async def run(self) -> Report:
        """Play it."""
        plan, scale = self.plan, self.plan.scale
        script = Script(max_age=ALB_AGE, max_requests=10_000, keep_records=False)
        flags = [
            "--ping-interval", scale.flag(PING_INTERVAL), "--ping-timeout", scale.flag(PING_TIMEOUT),
            "--idle-limit", scale.flag(ACCELERATOR_IDLE), "--max-conns", "8", "--max-conn-age", "20s",
            "--max-memory", str(plan.max_memory), "--memory-pressure", "keep", "--queue-timeout", "60s",
            "--admin-listen", "127.0.0.1:0", "--log-level", "info",
        ]  # fmt: skip
        certificate = Certificate()
        try:
            async with LabOrigin(script, scale=scale, certificate=certificate) as self.origin:
                async with Relay(self.origin.port, idle_cut=ACCELERATOR_IDLE, scale=scale) as self.relay:
                    program = ("-m", "h2ping.lab.census")
                    async with Proxy(
                        self.relay.url, certificate.ca_file, *flags, program=program
                    ) as self.proxy:
                        started = time.monotonic()
                        seconds = plan.minutes * 60
                        await self._phase(started + min(seconds / 2, plan.warm_minutes * 60))
                        await self._phase(started + seconds)
                        causes = await self._causes()
                    return self._report(causes)
        finally:
            certificate.close()

    async def _phase(self, end: float) -> None:
        """Calls until `end`, then quiet, then a count."""
        async with LoadClient(self.proxy.port) as client:
            progress = asyncio.ensure_future(self._tell_progress())
            try:
                callers = (self._caller(client, end) for _ in range(self.plan.callers))
                await asyncio.gather(self._break_things(end), *callers)
            finally:
                progress.cancel()
        if self.proxy.ended:
            raise self.proxy.obituary("h2ping died under load")
        await self._until_quiet()
        self.marks.append(await self._mark())
        self.tell(f"  quiet: {self.marks[-1].words()}")

    async def _until_quiet(self) -> None:
        for _ in range(200):
            state = await self._state()
            if not state["instances"][0]["requests"] and not state["instances"][0]["clients"]:
                break
            await asyncio.sleep(0.1)
        # Longer than the delay after which pages of the body memory go back, and than an idle connection lives.
        await asyncio.sleep(5.0)

    async def _caller(self, client: LoadClient, end: float) -> None:
        while time.monotonic() < end and not self.proxy.ended:
            delays = JUDGE if self.random.random() < 0.4 else FAST
            fields = [
                ("x-lab-delay", f"{delays.at(self.random.random()):.3f}"),
                ("authorization", "Bearer lab"),
            ]
            if self.random.random() < self.plan.cut_share:
                fields.append(("x-lab-cut", self.random.choice(CUTS)))
            elif self.random.random() < self.plan.fault_share:
                fields += self.random.choice(FAULTS)
            size = self.random.choice((200, 2000, 2000, 20_000, 200_000))
            leaves = self.random.random() < self.plan.leave_share
            patience = self.random.random() * 2 if leaves else 90.0
            self._calls += 1
            outcome = await client.call(
                f"soak-{self._calls}", body=b'{"model":"judge","input":"%s"}' % (b"x" * size), fields=fields,
                patience=patience,
            )  # fmt: skip
            self._note(outcome, leaves=leaves)

    def _note(self, outcome: Outcome, *, leaves: bool) -> None:
        words = "left" if leaves and outcome.error == "timeout" else outcome.words
        self.outcomes[words] += 1
        if outcome.lived or words == "left":
            return
        if outcome.cause in UNREACHABLE and time.monotonic() - self._down_until < SETTLING:
            self.unreachable += 1
        elif outcome.cause in NOT_PROCESSED:
            self.lost[words] += 1
        cut = outcome.status == 200 and outcome.error in ("closed", "reset")
        if not cut and outcome.cause not in CAUSES:
            self.undocumented[words] += 1

    # --- chaos ---

    async def _break_things(self, end: float) -> None:
        restart = time.monotonic() + self.plan.restart_every
        while time.monotonic() < end and not self.proxy.ended:
            await asyncio.sleep(self.plan.chaos_every * (0.5 + self.random.random()))
            if time.monotonic() >= restart:
                await self._restart()
                restart = time.monotonic() + self.plan.restart_every
                continue
            kind = self.random.choice(("retire", "retire", "cut", "black hole", "stall", "no acks", "goaway"))
            self.chaos[kind] += 1
            await self._break(kind)

    async def _break(self, kind: str) -> None:
        links = list(self.relay.links)
        sessions = self.origin.sessions
        if kind == "retire" and sessions:
            self.random.choice(sessions).retire()
        elif kind == "goaway" and sessions:
            session = self.random.choice(sessions)
            session.goaway(session.last_id, 0)
        elif kind == "cut" and links:
            self.random.choice(links).end(self.random.choice(CUTS))
        elif kind == "black hole" and links:
            self.random.choice(links).end("blackhole")
        elif kind == "stall":
            self.relay.stall()
            await asyncio.sleep(self.random.random())
            self.relay.resume()
        elif kind == "no acks":
            self.origin.script.ignore_pings = True
            await asyncio.sleep(self.random.random())
            self.origin.script.ignore_pings = False

    async def _restart(self) -> None:
        """As a balanced server does it on SIGTERM: no new connection, GOAWAY, a grace, the end; then a new one."""
        self.chaos["restart"] += 1
        for session in list(self.origin.sessions):
            session.retire()
        await asyncio.sleep(self.random.random() * 3)
        self._down_until = float("inf")
        await self.origin.stop()
        await asyncio.sleep(self.plan.downtime)
        await self.origin.start()
        self._down_until = time.monotonic()

    # --- books ---

    async def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(await self.proxy.ask("/connections"))
        return state

    async def _mark(self) -> Mark:
        seen = len(self.proxy.census)
        os.kill(self.proxy.pid, signal.SIGUSR1)
        state = await self._state()
        await self.proxy.watch.until(lambda: len(self.proxy.census) > seen)
        pid = self.proxy.pid
        return Mark(resident_bytes(pid), _descriptors(pid), json.loads(self.proxy.census[-1]), state)

    async def _causes(self) -> Counter[str]:
        causes: Counter[str] = Counter()
        for line in (await self.proxy.ask("/metrics")).splitlines():
            if line.startswith("h2ping_request_failures_total{"):
                labels, _, value = line.rpartition(" ")
                causes[labels.partition('cause="')[2].partition('"')[0]] += int(float(value))
        return causes

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(15.0)
            size = mebibytes(resident_bytes(self.proxy.pid))
            self.tell(f"  {self._calls} calls, {self.origin.waiting} wait, {size}, chaos {dict(self.chaos)}")

    def _report(self, causes: Counter[str]) -> Report:
        report = Report("soak")
        early, late = self.marks
        lived = self.outcomes["200"]
        report.claim("calls that lived", "most", f"{lived} of {self._calls}", lived > self._calls * 0.8)
        report.claim("lost though not processed", 0, dict(self.lost) or 0, not self.lost)
        twice = len(self.origin.twice)
        report.claim("executed twice", 0, twice, not twice)
        report.claim(
            "failures without a documented cause", 0, dict(self.undocumented) or 0, not self.undocumented
        )
        unknown = set(causes) - set(CAUSES) or causes["internal-error"]
        report.claim("causes that are not in docs/causes.md", 0, unknown or 0, not unknown)
        violations = len(self.origin.violations)
        report.claim("protocol breached", 0, violations, not violations)
        report.claim("defects in the log", 0, len(self.proxy.defects), not self.proxy.defects)
        instance = late.state["instances"][0]
        left = (instance["requests"], instance["waiting"], late.state["memory"]["used"])
        report.claim("requests, waiting, memory used at the end", (0, 0, 0), left, left == (0, 0, 0))
        grown = {
            name: (early.objects.get(name, 0), count)
            for name, count in late.objects.items()
            if count > early.objects.get(name, 0) + (200 if name == "all" else 3)
        }
        report.claim("objects that grew (early, end)", "none", grown or "none", not grown)
        more = late.descriptors - early.descriptors
        report.claim("more descriptors at the end", "at most 4", more, more <= 4)
        size = late.resident - early.resident
        report.claim("resident memory grew by", f"at most {mebibytes(GROWTH_BYTES)}", mebibytes(size),
                     size <= GROWTH_BYTES)  # fmt: skip
        report.facts = {
            "outcomes": dict(self.outcomes.most_common()),
            "causes": dict(causes),
            "told that the origin was down": self.unreachable,
            "chaos": dict(self.chaos),
            "early": early.words(),
            "end": late.words(),
            "connections": self.origin.connections,
            "PINGs": self.origin.pings,
        }
        if self.proxy.defects:
            report.facts["defects"] = list(self.proxy.defects)[:5]
        if violations:
            report.facts["breaches"] = self.origin.violations[:5]
        return report


def _descriptors(pid: int) -> int:
    """How many a process has; 0 where there is no /proc."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


async def run(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Run it; `tell` gets a line now and then."""
    return await Soak(plan, tell).run()
