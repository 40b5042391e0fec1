"""`python -m tests.faults`: run the matrix and write docs/faults.md; with names of faults: show their cells only."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.faults.matrix import Matrix, not_played
from tests.faults.table import render, rows
from tests.support.stage import ENGINE, make_certificates


def main() -> int:
    """Exit code 1: a cell is wrong; nothing is written then."""
    target = Path("docs/faults.md")
    only = sys.argv[1:]
    if not only and (missing := not_played()):
        print(f"this machine cannot play {', '.join(sorted(missing))}: the document would lack it")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        certificates = make_certificates(Path(folder))
        matrix = Matrix(certificates, Path(folder), ENGINE, only)
        results = asyncio.run(matrix.run())
    wrong = [f"{each.moment.value}, {each.fault}: {'; '.join(each.wrong)}" for each in results if each.wrong]
    if only:
        print(rows(results))
    print("\n".join(wrong + matrix.wrong))
    if wrong or matrix.wrong:
        return 1
    if only:
        return 0
    target.write_text(render(results))
    print(f"{len(results)} cells, {target} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
