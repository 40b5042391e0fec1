"""`h2ping lab memory`: many large calls in flight under a hard memory limit that holds a fraction of them.

Twice. With copies given up under pressure all calls wait at the origin at the same time; the origin holds
its answers until they do; with `--compress` copies are compressed before any is given up. With
`-memory-pressure keep` every body is kept until its answer begins, so the
calls go in waves. Both times the proxy's resident memory is read while they wait, and the first time once more when
the calls and their clients are gone, all of them or but for one client that goes on to call now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2ping.lab.client import LoadClient, Outcome
from h2ping.lab.origin import LabOrigin
from h2ping.lab.prompts import prompts
from h2ping.lab.proxy import Proxy, processor_seconds
from h2ping.lab.report import Report, mebibytes
from h2ping.lab.script import Script

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLE_EVERY = 0.05
SETTLED_AFTER = 2.5
"""Seconds between two looks that must agree."""
GO_ON_LASTS = 3
"""How many of the calls that go on are in flight at a time."""
DIFFERENT_BODIES = 16
"""Each is compressed by itself, so more would change nothing but the time to make them."""


@dataclass(frozen=True)
class Plan:
    """How many, how large, under what limit."""

    calls: int = 2000
    body_bytes: int = 512 * 1024
    limit_bytes: int = 256 * 2**20
    allowance_bytes: int = 64 * 2**20
    """What the process may have beside the bodies."""
    given_back_after: float = 10.0
    """Seconds after the last answer at which little of what the calls took may be left; 0: not looked at."""
    left_bytes: int = 16 * 2**20
    """How much that is."""
    go_on: float | None = None
    """Seconds between calls that go on meanwhile; None: there are none."""
    patience: float = 180.0
    keep: bool = True
    """Run the second half, with -memory-pressure keep, too."""
    quoted: float | None = None
    """Bodies of prompts.py with that share of repeats; None: one repeated byte."""
    compress: bool = False
    """--compress-waiting-bodies."""


class Memory:
    """The highest resident memory of a process, read again and again."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self.peak = 0
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def read(self) -> int:
        """Now."""
        now = self._proxy.resident_bytes()
        self.peak = max(self.peak, now)
        return now

    async def _watch(self) -> None:
        while True:
            self.read()
            await asyncio.sleep(SAMPLE_EVERY)

    async def stop(self) -> None:
        """Read no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def run(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Run one or both halves."""
    report = Report("memory")
    await _all_at_once(plan, report, tell)
    if plan.keep:
        await _in_waves(plan, report, tell)
    return report


async def _all_at_once(plan: Plan, report: Report, tell: Callable[[str], None]) -> None:
    script = Script(hold_until=plan.calls + 1, hold_patience=plan.patience, keep_records=False)
    async with LabOrigin(script) as origin, _proxy(plan, origin, "drop") as proxy:
        async with LoadClient(proxy.port) as client:
            memory = Memory(proxy)
            before = memory.read()
            started = time.monotonic()
            sending = asyncio.ensure_future(_send(plan, client))
            with contextlib.suppress(asyncio.TimeoutError):
                await origin.until(lambda: origin.waiting >= plan.calls or sending.done(), plan.patience)
            there = time.monotonic() - started
            together, waiting = origin.waiting, memory.read()
            counts = await _memory_counts(proxy)
            used, settled = processor_seconds(proxy.pid), memory.read()
            tell(f"  {together} calls wait at the origin after {there:.1f} s; resident {mebibytes(waiting)}")
            origin.open_gate()
            outcomes = await sending
            await memory.stop()
        resident, later = await _afterwards(plan, proxy, script)
        left = resident - before
    limit = plan.limit_bytes + plan.allowance_bytes
    report.claim("waiting at the origin at the same time", plan.calls, together, together == plan.calls)
    _claim_answers(report, "answered", plan, outcomes, origin)
    seen = f"{mebibytes(waiting)} waiting, {mebibytes(memory.peak)} peak"
    report.claim("resident memory", f"at most {mebibytes(limit)}", seen, memory.peak <= limit)
    if plan.go_on is not None:
        lived = sum(call.lived for call in later)
        report.claim("answered afterwards", len(later), lived, 0 < lived == len(later))
    if plan.given_back_after:
        seen = f"{mebibytes(left)} above what it was before"
        report.claim(
            f"resident memory {plan.given_back_after:g} s later", f"at most {mebibytes(plan.left_bytes)}", seen,
            left <= plan.left_bytes,
        )  # fmt: skip
    report.facts["until all wait"] = f"{there:.1f} s"
    report.facts["resident once nothing moves"] = mebibytes(settled)
    report.facts["copies given up"] = counts["copies_given_up"]
    report.facts["copies compressed"] = counts["copies_compressed"]
    report.facts["processor seconds until then"] = f"{used:.2f}"
    report.facts["resident before"] = mebibytes(before)
    report.facts["connections to the origin"] = origin.connections


async def _afterwards(plan: Plan, proxy: Proxy, script: Script) -> tuple[int, list[Outcome]]:
    """Resident bytes `given_back_after` later, and the calls that went on meanwhile: always some in flight."""
    if plan.go_on is None:
        await asyncio.sleep(plan.given_back_after)
        return proxy.resident_bytes(), []
    script.delay = GO_ON_LASTS * plan.go_on
    async with LoadClient(proxy.port) as client:
        calls: list[asyncio.Future[Outcome]] = []
        ends = time.monotonic() + plan.given_back_after
        while (left := ends - time.monotonic()) > 0:
            call = client.call(f"later-{len(calls)}", "/v1/responses", _body(plan), patience=plan.patience)
            calls.append(asyncio.ensure_future(call))
            await asyncio.sleep(min(plan.go_on, left))
        resident = proxy.resident_bytes()
        return resident, list(await asyncio.gather(*calls))


async def _in_waves(plan: Plan, report: Report, tell: Callable[[str], None]) -> None:
    script = Script(delay=1.0, keep_records=False)
    async with LabOrigin(script) as origin, _proxy(plan, origin, "keep") as proxy:
        async with LoadClient(proxy.port) as client:
            memory = Memory(proxy)
            started = time.monotonic()
            outcomes = await _send(plan, client)
            lasted = time.monotonic() - started
            await memory.stop()
    peak_calls = origin.peak_waiting
    tell(f"  with copies kept: {len(outcomes)} calls in {lasted:.1f} s, at most {peak_calls} at a time")
    limit = plan.limit_bytes + plan.allowance_bytes
    _claim_answers(report, "answered, copies kept", plan, outcomes, origin)
    peak = mebibytes(memory.peak)
    report.claim("resident memory, copies kept", f"at most {mebibytes(limit)}", peak, memory.peak <= limit)
    report.facts["copies kept: most at a time"] = origin.peak_waiting
    report.facts["copies kept: lasted"] = f"{lasted:.1f} s"


def _claim_answers(report: Report, what: str, plan: Plan, outcomes: list[Outcome], origin: LabOrigin) -> None:
    answered = sum(outcome.lived for outcome in outcomes)
    lost = Counter(outcome.words for outcome in outcomes if not outcome.lived)
    seen = str(answered) + (f" ({dict(lost.most_common(3))})" if lost else "")
    report.claim(what, plan.calls, seen, answered == plan.calls)
    report.claim(f"{what}: executed twice", 0, len(origin.twice), not origin.twice)
    report.claim(f"{what}: protocol breached", 0, len(origin.violations), not origin.violations)


def _proxy(plan: Plan, origin: LabOrigin, pressure: str) -> Proxy:
    return Proxy(
        origin.url, origin.ca_file, "--max-memory", str(plan.limit_bytes), "--memory-pressure", pressure,
        "--admin-listen", "127.0.0.1:0", *(["--compress-waiting-bodies"] if plan.compress else []),
    )  # fmt: skip


async def _memory_counts(proxy: Proxy) -> dict[str, int]:
    """What /connections says of memory, once no copy is being compressed any more."""
    seen: dict[str, int] = {}
    while True:
        before, seen = seen, json.loads(await proxy.ask("/connections"))["memory"]
        if seen == before:
            return seen
        await asyncio.sleep(SETTLED_AFTER)


def _body(plan: Plan) -> bytes:
    return b'{"model":"judge","input":"' + b"x" * (plan.body_bytes - 28) + b'"}'


async def _send(plan: Plan, client: LoadClient) -> list[Outcome]:
    if plan.quoted is None:
        bodies = [_body(plan)]
    else:
        bodies = await asyncio.to_thread(prompts, plan.body_bytes, DIFFERENT_BODIES, plan.quoted)
    calls = (
        client.call(f"call-{index}", "/v1/responses", bodies[index % len(bodies)], patience=plan.patience)
        for index in range(plan.calls)
    )
    return list(await asyncio.gather(*calls))
