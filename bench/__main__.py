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
from typing import TYPE_CHECKING

from bench import proxies, record
from bench.insert import insert_all
from bench.rig import HERE, Rig
from bench.work import all_work

if TYPE_CHECKING:
    from bench.measures import Figures
    from bench.proxies import Running
    from bench.work import Work

BUILD = HERE.parent / "build" / "bench"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer, smaller and shorter: under 3 minutes")
    parser.add_argument("--only", default="", help="names of work that contain one of these, comma between")
    parser.add_argument("--proxies", default="", help="these only, comma between")
    parser.add_argument("--table", action="store_true", help="measure nothing: write the tables again")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no more work begins")
    parser.add_argument("--list", action="store_true", help="say what would be done")
    chosen = parser.parse_args()
    kind = "quick" if chosen.quick else "full"
    work = [item for item in all_work(chosen.quick) if _is_wanted(item, chosen.only)]
    if chosen.list:
        print("\n".join(item.name for item in work))
        return 0
    if not chosen.table:
        here = proxies.available()
        names = [name for name in here if name in (chosen.proxies.split(",") if chosen.proxies else here)]
        if missing := sorted(set(proxies.NAMES) - set(here)):
            print(f"not installed, left out: {', '.join(missing)}", file=sys.stderr)
        measured = _measure(work, names, time.monotonic() + chosen.limit)
        record.save(kind, measured, merge=bool(chosen.only or chosen.proxies))
    insert_all(kind)
    return 0


def _is_wanted(item: Work, only: str) -> bool:
    return not only or any(part in item.name for part in only.split(","))


def _measure(work: list[Work], names: list[str], end: float) -> dict[str, dict[str, list[Figures]]]:
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
            if time.monotonic() > end:
                print("out of time", file=sys.stderr)
                break
            wanted = [name for name in names if name not in item.without]
            if item.fresh and standing:
                standing.clear()
                stack.pop_all().close()
                rig = Rig(Path(folder), BUILD)
                stack.callback(rig.close)
            elif not item.fresh and not standing:
                standing |= {name: stack.enter_context(proxies.started(name, rig)) for name in names}
            measured[item.name] = _rounds(item, wanted, rig, standing)
    return measured


def _rounds(item: Work, names: list[str], rig: Rig, standing: dict[str, Running]) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for number in range(item.rounds):
        # From another one each time, so that nobody always follows the same neighbour.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if item.fresh:
                with proxies.started(name, rig, item.memory) as proxy:
                    figures = item.measure(rig, proxy)
            else:
                figures = item.measure(rig, standing[name])
            found[name].append(figures)
            said = "  ".join(f"{key} {value:,.4g}" for key, value in figures.items())
            print(f"{item.name:24} {name:14} {said}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
