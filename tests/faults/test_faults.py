"""The matrix of docs/faults.md holds on both engines: no hang, nothing executed twice, a documented cause."""

from __future__ import annotations

from pathlib import Path

from tests.faults.matrix import Matrix
from tests.faults.table import read
from tests.support.stage import Certificates, certificates

__all__ = ["certificates"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"


RACES = {("idle", "RST"), ("idle", "relay cut"), ("idle", "FIN")}
"""The request and the news of the lost connection are under way at the same time: whichever is first, it is answered,
and a request that went into a dead connection is not executed."""
LOST_RACE = ("502 connection-lost", "0", "0", "200")


async def test_every_fault_at_every_moment(certificates: Certificates, engine: str, tmp_path: Path) -> None:
    """RFC 9113 sections 5.4, 6.4, 6.8 and 8.7; RFC 9110 section 9.2.2; what is stable in the document."""
    matrix = Matrix(certificates, tmp_path, engine)
    results = await matrix.run()
    wrong = [f"{each.key}: {each.answer}: {'; '.join(each.wrong)}" for each in results if each.wrong]
    assert not wrong + matrix.wrong, "\n".join(wrong + matrix.wrong)
    documented = read(DOCUMENT.read_text())
    differing = [
        f"{each.key}: {each.stable}, documented {documented.get(each.key)}"
        for each in results
        if documented.get(each.key) != each.stable and not (each.key in RACES and each.stable == LOST_RACE)
    ]
    assert not differing, "\n".join([*differing, "if that is right: python -m tests.faults"])
    assert len(results) > 200
