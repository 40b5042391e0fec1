"""What h2ping's figures should be, and which are not.

A goal says at most so much, or at most a share of what a peer takes in the same round, or at most so many times what
the same figure is in another item of work. A run that misses one that `must` hold has failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.work import Work

COLUMNS = {"h2ping": "h2ping", "h2ping-plain": "plain", "go": "Go", "envoy": "Envoy", "nghttpx": "nghttpx"}
PEERS = ("go", "envoy", "nghttpx")


@dataclass(frozen=True)
class Goal:
    """One goal; all of its parts must hold."""

    most: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    """Of a peer's figure."""
    beside: tuple[float, str] | None = None
    """So many times the figure of that item of work."""
    must: bool = False
    note: str = ""

    @property
    def text(self) -> str:
        """As the tables show it."""
        parts = [] if self.most is None else [f"{self.most:g}"]
        if len(self.shares) == len(PEERS):
            (share,) = set(self.shares.values())
            parts.append("below all" if share == 1 else f"{share} x the best")
        else:
            parts += [_of(share, peer) for peer, share in self.shares.items()]
        if self.beside:
            parts.append(f"{self.beside[0]} x {self.beside[1]}")
        return ", ".join(parts + ([self.note] if self.note else []))


def _of(share: float, peer: str) -> str:
    return f"below {COLUMNS[peer]}" if share == 1 else f"{share} x {COLUMNS[peer]}"


BELOW_ALL = Goal(shares=dict.fromkeys(PEERS, 1.0))
NONE_FAILED = Goal(most=0, must=True)


class Verdict(NamedTuple):
    """One goal and what came of it."""

    title: str
    subject: str
    goal: Goal
    got: str
    held: bool


def values(results: dict[str, Any], name: str, proxy: str, figure: str) -> list[float]:
    """That figure of each round."""
    rounds = results["work"].get(name, {"proxies": {}})["proxies"].get(proxy, [])
    return [figures[figure] for figures in rounds if figure in figures]


def ratio(results: dict[str, Any], name: str, peer: str, figure: str) -> float | None:
    """h2ping's figure by the peer's: the median of the ratios within each round."""
    return ratio_of(results, name, "h2ping", peer, figure)


def ratio_of(results: dict[str, Any], name: str, proxy: str, peer: str, figure: str) -> float | None:
    """The same of any two."""
    return _median_ratio(values(results, name, proxy, figure), values(results, name, peer, figure))


def _median_ratio(ours: list[float], theirs: list[float]) -> float | None:
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=False) if mine > 0 < other]
    return median(ratios) if ratios else None


def verdicts(results: dict[str, Any], work: list[Work]) -> Iterator[Verdict]:
    """Every goal whose figures are there."""
    for item in work:
        for shown in item.shown:
            found = values(results, item.name, "h2ping", shown.figure)
            if not found or shown.goal is None:
                continue
            goal = shown.goal
            got, held = [], []
            if goal.most is not None:
                # What must hold, holds in every round.
                figure = max(found) if goal.must else median(found)
                got.append(f"{figure:,.{shown.digits}f}")
                held.append(round(figure, shown.digits) <= goal.most)
            for peer, share in goal.shares.items():
                against = ratio(results, item.name, peer, shown.figure)
                if against is not None and shown.ratios:
                    got.append(f"{against:.2f} x {COLUMNS[peer]}")
                    held.append(against <= share)
                elif against is not None:
                    theirs = median(values(results, item.name, peer, shown.figure))
                    got.append(f"{median(found):,.0f} to {theirs:,.0f} of {COLUMNS[peer]}")
                    held.append(median(found) <= share * theirs)
            if goal.beside:
                times, other = goal.beside
                growth = _median_ratio(found, values(results, other, "h2ping", shown.figure))
                if growth is not None:
                    got.append(f"{growth:.2f} x {other}")
                    held.append(growth <= times)
            if held:
                yield Verdict(shown.title, item.subject, goal, ", ".join(got), all(held))
