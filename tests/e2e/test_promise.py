"""The promise: calls that are silent for longer than the path bears succeed with PING, and fail without."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest

from h2ping.lab.origin import LabOrigin
from h2ping.lab.relay import Relay
from h2ping.lab.script import Script
from tests.support.stage import any_stage, certificates, stage

if TYPE_CHECKING:
    from tests.support.stage import Stage

__all__ = ["any_stage", "certificates", "stage"]

CUT = 1.0
SILENCE = 2.5
"""The lab's demo has 3 s and 8 s; the ratio is what counts."""
CALLS = 8


async def _ask(session: aiohttp.ClientSession, number: int) -> tuple[int, str]:
    body = {"model": "judge", "messages": [{"role": "user", "content": f"call {number}"}]}
    async with session.post("/v1/chat/completions", json=body, headers={"x-lab-id": str(number)}) as answer:
        return answer.status, answer.headers.get("h2ping-cause", "")


async def _calls(stage: Stage, origin: LabOrigin, relay: Relay, *flags: str) -> list[tuple[int, str]]:
    proxy = await stage.proxy(relay.url, f"--ca-file={origin.ca_file}", *flags)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as session:
        return await asyncio.gather(*(_ask(session, number) for number in range(CALLS)))


async def test_silent_calls_succeed_with_ping(stage: Stage) -> None:
    async with LabOrigin(Script(delay=SILENCE)) as origin, Relay(origin.port, idle_cut=CUT) as relay:
        answers = await _calls(stage, origin, relay, "--ping-interval=150ms")
        assert answers == [(200, "")] * CALLS
        assert (relay.cuts, origin.executed, origin.twice) == (0, CALLS, [])
        assert origin.pings >= SILENCE / CUT
        assert relay.longest_gap < CUT
        assert origin.violations == []


@pytest.mark.parametrize("mode", ["rst", "fin"])
async def test_silent_calls_fail_without_ping(stage: Stage, mode: str) -> None:
    """The control: the relay does cut, and nothing was executed twice because of it."""
    async with (
        LabOrigin(Script(delay=SILENCE)) as origin,
        Relay(origin.port, idle_cut=CUT, mode=mode) as relay,
    ):
        answers = await _calls(stage, origin, relay, "--ping-interval=0")
        assert answers == [(502, "connection-lost")] * CALLS
        assert relay.cuts >= 1
        assert (origin.executed, origin.twice, origin.pings) == (CALLS, [], 0)


async def test_a_path_that_forgets_silently_is_noticed_by_ping(stage: Stage) -> None:
    """No FIN and no RST: only an unanswered PING tells. The next call finds a new connection."""
    async with LabOrigin(Script(delay=SILENCE)) as origin, Relay(origin.port) as relay:
        proxy = await stage.proxy(
            relay.url, f"--ca-file={origin.ca_file}", "--ping-interval=200ms", "--ping-timeout=300ms"
        )
        async with aiohttp.ClientSession(f"http://127.0.0.1:{proxy.port}") as session:
            lost = asyncio.ensure_future(_ask(session, 0))
            await origin.until(lambda: origin.waiting == 1)
            relay.blackhole()
            assert await lost == (502, "ping-timeout")
            assert await _ask(session, 1) == (200, "")
        assert origin.twice == []
