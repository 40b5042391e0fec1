"""What the operating system says a process used: CPU time and memory, with all its threads and children (Linux)."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for known in found:
        for task in _tasks(known):
            found += [int(child) for child in _read(task / "children").split()]
    return found


def _read(path: Path | str) -> str:
    """Empty when the process has ended meanwhile."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time on its cores so far, from the scheduler's own nanoseconds where it counts them."""
    tasks = [task for member in family(pid) for task in _tasks(member)]
    total = sum(int((_read(task / "schedstat") or "0").split()[0]) for task in tasks) / 1e9
    return total or sum(_ticks(member) for member in family(pid)) * _TICK_SECONDS


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def memory_bytes(pid: int) -> dict[str, int]:
    """Resident (`rss`) and proportional (`pss`) memory."""
    total = {"rss": 0, "pss": 0}
    for member in family(pid):
        for line in _read(f"/proc/{member}/smaps_rollup").splitlines():
            name, _, value = line.partition(":")
            if name.lower() in total:
                total[name.lower()] += int(value.split()[0]) * 1024
    return total


def peak_bytes(pid: int) -> int:
    """The most resident memory so far."""
    lines = [line for member in family(pid) for line in _read(f"/proc/{member}/status").splitlines()]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def await_quiet(pid: int, limit: float = 5.0) -> None:
    """Until the process has done nothing for a moment."""
    end = time.monotonic() + limit
    before = cpu_seconds(pid)
    while time.monotonic() < end:
        time.sleep(0.05)
        now = cpu_seconds(pid)
        if now - before < 0.001:
            return
        before = now
