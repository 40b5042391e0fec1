"""Delays of real calls, drawn anew: the judge's minutes and the fast calls beside them.

Theory of operation
-------------------
1. A `Delays` is an inverse cumulative distribution: straight lines between the published quantiles of a
   recorded run. `at(0.5)` is its median, `at(1.0)` its longest call.
2. `samples(count, seed)` cuts the unit interval into `count` equal parts, takes the middle of each and
   shuffles with the seed. So any number of samples has the published quantiles (plain random draws of 600
   would miss the p99 by tens of seconds), and the same seed gives the same run.
3. The longest call is always there: the last part gives its upper end, not its middle.
4. Times are the path's own seconds. One `Scale` divides every time of a run: delays, idle cut, age, PING.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """`factor` seconds on the path last one second in the lab."""

    factor: float = 1.0

    def of(self, seconds: float) -> float:
        """How long `seconds` of the path last in the lab."""
        return seconds / self.factor

    def flag(self, seconds: float) -> str:
        """The same as a duration of the command line."""
        return f"{round(self.of(seconds) * 1e6)}us"


@dataclass(frozen=True)
class Delays:
    """An inverse cumulative distribution by some of its quantiles: (probability, seconds), ascending."""

    name: str
    quantiles: tuple[tuple[float, float], ...]

    def at(self, probability: float) -> float:
        """Seconds that a share `probability` of the calls does not exceed."""
        points = self.quantiles
        index = min(max(bisect_right(points, (probability, float("inf"))), 1), len(points) - 1)
        (low, short), (high, long) = points[index - 1], points[index]
        return short + (long - short) * (min(max(probability, low), high) - low) / (high - low)

    def samples(self, count: int, seed: int = 1) -> list[float]:
        """`count` delays with these quantiles, in an order that only `seed` decides."""
        drawn = [self.at((index + 0.5) / count) for index in range(count - 1)]
        if count > 0:
            drawn.append(self.at(1.0))
        random.Random(seed).shuffle(drawn)
        return drawn


JUDGE = Delays(
    "judge",
    ((0.0, 35.0), (0.05, 130.0), (0.5, 296.0), (0.9, 401.0), (0.95, 439.0), (0.99, 514.0), (1.0, 854.0)),
)
"""Time to the first byte of the judge's calls. Published: p50, p90, p95, p99 and the maximum; the two lowest
points are there so that the shortest calls are not all alike."""

FAST = Delays("fast", ((0.0, 0.2), (0.5, 1.0), (0.9, 5.0), (0.99, 14.0), (1.0, 155.0)))
"""The calls of the same run that do not think: p50 1 s, p99 14 s, one of 155 s."""


def quantile(values: list[float], probability: float) -> float:
    """The smallest of `values` that a share `probability` of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-probability * len(ordered) // 1) - 1))]
