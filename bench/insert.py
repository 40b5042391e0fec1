"""Tables into docs/performance.md and README.md, between `<!-- bench -->` and `<!-- /bench -->`, and the plot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bench import record
from bench.plot import svg
from bench.rig import HERE
from bench.table import caption, markdown
from bench.work import all_work

if TYPE_CHECKING:
    from pathlib import Path

ROOT = HERE.parent
_BETWEEN = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)


def insert_all(kind: str) -> None:
    """Print the table of this run; what a full run found goes into the documents."""
    found = record.load(kind)
    if found is None:
        return
    work = all_work(kind == "quick")
    table = markdown(found, work, headlines=False)
    print(f"\n{caption(found)}\n\n{table}")
    if kind != "full":
        return
    (record.FOLDER / "plot.svg").write_text(svg(found))
    _put(ROOT / "docs" / "performance.md", f"{caption(found)}\n\n{table}\n")
    short = markdown(found, work, headlines=True)
    _put(ROOT / "README.md", f"{short}\n\n{caption(found)}\n\n![Cost by proxy](bench/results/plot.svg)\n")


def _put(path: Path, text: str) -> None:
    page = path.read_text()
    if not _BETWEEN.search(page):
        raise SystemExit(f"no <!-- bench --> in {path.name}")
    path.write_text(_BETWEEN.sub(lambda found: f"{found.group(1)}\n{text}\n{found.group(2)}", page))
