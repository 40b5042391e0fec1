"""`h2ping demo`: the same slow calls straight and through h2ping, over a path that cuts what is silent.

Nothing leaves this machine. The origin answers after 5 to 9 seconds; the relay in front of it resets a
connection after 3 seconds without a byte, as the accelerator on the real path does after 340. The straight
calls go over HTTP/1.1 with TLS, one connection each: what an HTTP/1.1 client does today.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TextIO

from h2ping.lab.client import LoadClient, Outcome
from h2ping.lab.origin import LabOrigin
from h2ping.lab.proxy import Proxy
from h2ping.lab.relay import Relay
from h2ping.lab.script import Script

STRAIGHT, THROUGH = "straight", "h2ping"
REDRAW_EVERY = 0.1
BODY = b'{"model":"judge","messages":[{"role":"user","content":"Which answer is better?"}]}'


@dataclass(frozen=True)
class Plan:
    """Real seconds."""

    calls: int = 8
    shortest: float = 5.0
    longest: float = 9.0
    cut: float = 3.0
    ping_interval: float = 1.0

    def thinks(self, index: int) -> float:
        """How long the origin thinks about call number `index`."""
        return self.shortest + (self.longest - self.shortest) * index / max(1, self.calls - 1)


@dataclass
class State:
    """What is known so far; the board draws it."""

    plan: Plan
    started: float = 0.0
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict)
    pings: int = 0

    def lived(self, side: str) -> int:
        """Calls of a side that got their answer."""
        return sum(outcome.lived for (name, _), outcome in self.outcomes.items() if name == side)

    @property
    def held(self) -> bool:
        """All through h2ping lived, and all straight ones died."""
        whole = len(self.outcomes) == 2 * self.plan.calls
        return whole and self.lived(THROUGH) == self.plan.calls and self.lived(STRAIGHT) == 0


async def run(plan: Plan, board: Board) -> State:
    """Run both sides at the same time, draw on `board`."""
    state = State(plan)
    board.say(f"{plan.calls} calls that think {plan.shortest:g} to {plan.longest:g} s.")
    board.say(f"The path resets a connection after {plan.cut:g} s without a byte. Both sides use this path.")
    script = Script(alpn=("h2", "http/1.1"))
    async with LabOrigin(script) as origin, Relay(origin.port, idle_cut=plan.cut) as relay:
        flags = ["--ping-interval", f"{plan.ping_interval:g}s", "--ping-timeout", "2s"]
        flags += ["--idle-limit", f"{plan.cut:g}s"]
        async with Proxy(relay.url, origin.ca_file, *flags) as proxy:
            tls = origin.certificate.client_context(("http/1.1",))
            async with LoadClient(relay.port, tls=tls) as straight, LoadClient(proxy.port) as through:
                state.started = time.monotonic()
                drawing = asyncio.get_running_loop().create_task(_draw(board, state, origin))
                sides = ((STRAIGHT, straight), (THROUGH, through))
                calls = (
                    _one(state, board, side, client, index)
                    for side, client in sides
                    for index in range(plan.calls)
                )
                try:
                    await asyncio.gather(*calls)
                finally:
                    drawing.cancel()
        state.pings = origin.pings
    board.draw(state)
    return state


async def _one(state: State, board: Board, side: str, client: LoadClient, index: int) -> None:
    thinks = state.plan.thinks(index)
    fields = [("x-lab-delay", f"{thinks:.3f}")]
    outcome = await client.call(f"{side}-{index}", body=BODY, fields=fields, patience=thinks + 15)
    state.outcomes[side, index] = outcome
    board.event(state, side, index, outcome)


async def _draw(board: Board, state: State, origin: LabOrigin) -> None:
    while True:
        state.pings = origin.pings
        board.draw(state)
        await asyncio.sleep(REDRAW_EVERY)


class Board:
    """Where the demo is seen: a table that redraws itself on a terminal, a line per event elsewhere."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._live = not quiet and out.isatty()
        self._drawn = 0

    def say(self, line: str) -> None:
        """One line, once."""
        if not self._quiet:
            print(line, file=self._out, flush=True)

    def event(self, state: State, side: str, index: int, outcome: Outcome) -> None:
        """A call ended."""
        if not self._live:
            what = "lived" if outcome.lived else "died "
            name = "straight      " if side == STRAIGHT else "through h2ping"
            self.say(
                f"{time.monotonic() - state.started:5.1f} s  {name}  call {index + 1} "
                f"({state.plan.thinks(index):.1f} s)  {what}: {outcome.words}"
            )

    def draw(self, state: State) -> None:
        """The whole table, over the one before."""
        if not self._live:
            return
        lines = self.table(state)
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}F")
        self._out.write("".join(f"\x1b[2K{line}\n" for line in lines))
        self._out.flush()
        self._drawn = len(lines)

    def table(self, state: State) -> list[str]:
        """The table's lines, coloured."""
        now = time.monotonic() - state.started
        lines = ["", f"  call  thinks   {'straight, HTTP/1.1':<34}through h2ping, HTTP/2 with PING"]
        for index in range(state.plan.calls):
            cells = [_cell(state.outcomes.get((side, index)), now) for side in (STRAIGHT, THROUGH)]
            lines.append(f"  {index + 1:>4}  {state.plan.thinks(index):4.1f} s   {cells[0]}{cells[1]}")
        lines.append(f"  {now:.1f} s, {state.pings} PINGs sent")
        return lines


def _cell(outcome: Outcome | None, now: float) -> str:
    if outcome is None:
        return f"\x1b[33m{f'waits  {now:4.1f} s':<34}\x1b[0m"
    if outcome.lived:
        return f"\x1b[32m{f'lived  {outcome.elapsed:4.1f} s':<34}\x1b[0m"
    return f"\x1b[31m{f'died   {outcome.elapsed:4.1f} s  {outcome.words}'[:33]:<34}\x1b[0m"


def verdict(state: State) -> list[str]:
    """What it showed, in words."""
    plan = state.plan
    deaths = [
        outcome for (side, _), outcome in state.outcomes.items() if side == STRAIGHT and not outcome.lived
    ]
    why = ""
    if deaths:
        words, count = Counter(outcome.words for outcome in deaths).most_common(1)[0]
        longest = max(outcome.elapsed for outcome in deaths)
        why = f": {words} ({count}), after {longest:.1f} s at the latest"
    pings = f"{state.pings} PINGs kept the path open"
    return [
        "",
        f"Straight:       {state.lived(STRAIGHT)} of {plan.calls} calls lived{why}.",
        f"Through h2ping: {state.lived(THROUGH)} of {plan.calls} calls lived; {pings}.",
        "The demo held: the silence kills a call, PING carries it."
        if state.held
        else "THE DEMO DID NOT HOLD.",
    ]


def as_json(state: State) -> str:
    """For machines, one line."""

    def side(name: str, index: int) -> dict[str, object] | None:
        outcome = state.outcomes.get((name, index))
        if outcome is None:
            return None
        return {
            "lived": outcome.lived,
            "status": outcome.status or None,
            "error": outcome.error or None,
            "cause": outcome.cause or None,
            "seconds": round(outcome.elapsed, 3),
        }

    calls = [
        {
            "call": index + 1,
            "thinks": round(state.plan.thinks(index), 3),
            STRAIGHT: side(STRAIGHT, index),
            THROUGH: side(THROUGH, index),
        }
        for index in range(state.plan.calls)
    ]
    return json.dumps(
        {
            "held": state.held,
            "idle_cut": state.plan.cut,
            "pings": state.pings,
            "lived": {STRAIGHT: state.lived(STRAIGHT), THROUGH: state.lived(THROUGH)},
            "calls": calls,
        }
    )
