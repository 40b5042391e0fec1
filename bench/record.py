"""The results as JSON: bench/results/full.json and quick.json, with the kind of machine and the date."""

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


def save(kind: str, measured: dict[str, dict[str, list[Figures]]], *, merge: bool) -> None:
    """Write them; `merge`: over those of a run before, because only a part was measured."""
    before = load(kind) if merge else None
    work = before["work"] if before else {}
    for name, by_proxy in measured.items():
        work.setdefault(name, {}).update(
            {
                proxy: [{key: _short(value) for key, value in figures.items()} for figures in rounds]
                for proxy, rounds in by_proxy.items()
            }
        )
    FOLDER.mkdir(exist_ok=True)
    made = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": _machine(),
        "work": work,
    }
    path_of(kind).write_text(json.dumps(made, indent=1) + "\n")


def _short(value: float) -> float:
    return float(f"{value:.5g}")


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
