"""The lab's runs, small: demo, trace, proof, soak and memory start h2ping as a process and say whether it held."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal

import pytest

from h2ping.lab import crowd, demo, proof, rollout, soak
from h2ping.lab.proxy import Proxy, ProxyDied
from h2ping.lab.report import Report
from h2ping.lab.trace import Scale
from tests.support.bell import PATIENCE
from tests.support.sanitizers import measures_memory
from tests.support.zstd import need_zstd


async def test_the_demo_holds_and_tells_each_death_and_life() -> None:
    out = io.StringIO()
    plan = demo.Plan(calls=2, shortest=0.8, longest=1.0, cut=0.4, ping_interval=0.1)
    state = await demo.run(plan, demo.Board(out))
    assert state.held, out.getvalue()
    assert out.getvalue().count("died") == 2
    assert out.getvalue().count("lived") == 2
    assert state.pings > 0
    answer = json.loads(demo.as_json(state))
    assert answer["held"] is True
    assert answer["lived"] == {"straight": 0, "h2ping": 2}
    assert len(answer["calls"]) == 2


async def test_the_demo_does_not_hold_without_ping() -> None:
    plan = demo.Plan(calls=2, shortest=0.8, longest=1.0, cut=0.4, ping_interval=0.0)
    state = await demo.run(plan, demo.Board(io.StringIO(), quiet=True))
    assert not state.held
    assert state.lived(demo.THROUGH) == 0
    assert "DID NOT HOLD" in demo.verdict(state)[-1]


async def test_the_demo_redraws_its_table_on_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    plan = demo.Plan(calls=1, shortest=0.5, longest=0.5, cut=0.25, ping_interval=0.05)
    await demo.run(plan, demo.Board(out))
    assert "waits" in out.getvalue()
    assert "\x1b[" in out.getvalue()
    assert "died" in out.getvalue()
    assert "lived" in out.getvalue()


async def test_the_trace_loses_nothing_and_executes_nothing_twice() -> None:
    plan = rollout.Plan(
        calls=40, fast=16, rush=8, scale=Scale(500), at_once=20, spread=600.0, goaway_every=15, refuse_every=7
    )
    report = await rollout.run(plan, lambda line: None)
    assert report.held, report.text()


@measures_memory
async def test_a_short_soak_tells_every_failure_and_loses_nothing() -> None:
    """RFC 9113 section 8.7: what was not processed is sent again."""
    report = await soak.run(soak.Plan(minutes=0.2, callers=20), lambda line: None)
    assert report.held, report.text()


async def test_a_silent_call_lives_with_ping_and_dies_without() -> None:
    """A relay that cuts after 340 s without a byte and an answer after 400 s, in milliseconds."""
    report = await proof.run(proof.Plan(silence=0.8, cut=0.4), lambda line: None)
    assert report.held, report.text()


@measures_memory
async def test_more_calls_than_memory_holds_wait_together_or_go_in_waves() -> None:
    plan = crowd.Plan(calls=40, body_bytes=64 * 1024, limit_bytes=2**20, given_back_after=0)
    report = await crowd.run(plan, lambda line: None)
    assert report.held, report.text()


@measures_memory
async def test_what_thousands_of_calls_took_goes_back_to_the_system_though_others_go_on() -> None:
    plan = crowd.Plan(calls=3000, body_bytes=64 * 1024, keep=False, go_on=0.5)
    report = await crowd.run(plan, lambda line: None)
    assert report.held, report.text()


@measures_memory
async def test_compressed_copies_are_kept_where_others_are_given_up() -> None:
    need_zstd()
    plan = crowd.Plan(
        calls=10,
        body_bytes=300_000,
        limit_bytes=2**21,
        given_back_after=0,
        keep=False,
        quoted=0.9,
        compress=True,
    )
    report = await crowd.run(plan, lambda line: None)
    assert report.held, report.text()
    assert report.facts["copies given up"] == 0
    assert int(str(report.facts["copies compressed"])) > 3


async def test_a_soak_ends_with_its_proxy_and_tells_how_it_died() -> None:
    class Murder(soak.Soak):
        """The first thing it breaks is the proxy."""

        async def _break(self) -> None:
            if not self.proxy.ended:
                os.kill(self.proxy.pid, signal.SIGKILL)

    plan = soak.Plan(minutes=60, callers=5, chaos_every=0.2)
    with pytest.raises(ProxyDied, match=r"(?s)^h2ping died under load \(exit code -9\):\n.*listening on"):
        await asyncio.wait_for(Murder(plan, lambda line: None).run(), PATIENCE)


async def test_a_proxy_of_the_lab_that_does_not_start_tells_why() -> None:
    with pytest.raises(ProxyDied, match=r"(?s)^h2ping did not start \(exit code 2\):\n.*no-such-flag"):
        await Proxy("https://localhost:1", "", "--no-such-flag").start()


@pytest.mark.pure
def test_a_report_holds_only_when_every_claim_does() -> None:
    report = Report("example")
    assert not report.held
    report.claim("calls", 3, 3, True)
    assert report.held
    report.claim("lost", 0, 1, False)
    assert not report.held
    assert "FAIL" in report.text()
    assert report.text().endswith("example: DID NOT HOLD")
    assert json.loads(report.json())["held"] is False
