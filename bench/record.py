"""The results as JSON: bench/results/full.json and quick.json.

Every item of work says when and from which commit it was measured, because a part may be measured again later than
the rest. All proxies of an item are always of one run, so no ratio mixes two builds. The engine of the column `h2ping`
is always the compiled one: `bench.__main__` sees to it.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.rig import HERE

if TYPE_CHECKING:
    from bench.measures import Figures

FOLDER = HERE / "results"


def path_of(kind: str) -> Path:
    """The file of a kind of run."""
    return FOLDER / f"{kind}.json"


def load(kind: str) -> dict[str, Any] | None:
    """The last results, if there are any."""
    path = path_of(kind)
    return json.loads(path.read_text()) if path.exists() else None


def save(kind: str, measured: dict[str, dict[str, list[Figures]]], *, part: bool) -> dict[str, Any]:
    """Write them and return the whole record: a new one, or with `part` the last one with these items replaced."""
    results = made((load(kind) or {}) if part else {}, measured)
    FOLDER.mkdir(exist_ok=True)
    path_of(kind).write_text(json.dumps(results, indent=1) + "\n")
    return results


def made(before: dict[str, Any], measured: dict[str, dict[str, list[Figures]]]) -> dict[str, Any]:
    """The record of what was measured just now, and of what `before` holds besides."""
    machine = _machine()
    if before and before["machine"] != machine:
        raise SystemExit(
            "the results that are kept are of another machine or other versions: measure all of it"
        )
    run = {"date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(), "commit": _commit()}
    now = {
        name: run | {"proxies": {proxy: _short(rounds) for proxy, rounds in by_proxy.items()}}
        for name, by_proxy in measured.items()
    }
    return {"machine": machine, "work": before.get("work", {}) | now}


def _short(rounds: list[Figures]) -> list[Figures]:
    return [{key: float(f"{value:.5g}") for key, value in figures.items()} for figures in rounds]


def _commit() -> str:
    """Of what is measured, with a + where the sources differ from it."""
    said = [
        subprocess.run(
            ["git", *command.split()], cwd=HERE, capture_output=True, text=True, check=False
        ).stdout
        for command in ("rev-parse --short HEAD", "status --porcelain -- ../src *.py peers")
    ]
    return said[0].strip() + ("+" if said[1] else "")


def _machine() -> dict[str, str]:
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"Linux {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "uvloop": metadata.version("uvloop"),
        "go": _version("go", "version"),
        "envoy": _version("envoy", "--version"),
        "nghttpx": _version("nghttpx", "--version"),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(program: str, flag: str) -> str:
    path = shutil.which(program, path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
    if path is None:
        return "-"
    said = subprocess.run([path, flag], capture_output=True, text=True, timeout=20).stdout
    found = re.search(r"\d+\.\d+(?:\.\d+)?", said)
    return found.group() if found else "-"
