"""`h2ping lab proof`: one call that is silent for longer than the accelerator allows, in real seconds.

Two h2ping processes send the same call at the same time, each through a relay of its own that cuts after
340 s without a byte. One sends PINGs; the other is the control, which shows that the relay does cut.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from h2ping.lab.client import LoadClient, Outcome
from h2ping.lab.origin import LabOrigin
from h2ping.lab.proxy import Proxy
from h2ping.lab.relay import Relay
from h2ping.lab.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Plan:
    """Real seconds."""

    silence: float = 400.0
    cut: float = 340.0
    ping_interval: float = 60.0
    mode: str = "rst"


@dataclass(frozen=True)
class Side:
    """What one of the two saw."""

    outcome: Outcome
    pings: int
    cuts: int
    longest_gap: float


async def run(plan: Plan, tell: Callable[[str], None]) -> Report:
    """Run both sides and compare."""
    tell(f"  one call of {plan.silence:g} s, twice; each relay cuts after {plan.cut:g} s of silence ...")
    interval = min(plan.ping_interval, plan.cut / 5)
    with_pings, control = await asyncio.gather(_side(plan, f"{interval * 1000:.0f}ms"), _side(plan, "0"))
    report = Report("proof")
    report.claim("the call with PING", 200, with_pings.outcome.words, with_pings.outcome.lived)
    report.claim("the relay cut it", 0, with_pings.cuts, with_pings.cuts == 0)
    report.claim("the same call without PING", "an error", control.outcome.words, not control.outcome.lived)
    report.claim("the relay cut it too", 1, control.cuts, control.cuts >= 1)
    report.facts = {
        "with PING: answered after": f"{with_pings.outcome.elapsed:.1f} s, {with_pings.pings} PINGs",
        "with PING: longest silence": f"{with_pings.longest_gap:.1f} s",
        "without: died after": f"{control.outcome.elapsed:.1f} s, {control.pings} PINGs",
        "without: longest silence": f"{control.longest_gap:.1f} s",
    }
    return report


async def _side(plan: Plan, interval: str) -> Side:
    async with LabOrigin() as origin, Relay(origin.port, idle_cut=plan.cut, mode=plan.mode) as relay:
        async with (
            Proxy(relay.url, origin.ca_file, "--ping-interval", interval) as proxy,
            LoadClient(proxy.port) as client,
        ):
            fields = [("x-lab-delay", f"{plan.silence:g}")]
            outcome = await client.call("proof", body=b"{}", fields=fields, patience=plan.silence + 60)
            return Side(outcome, origin.pings, relay.cuts, relay.longest_gap)
