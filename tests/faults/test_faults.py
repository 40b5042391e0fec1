"""The matrix of docs/faults.md holds on both engines: no hang, nothing executed twice, a documented cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.matrix import Matrix, not_played
from tests.faults.table import Row, read
from tests.support.stage import Certificates, certificates

if TYPE_CHECKING:
    from tests.faults.result import Result

__all__ = ["certificates"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "faults.md"


def differs(result: Result, documented: Row) -> str:
    """What of a cell is not as the document says; empty: nothing."""
    if result.stable != documented.stable:
        return f"{result.key}: {result.stable}, documented {documented.stable}"
    if result.seconds > documented.within:
        return f"{result.key}: {result.seconds:.1f} s, at most {documented.within:.1f} s"
    return ""


async def test_every_fault_at_every_moment(certificates: Certificates, engine: str, tmp_path: Path) -> None:
    """RFC 9113 sections 5.4, 6.4, 6.8 and 8.7; RFC 9110 section 9.2.2; what is stable in the document."""
    matrix = Matrix(certificates, tmp_path, engine)
    results = await matrix.run()
    wrong = [f"{each.key}: {each.answer}: {'; '.join(each.wrong)}" for each in results if each.wrong]
    assert not wrong + matrix.wrong, "\n".join(wrong + matrix.wrong)
    documented = {key: row for key, row in read(DOCUMENT.read_text()).items() if key[1] not in not_played()}
    assert {each.key for each in results} == set(documented)
    differing = [told for each in results if (told := differs(each, documented[each.key]))]
    assert not differing, "\n".join([*differing, "if that is right: python -m tests.faults"])


@pytest.mark.pure
def test_every_row_of_the_document_is_played_here() -> None:
    """The other test leaves out what this machine cannot play; this one says so."""
    if missing := not_played():
        pytest.skip(
            f"not played here: {', '.join(sorted(missing))} (needs Linux; DNS failure a C compiler, too)"
        )
