"""Every case has its test, and no test names a case that is none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NAMED = re.compile(r"\bCase ([a-z0-9]+(?:-[a-z0-9]+)+)")


@pytest.mark.pure
def test_every_case_is_covered() -> None:
    """The ids of ids.txt against the docstrings of the tests beside it."""
    known = set((HERE / "ids.txt").read_text().split())
    covered = set()
    for file in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                covered |= set(NAMED.findall(ast.get_docstring(node) or ""))
    assert covered == known
