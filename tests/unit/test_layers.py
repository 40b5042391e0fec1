"""Arrows between modules never turn: who may import whom."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "h2ping"

LAYERS: list[set[str]] = [
    {
        "errors",
        "units",
        "address",
        "config",
        "clock",
        "metrics",
        "log",
        "headers",
        "retry",
        "timers",
        "_fast",
    },
    {
        "answer",
        "memory",
        "packing",
        "lifecycle",
        "door",
        "tether",
        "foreground",
        "sources",
        "arguments",
        "options",
        "upstream.response",
        "upstream.splitter",
        "upstream.plain_stream",
        "upstream.keepalive",
    },
    {"upstream.wire", "upstream.plain", "upstream.blocks"},
    {
        "upstream.dial",
        "upstream.last_words",
        "upstream.reach",
        "upstream.connection",
        "upstream.pool",
        "downstream",
    },
    {"exchange"},
    {"instance"},
    {"server", "admin", "workers"},
    {"cli", "show", "gym", "lab", "node", "cluster", "shell", "child", "pytest_plugin"},
]
"""Lowest first. A module imports from its own layer and from those below."""

PURE = ("headers", "retry", "timers", "upstream.keepalive", "upstream.wire", "upstream.plain", "upstream.response",
        "upstream.splitter", "upstream.blocks", "upstream.plain_stream")  # fmt: skip
"""Sans-IO: neither asyncio nor time."""


def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if path.name not in ("__init__.py", "__main__.py")
    }


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it runs (not under TYPE_CHECKING), absolute names."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    return found


def layer_of(name: str) -> int | None:
    """The layer of a module named without `h2ping.`; its package's layer where it has none of its own."""
    for number, layer in enumerate(LAYERS):
        if name in layer or name.partition(".")[0] in layer:
            return number
    return None


@pytest.mark.parametrize("name", sorted(modules()))
def test_a_module_imports_only_from_its_own_layer_and_below(name: str) -> None:
    own = layer_of(name)
    assert own is not None, f"{name} has no layer"
    known = set(modules())
    for imported in imports(modules()[name]):
        target = imported.removeprefix("h2ping.")
        if imported.startswith("h2ping.") and (target in known or target == "_fast"):
            layer = layer_of(target)
            assert layer is not None
            assert layer <= own, f"{name} imports {target}"


@pytest.mark.parametrize("name", PURE)
def test_a_sans_io_module_knows_neither_asyncio_nor_time(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in imports(modules()[name])}
    assert not roots & {"asyncio", "time", "socket", "ssl", "logging"}


@pytest.mark.parametrize("name", sorted(modules()))
def test_only_the_wire_knows_h2(name: str) -> None:
    if name.startswith("lab."):  # the other end of the path
        return
    roots = {imported.partition(".")[0] for imported in imports(modules()[name])}
    assert "h2" not in roots or name in ("upstream.wire", "upstream.plain")


def test_importing_the_package_imports_nothing_heavy() -> None:
    script = "import importlib.machinery, sys; before = set(sys.modules); import h2ping; "
    script += "print(len(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 2


def test_every_module_has_its_room_in_the_architecture() -> None:
    """docs/architecture.md says which file to open."""
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = [PACKAGE, *(PACKAGE / name for name in ("upstream", "downstream", "gym", "lab"))]
    modules = [path.stem for folder in folders for path in folder.glob("[!_]*.py")]
    assert [name for name in modules if not re.search(rf"`([a-z]+\.)?{name}`", page)] == []
