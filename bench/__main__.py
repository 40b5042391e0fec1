"""`python -m bench`: every proxy on the same client, origin and certificate, in alternation.

Each round measures all proxies one after the other, and ratios are taken within a round: what disturbs the machine
for longer than a round disturbs all of them.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import proxies, record
from bench.goals import verdicts
from bench.insert import insert_all, show
from bench.rig import HERE, Rig
from bench.work import all_work

if TYPE_CHECKING:
    from bench.measures import Figures
    from bench.proxies import Running
    from bench.work import Work

BUILD = HERE.parent / "build" / "bench"
_LIMITS = {"quick": 170.0, "full": 1800.0}
_HURRY = 0.8
"""Share of the limit after which one round must do."""


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, smaller and shorter: under 3 minutes")
    parser.add_argument("--only", default="", help="names of work that contain one of these, comma between")
    parser.add_argument("--proxies", default="", help="these only, comma between; the results are not kept")
    parser.add_argument("--table", action="store_true", help="measure nothing: write the tables again")
    parser.add_argument("--check", action="store_true", help="measure nothing: does what must hold?")
    parser.add_argument("--limit", type=float, default=0, help="seconds in which all must be done")
    parser.add_argument("--list", action="store_true", help="say what would be done")
    chosen = parser.parse_args()
    kind = "quick" if chosen.quick else "full"
    everything = all_work(chosen.quick)
    work = [item for item in everything if _is_wanted(item, chosen.only)]
    if chosen.list:
        print("\n".join(item.name for item in work))
        return 0
    if chosen.table or chosen.check:
        results = record.load(kind)
        if results is None:
            raise SystemExit(f"no {record.path_of(kind)} yet")
        is_whole = True
    else:
        names = _proxies(chosen.proxies, must_be_all=kind == "full")
        measured = _measure(work, names, time.monotonic(), chosen.limit or _LIMITS[kind])
        is_whole = len(measured) == len(work)
        if chosen.proxies:
            results = record.made({}, measured)
        else:
            results = record.save(kind, measured, part=bool(chosen.only) or not is_whole)
    if not chosen.check:
        show(results, everything)
        if kind == "full" and is_whole and not chosen.proxies:
            insert_all(results, everything)
    return 0 if _holds(results, everything) and is_whole else 1


def _proxies(chosen: str, *, must_be_all: bool) -> list[str]:
    here = proxies.available()
    missing = sorted(set(proxies.NAMES) - set(here))
    if missing and must_be_all and not chosen:
        raise SystemExit(
            f"not installed: {', '.join(missing)}. Without it no document is written; choose --proxies"
        )
    if missing:
        print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
    names = [name for name in here if not chosen or name in chosen.split(",")]
    for name, engine in (("h2ping", "compiled"), ("h2ping-plain", "plain")):
        if name in names and proxies.engine_of(name) != engine:
            raise SystemExit(f"{name} does not run on the {engine} engine: pip install -e .")
    return names


def _holds(results: dict[str, Any], work: list[Work]) -> bool:
    broken = [verdict for verdict in verdicts(results, work) if verdict.goal.must and not verdict.held]
    for verdict in broken:
        print(f"MISSED: {verdict.title}: {verdict.got}, must be {verdict.goal.text}", file=sys.stderr)
    return not broken


def _is_wanted(item: Work, only: str) -> bool:
    return not only or any(part in item.name for part in only.split(","))


def _measure(
    work: list[Work], names: list[str], begun: float, limit: float
) -> dict[str, dict[str, list[Figures]]]:
    # Thousands of connections on each side; the proxies inherit it.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    measured: dict[str, dict[str, list[Figures]]] = {}
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        rig = Rig(Path(folder), BUILD)
        stack.callback(rig.close)
        standing: dict[str, Running] = {}
        for item in work:
            if time.monotonic() > begun + limit:
                print(f"out of time: {item.name} and what follows it", file=sys.stderr)
                break
            wanted = [name for name in names if name not in item.without]
            if item.fresh and standing:
                standing.clear()
                stack.pop_all().close()
                rig = Rig(Path(folder), BUILD)
                stack.callback(rig.close)
            elif not item.fresh and not standing:
                standing |= {name: stack.enter_context(proxies.started(name, rig)) for name in names}
            try:
                measured[item.name] = _rounds(item, wanted, rig, standing, begun + _HURRY * limit)
            except (OSError, RuntimeError) as error:  # must not cost the figures of the rest
                print(f"{item.name} failed: {error}", file=sys.stderr)
            print(f"{item.name:24} done after {time.monotonic() - begun:.0f} s", flush=True)
    return measured


def _rounds(
    item: Work, names: list[str], rig: Rig, standing: dict[str, Running], hurry: float
) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(item.rounds):
        if number and time.monotonic() > hurry:
            break
        # From another one each time, so that nobody always follows the same neighbour.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if number and name in item.once:
                continue
            if item.fresh:
                with proxies.started(name, rig, item.tuning) as proxy:
                    figures = item.measure(rig, proxy)
            else:
                figures = item.measure(rig, standing[name])
            found[name].append(figures)
            said = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
            print(f"{item.name:24} {name:14} {said}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
