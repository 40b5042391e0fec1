"""Modules that are compiled from their .py: the .pxd beside it knows all that the .py has."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "h2ping"
TYPED = [path for path in sorted(PACKAGE.rglob("*.pxd")) if path.with_suffix(".py").exists()]


def declared(text: str) -> dict[str, str]:
    """What stands in the .pxd of each class."""
    _, *parts = re.split(r"^cdef class (\w+):\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def assigned(tree: ast.Module, name: str) -> set[str]:
    """The attributes that the methods of a class make."""
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        node.attr
        for node in ast.walk(found)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


@pytest.mark.parametrize("path", TYPED, ids=lambda path: path.stem)
def test_every_attribute_has_its_type(path: Path) -> None:
    """One without a type exists where the module is not compiled, and raises AttributeError where it is."""
    tree = ast.parse(path.with_suffix(".py").read_text())
    for name, body in declared(path.read_text()).items():
        types = set(re.findall(r"(\w+)$", body, flags=re.MULTILINE))
        assert assigned(tree, name) - types == set(), f"not in {path.name}, class {name}"


def test_setup_compiles_each_of_them() -> None:
    setup = (PACKAGE.parents[1] / "setup.py").read_text()
    for path in TYPED:
        assert f'"{path.relative_to(PACKAGE).with_suffix("").as_posix()}"' in setup
