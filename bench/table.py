"""Results as a Markdown table: medians over the rounds, and h2ping against each peer pair by pair."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.work import Shown, Work

COLUMNS = {"h2ping": "h2ping", "h2ping-plain": "plain", "go": "Go", "envoy": "Envoy", "nghttpx": "nghttpx"}
PEERS = ("go", "envoy", "nghttpx")


def values(results: dict[str, Any], name: str, proxy: str, figure: str) -> list[float]:
    """That figure of each round."""
    return [figures[figure] for figures in results["work"].get(name, {}).get(proxy, []) if figure in figures]


def ratio(results: dict[str, Any], name: str, peer: str, figure: str) -> float | None:
    """h2ping's figure by the peer's: the median of the ratios within each round."""
    ours, theirs = (values(results, name, proxy, figure) for proxy in ("h2ping", peer))
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=False) if mine > 0 < other]
    return median(ratios) if ratios else None


def _cell(found: list[float], digits: int) -> str:
    if not found:
        return ""
    middle = f"{median(found):,.{digits}f}"
    if len(found) == 1 or min(found) == max(found):
        return middle
    return f"{middle} ({min(found):,.{digits}f}-{max(found):,.{digits}f})"


def markdown(results: dict[str, Any], work: list[Work], *, headlines: bool) -> str:
    """The table. `headlines`: the short one, medians only."""
    ratios = [f"÷ {COLUMNS[peer]}" for peer in PEERS]
    head = ["work", *COLUMNS.values(), *ratios] + ([] if headlines else ["goal"])
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [
        _line(results, item, shown, headlines=headlines)
        for item in work
        for shown in item.shown
        if item.name in results["work"] and (shown.headline or not headlines)
    ]
    return "\n".join(lines)


def _line(results: dict[str, Any], item: Work, shown: Shown, *, headlines: bool) -> str:
    cells = [shown.title]
    for proxy in COLUMNS:
        found = values(results, item.name, proxy, shown.figure)
        cells.append(_cell([median(found)] if headlines and found else found, shown.digits))
    for peer in PEERS:
        against = ratio(results, item.name, peer, shown.figure)
        cells.append("" if against is None else f"{against:.2f}")
    if not headlines:
        cells.append(shown.goal)
    return f"| {' | '.join(cells)} |"


def caption(results: dict[str, Any]) -> str:
    """What it was measured on, and when."""
    machine = results["machine"]
    rig = ", ".join(machine[key] for key in ("processor", "memory", "system"))
    versions = f"Python {machine['python']}, uvloop {machine['uvloop']}"
    peers = f"Go {machine['go']}, Envoy {machine['envoy']}, nghttpx {machine['nghttpx']}"
    return f"{results['date']}, {rig}, {machine['cores']} cores; {versions}; {peers}; one worker each."
