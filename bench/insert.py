"""Tables into docs/performance.md and README.md, between `<!-- bench -->` and `<!-- /bench -->`, and the plots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from bench import plot, record
from bench.rig import HERE
from bench.table import LEGEND, caption, markdown, missed, shares

if TYPE_CHECKING:
    from pathlib import Path

    from bench.work import Work

ROOT = HERE.parent
_PLOTS = "![Cost by proxy](bench/results/plot.svg)\n\n![CPU beside open streams](bench/results/streams.svg)"


def show(results: dict[str, Any], work: list[Work]) -> None:
    """The tables, to the screen."""
    print(f"\n{caption(results)}\n\n{markdown(results, work, headlines=False)}\n\n{LEGEND}")
    print(f"\n{shares(results, work)}\n\n{missed(results, work)}")


def insert_all(results: dict[str, Any], work: list[Work]) -> None:
    """What a full run found goes into the documents."""
    (record.FOLDER / "plot.svg").write_text(plot.bars(results))
    (record.FOLDER / "streams.svg").write_text(plot.growth(results))
    page = ROOT / "docs" / "performance.md"
    _put(page, "bench", f"{caption(results)}\n{LEGEND}\n\n{markdown(results, work, headlines=False)}")
    _put(page, "shares", shares(results, work))
    _put(page, "missed", missed(results, work))
    short = markdown(results, work, headlines=True)
    _put(ROOT / "README.md", "bench", f"{short}\n\n{caption(results)}\n\n{_PLOTS}")


def _put(path: Path, mark: str, text: str) -> None:
    page = path.read_text()
    between = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)", re.DOTALL)
    if not between.search(page):
        raise SystemExit(f"no <!-- {mark} --> in {path.name}")
    path.write_text(between.sub(lambda found: f"{found.group(1)}\n{text}\n\n{found.group(2)}", page))
