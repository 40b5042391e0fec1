"""docs/faults.md: written from a run, read back to compare with the next."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.cell import NEXT_WITHIN
from tests.faults.result import Moment, Result

HEAD = """\
# What h2ping does about each fault

<!-- made by `python -m tests.faults` from a run; do not edit -->

Every fault strikes a POST at every moment of its life; real sockets, real processes. A row tells the client's answer
(`cut`: its connection ended, so that half an answer never looks whole), how often the request was sent again, how often
the origin executed it, and how the next request fared. The first time is from the fault to the answer, the second that
of the next request. Times vary from run to run: `tests/faults` allows {slack:g} s more than stands here for the first,
{next_within:g} s for the second. The rest it demands of each run, on both engines.

- Faults of dialling strike a new connection. Where one is at hand, it is taken away first: with GOAWAY below the
  request, so that it must be sent again and has to dial; where half of the answer is out, with RST. They last until the
  client has its answer. Where they hang, `-connect-timeout` is 5 s.
- Every next request is answered by its first try. Only certificate and ALPN faults, which are permanent, are remembered
  until the next dial is due, 0.1 s after the first that failed: there the second try, 0.2 s later, is the last allowed.
- *black hole* has `-ping-interval` 0.4 s and `-ping-timeout` 1.5 s; *stopped for 6 s* 0.3 s and 1.5 s (before
  SETTINGS `-connect-timeout` 3 s); *stopped for 2 s* and *late acks* 0.3 s and more than they need.
- "Executed 1" beside an error is honest: the cause says *maybe processed*, so the request was not sent again.
- *late acks* while idle: an idle connection is not asked, so the acks are late for the request that comes then.
- *RST* and *relay cut* while idle are races: the request may go into the connection before the news of its end. Then
  it is answered 502 and not sent again, for it is a POST and the origin may have it.
- *GOAWAY, RST*: RST follows when GOAWAY was read, since TCP may drop with RST what was not.
- While draining the next request's connect must be refused.
"""
SLACK = 3.0
"""Seconds that a cell may take beyond what the document says: a busy machine, jitter of the delays between dials."""
QUICK = 0.5


def render(results: list[Result]) -> str:
    """The whole document."""
    parts = [HEAD.format(slack=SLACK, next_within=NEXT_WITHIN)]
    for moment in Moment:
        parts.append(f"\n## {moment.value[0].upper()}{moment.value[1:]}\n")
        parts.append(
            "| fault | answer | sent again | executed | next | time | tries of the next | its time |"
        )
        parts.append("|---|---|---|---|---|---|---|---|")
        parts.append(rows([each for each in results if each.moment is moment]))
    return "\n".join(parts) + "\n"


def rows(results: list[Result]) -> str:
    """A line for each."""
    return "\n".join(f"| {each.fault} | {' | '.join((*each.stable, *_varying(each)))} |" for each in results)


def _varying(result: Result) -> tuple[str, str, str]:
    if not result.tries:
        return _time(result.seconds), "-", "-"
    return _time(result.seconds), str(result.tries), _time(result.following_seconds)


def _time(seconds: float) -> str:
    return f"< {QUICK:g} s" if seconds < QUICK else f"{seconds:.1f} s"


@dataclass(frozen=True)
class Row:
    """One line as it was read: what is stable, and the limit for the time."""

    stable: tuple[str, ...]
    within: float


def read(text: str) -> dict[tuple[str, str], Row]:
    """Moment and fault -> what the document says."""
    found: dict[tuple[str, str], Row] = {}
    moment = ""
    names = {each.value.lower(): each.value for each in Moment}
    for line in text.splitlines():
        if line.startswith("## "):
            moment = names[line[3:].lower()]
        elif line.startswith("| ") and not line.startswith("| fault "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            seconds = float(cells[5].removeprefix("< ").removesuffix(" s"))
            found[moment, cells[0]] = Row(tuple(cells[1:5]), seconds + SLACK)
    return found
