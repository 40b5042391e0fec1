"""`h2ping lab trace`: a run's worth of judge calls over a path that does its worst, in scaled time.

A burst of calls arrives at once, as a rollout step sends them, more than the connections have streams for;
the rest arrives evenly, so that connections grow old under load. On the way the origin retires connections at
the balancer's age, refuses every n-th request by GOAWAY and every m-th by REFUSED_STREAM, and the relay cuts
what is silent for 340 s. Not one call may be lost, not one executed twice.

With `rush` so many of the fast calls come before, a connection's worth of streams at a time over an origin that does
not retire by age yet: that connection lives until h2ping's limit of requests, which must come before the balancer's.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2ping.lab.client import LoadClient, Outcome
from h2ping.lab.origin import LabOrigin
from h2ping.lab.proxy import Proxy
from h2ping.lab.relay import Relay
from h2ping.lab.report import Report
from h2ping.lab.script import Script
from h2ping.lab.trace import FAST, JUDGE, Scale, quantile
from h2ping.timers import ACCELERATOR_IDLE, ALB_AGE, ALB_REQUESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

RUSH_AT_ONCE = 16
"""What one connection takes before another is opened (--streams-per-conn)."""
COUNT_LIMIT = 9000
"""Requests after which h2ping retires a connection; up to a tenth less."""
PING_INTERVAL = 60.0
PING_TIMEOUT = 300.0
"""Twenty times the default: at 1:100 the real 15 s would be 150 ms, which a busy machine needs for itself."""

BODY = b'{"model":"judge","messages":[{"role":"user","content":"%s"}]}' % (b"Which answer is better? " * 80)


@dataclass(frozen=True)
class Plan:
    """The run, in seconds of the path."""

    calls: int = 600
    fast: int = 0
    """How many of the calls do not think (p50 1 s)."""
    rush: int = 0
    """How many of the fast ones come before the others."""
    scale: Scale = Scale(100)  # noqa: RUF009 - frozen
    at_once: int = 300
    spread: float = 4200.0
    """Time over which the rest arrives."""
    max_conns: int = 2
    """Two connections of 128 streams are less than the first burst: the limit is met, and calls queue."""
    goaway_every: int = 0
    """0: four times in the whole run, so that connections also live to the balancer's age."""
    refuse_every: int = 70
    pings: bool = True
    """False: the control, without PING."""
    ping_timeout: float = PING_TIMEOUT
    seed: int = 1

    def delays(self) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """The calls by name and how long each thinks: the rush, then the others."""
        judge = JUDGE.samples(self.calls - self.fast, self.seed)
        fast = FAST.samples(self.fast, self.seed)
        slow = [(f"slow-{index}", delay) for index, delay in enumerate(judge)]
        quick = [(f"fast-{index}", delay) for index, delay in enumerate(fast)]
        rush, quick = quick[: self.rush], quick[self.rush :]
        # One fast call after every so many judge calls, so that both kinds arrive all the time.
        mixed = [(index / len(calls), call) for calls in (slow, quick) for index, call in enumerate(calls)]
        return rush, [call for _, call in sorted(mixed)]


async def run(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Run it; `tell` gets a line of progress now and then."""
    script = Script(
        max_requests=ALB_REQUESTS,
        refuse_every=plan.refuse_every,
        keep_records=False,
    )
    scale = plan.scale
    flags = [
        "--ping-interval", scale.flag(PING_INTERVAL) if plan.pings else "0",
        "--ping-timeout", scale.flag(plan.ping_timeout), "--idle-limit", scale.flag(ACCELERATOR_IDLE),
        "--max-conn-age", "0", "--max-conns", str(plan.max_conns), "--max-requests-per-conn", str(COUNT_LIMIT),
    ]  # fmt: skip
    async with LabOrigin(script, scale=scale) as origin:
        async with Relay(origin.port, idle_cut=ACCELERATOR_IDLE, scale=scale) as relay:
            async with Proxy(relay.url, origin.ca_file, *flags) as proxy:
                async with LoadClient(proxy.port) as client, Stalls() as stalls:
                    started = time.monotonic()
                    outcomes = await _send(
                        plan, client, script, lambda done: tell(_progress(done, plan, origin))
                    )
                    lasted = time.monotonic() - started
                report = _report(plan, outcomes, lasted, origin, relay)
                report.facts["the lab itself stood still"] = f"{stalls.longest:.2f} s at most"
                return report


class Stalls:
    """How long this process did not get to run: what a busy machine adds to times that were scaled down."""

    TICK = 0.02

    def __init__(self) -> None:
        self.longest = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(self.TICK)
            self.longest = max(self.longest, time.monotonic() - before - self.TICK)


async def _send(plan: Plan, client: LoadClient, script: Script, tell: Callable[[int], None]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    first, others = plan.delays()

    async def one(name: str, delay: float) -> None:
        fields = [("x-lab-delay", f"{delay:.3f}"), ("authorization", "Bearer lab")]
        outcomes.append(await client.call(name, body=BODY, fields=fields))

    async def rush(calls: Iterator[tuple[str, float]]) -> None:
        for name, delay in calls:
            await one(name, delay)

    async def on_time(index: int, name: str, delay: float) -> None:
        if index >= plan.at_once:
            later = max(1, len(others) - plan.at_once)
            await asyncio.sleep(plan.scale.of(plan.spread) * (index - plan.at_once) / later)
        await one(name, delay)

    async def report_progress() -> None:
        while True:
            await asyncio.sleep(5.0)
            tell(len(outcomes))

    progress = asyncio.get_running_loop().create_task(report_progress())
    try:
        one_by_one = iter(first)
        await asyncio.gather(*(rush(one_by_one) for _ in range(RUSH_AT_ONCE)))
        script.max_age = ALB_AGE
        script.goaway_every = plan.goaway_every or max(2, plan.calls // 4)
        await asyncio.gather(*(on_time(index, *call) for index, call in enumerate(others)))
    finally:
        progress.cancel()
    return outcomes


def _progress(done: int, plan: Plan, origin: LabOrigin) -> str:
    return (
        f"  {done} of {plan.calls} answered, {origin.waiting} wait on {len(origin.sessions)} connections, "
        f"{origin.pings} PINGs, {origin.goaways} GOAWAYs"
    )


def _report(plan: Plan, outcomes: list[Outcome], lasted: float, origin: LabOrigin, relay: Relay) -> Report:
    report = Report("trace")
    lost = Counter(outcome.words for outcome in outcomes if not outcome.lived)
    report.claim("calls answered", plan.calls, sum(outcome.lived for outcome in outcomes), not lost)
    report.claim("calls lost", 0, _counted(lost), not lost)
    twice = origin.twice
    report.claim("executed twice", 0, len(twice), not twice)
    report.claim(
        "executed, by the origin's count", plan.calls, origin.executed, origin.executed == plan.calls
    )
    report.claim("protocol breached", 0, len(origin.violations), not origin.violations)
    aged = origin.retirements["age"]
    if plan.fast:
        wanted = {"slow": plan.calls - plan.fast, "fast": plan.fast}
        kinds = Counter(outcome.id.partition("-")[0] for outcome in outcomes if outcome.lived)
        report.claim("slow and fast calls answered", wanted, dict(kinds), kinds == wanted)
    fullest = max((session.requests for session in (*origin.sessions, *origin.past)), default=0)
    if plan.rush >= COUNT_LIMIT:
        full = sum(session.requests >= 0.9 * COUNT_LIMIT for session in (*origin.sessions, *origin.past))
        report.claim("connections retired by count", "1 or more", full, full > 0)
        report.claim("requests on one connection, at most", COUNT_LIMIT, fullest, fullest <= COUNT_LIMIT)
    if plan.spread + ACCELERATOR_IDLE > ALB_AGE and plan.calls > plan.at_once:
        report.claim("connections retired by age", "1 or more", aged, aged > 0)
    refused = origin.outcomes["goaway"] + origin.outcomes["refused"]
    if plan.calls >= plan.refuse_every > 0:
        report.claim("requests refused on the way", "1 or more", refused, refused > 0)
    if plan.at_once > plan.max_conns * origin.script.max_streams:
        peak = origin.peak_streams
        report.claim("streams on one connection, at most", origin.script.max_streams, peak, peak <= 128)
    if plan.pings:
        report.claim("PINGs seen by the origin", "1 or more", origin.pings, origin.pings > 0)
    delays = [outcome.elapsed * plan.scale.factor for outcome in outcomes if outcome.lived]
    report.facts = {
        "scale": f"1:{plan.scale.factor:g}",
        "lasted": f"{lasted:.1f} s",
        "seconds until answered (p50, p99, max)": (
            ", ".join(f"{quantile(delays, p):.0f}" for p in (0.5, 0.99, 1.0)) if delays else "none"
        ),
        "connections": origin.connections,
        "GOAWAYs": origin.goaways,
        "retired by age": aged,
        "most requests on one connection": fullest,
        "refused by GOAWAY": origin.outcomes["goaway"],
        "refused by REFUSED_STREAM": origin.outcomes["refused"],
        "PINGs": origin.pings,
        "cut by the relay": relay.cuts,
        "longest silence": f"{relay.longest_gap * plan.scale.factor:.0f} s of {ACCELERATOR_IDLE:.0f} s",
        "peak streams on one connection": origin.peak_streams,
    }
    if origin.violations:
        report.facts["breaches"] = origin.violations[:5]
    return report


def _counted(lost: Counter[str]) -> str:
    if not lost:
        return "0"
    return (
        f"{sum(lost.values())} ("
        + ", ".join(f"{count} x {words}" for words, count in lost.most_common(4))
        + ")"
    )
