"""docs/faults.md: written from a run, read back to compare with the next."""

from __future__ import annotations

from tests.faults.result import Moment, Result

HEAD = """\
# What h2ping does about each fault

<!-- made by `python -m tests.faults` from a run; do not edit -->

Every fault strikes a POST at every moment of its life; real sockets, real processes. A row tells the client's answer
(`cut`: its connection ended, so that half an answer never looks whole), how often the request was sent again, how often
the origin executed it, and how the next request fared. The time is from the fault to the answer and varies from run to
run; the rest is what `tests/faults` demands of each run, on both engines.

- Faults of dialling strike a new connection. Where one is at hand, it is taken away first: with GOAWAY below the
  request, so that it must be sent again and has to dial; where half of the answer is out, with RST. They last until the
  client has its answer. Where they hang, `-connect-timeout` is 5 s.
- *black hole* has `-ping-interval` 0.4 s and `-ping-timeout` 1.5 s; *stopped for 6 s* 0.3 s and 1.5 s (before
  SETTINGS `-connect-timeout` 3 s); *stopped for 2 s* and *late acks* 0.3 s and more than they need.
- "Executed 1" beside an error is honest: the cause says *maybe processed*, so the request was not sent again.
- A `-` for the next request: a proxy that drains takes none.
"""


def render(results: list[Result]) -> str:
    """The whole document."""
    parts = [HEAD]
    for moment in Moment:
        rows = [each for each in results if each.moment is moment]
        parts.append(f"\n## {moment.value[0].upper()}{moment.value[1:]}\n")
        parts.append("| fault | answer | sent again | executed | next | time |")
        parts.append("|---|---|---|---|---|---|")
        parts += [f"| {each.fault} | {' | '.join(each.stable)} | {_time(each.seconds)} |" for each in rows]
    return "\n".join(parts) + "\n"


def _time(seconds: float) -> str:
    return "< 0.5 s" if seconds < 0.5 else f"{seconds:.1f} s"


def read(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Moment and fault -> what is stable."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    moment = ""
    names = {each.value.lower(): each.value for each in Moment}
    for line in text.splitlines():
        if line.startswith("## "):
            moment = names[line[3:].lower()]
        elif line.startswith("| ") and not line.startswith("| fault "):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found[moment, cells[0]] = tuple(cells[1:5])
    return found
