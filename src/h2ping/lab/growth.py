"""Does h2ping grow? Counts of the quiet process, and what may be said of them.

Theory of operation
-------------------
1. A mark is taken when nothing is under way: no request, no client, no connection, no byte of a body. A process that
   does not become quiet has failed already.
2. What is countable (objects by type, segments, descriptors) must not be more at the end than at the first mark.
3. Resident memory is a slope, from the tenth minute on, by which allocators have what they keep: the median of the
   slopes between all pairs of marks, which one odd mark does not move. Between quiet marks of an hour's run without a
   leak it moves by some 0.1 MiB; SLOPE_BYTES a call and NOISE_BYTES in all are 3 MiB in an hour (200,000 calls), and
   a leak of 20 bytes a call, less than any object has, are 4 MiB. Shorter runs show leaks of 100 bytes and more.
"""

from __future__ import annotations

import itertools
import os
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from h2ping.lab.report import mebibytes

if TYPE_CHECKING:
    from h2ping.lab.report import Report

GROWTH_BYTES = 12 << 20
"""Of resident memory between the first mark and the last, also where the first is an early one."""
WARM_MINUTES = 10.0
SLOPE_BYTES = 10
NOISE_BYTES = 1 << 20
MORE_OBJECTS = 3
MORE_OF_ALL = 200
MORE_DESCRIPTORS = 4


@dataclass(frozen=True)
class Mark:
    """The process, counted."""

    minute: float
    calls: int
    resident: int
    descriptors: int
    objects: dict[str, int]
    state: dict[str, Any]
    """What /connections says."""

    @property
    def left(self) -> dict[str, int]:
        """What a quiet process does not have."""
        instance, memory = self.state["instances"][0], self.state["memory"]
        counts = {name: instance[name] for name in ("requests", "waiting", "clients")}
        counts["connections"] = len(instance["connections"])
        counts["memory used"] = memory["used"]
        return {name: count for name, count in counts.items() if count}

    def words(self) -> str:
        """For a line."""
        names = ", ".join(f"{count} {name}" for name, count in self.objects.items())
        kept = mebibytes(self.state["memory"]["resident"])
        return (
            f"minute {self.minute:.1f}, {self.calls} calls: {mebibytes(self.resident)}, {kept} of it for bodies, "
            f"{self.descriptors} descriptors; {names}"
        )


def slope(marks: list[Mark]) -> float:
    """Bytes a call."""
    pairs = itertools.combinations(marks, 2)
    return statistics.median(
        (late.resident - early.resident) / max(1, late.calls - early.calls) for early, late in pairs
    )


def check(report: Report, marks: list[Mark]) -> None:
    """The claims. There are at least two marks."""
    early, late = marks[0], marks[-1]
    restless = {f"minute {mark.minute:.1f}": mark.left for mark in marks if mark.left}
    report.claim("left over at a quiet moment", "nothing", restless or "nothing", not restless)
    grown = {
        name: (early.objects.get(name, 0), count)
        for name, count in late.objects.items()
        if count > early.objects.get(name, 0) + (MORE_OF_ALL if name == "all" else MORE_OBJECTS)
    }
    report.claim("objects that grew (first mark, last)", "none", grown or "none", not grown)
    more = late.descriptors - early.descriptors
    report.claim("more descriptors at the end", f"at most {MORE_DESCRIPTORS}", more, more <= MORE_DESCRIPTORS)
    size = late.resident - early.resident
    report.claim("resident memory grew by", f"at most {mebibytes(GROWTH_BYTES)}", mebibytes(size),
                 size <= GROWTH_BYTES)  # fmt: skip
    warm = [mark for mark in marks if mark.minute >= WARM_MINUTES]
    if len(warm) > 2:
        bytes_a_call = slope(warm)
        most = SLOPE_BYTES + NOISE_BYTES / max(1, warm[-1].calls - warm[0].calls)
        report.claim("bytes of growth a call from the tenth minute on", f"at most {most:.1f}", f"{bytes_a_call:.1f}",
                     bytes_a_call <= most)  # fmt: skip


def descriptors(pid: int) -> int:
    """How many a process has; 0 where there is no /proc."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
