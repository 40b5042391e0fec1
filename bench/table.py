"""Results as Markdown tables: medians over the rounds, and h2ping against each peer pair by pair."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from bench.goals import COLUMNS, PEERS, ratio, values, verdicts

if TYPE_CHECKING:
    from bench.work import Shown, Work

FULL_CORE = 0.95
"""A proxy that takes less of a core was waiting: its requests per second are somebody else's limit."""
_MARK = " †"


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
    head = ["work", *COLUMNS.values(), *ratios] + ([] if headlines else ["goal", "n"])
    lines = [_row(head), f"|{'---|' * len(head)}"]
    lines += [
        _line(results, item, shown, headlines=headlines)
        for item in work
        for shown in item.shown
        if item.name in results["work"] and (shown.headline or not headlines)
    ]
    return "\n".join(lines)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _line(results: dict[str, Any], item: Work, shown: Shown, *, headlines: bool) -> str:
    cells = [shown.title]
    waiting = {
        proxy for proxy in COLUMNS if shown.figure == "per_second" and _waited(results, item.name, proxy)
    }
    for proxy in COLUMNS:
        found = values(results, item.name, proxy, shown.figure)
        cell = _cell([median(found)] if headlines and found else found, shown.digits)
        cells.append(cell + _MARK * (proxy in waiting))
    for peer in PEERS:
        against = ratio(results, item.name, peer, shown.figure)
        is_told = shown.ratios and against is not None and not waiting & {"h2ping", peer}
        cells.append(f"{against:.2f}" if is_told else "")
    if not headlines:
        rounds = {len(found) for found in results["work"][item.name]["proxies"].values()}
        cells += [shown.goal.text if shown.goal else "", "-".join(map(str, sorted(rounds)))]
    return _row(cells)


def _waited(results: dict[str, Any], name: str, proxy: str) -> bool:
    found = values(results, name, proxy, "proxy_cores")
    return bool(found) and median(found) < FULL_CORE


def shares(results: dict[str, Any], work: list[Work]) -> str:
    """How much of a core each of the three programs took, and the client's and the origin's CPU per request."""
    lines = [_row(["work", *COLUMNS.values()]), f"|{'---|' * (1 + len(COLUMNS))}"]
    for item in work:
        if not values(results, item.name, "h2ping", "proxy_cores"):
            continue
        cells = [item.shown[0].title.partition(", ")[2]]
        for proxy in COLUMNS:
            found = {
                figure: values(results, item.name, proxy, figure)
                for figure in (
                    "proxy_cores",
                    "client_cores",
                    "origin_cores",
                    "client_cpu_us",
                    "origin_cpu_us",
                )
            }
            middle = {figure: median(rounds) for figure, rounds in found.items() if rounds}
            cells.append(
                "{proxy_cores:.2f} + {client_cores:.2f} + {origin_cores:.2f} "
                "({client_cpu_us:.0f}, {origin_cpu_us:.0f} us)".format(**middle)
                if middle
                else ""
            )
        lines.append(_row(cells))
    return "\n".join(lines)


def missed(results: dict[str, Any], work: list[Work]) -> str:
    """The goals that were not reached."""
    lines = [_row(["row", "goal", "got", "see"]), f"|{'---|' * 4}"]
    lines += [
        _row([verdict.title, verdict.goal.text, verdict.got, verdict.subject])
        for verdict in verdicts(results, work)
        if not verdict.held
    ]
    return "\n".join(lines)


def caption(results: dict[str, Any]) -> str:
    """What it was measured on, and when: each date and commit, with what was measured then if that is not all."""
    machine = results["machine"]
    rig = ", ".join(machine[key] for key in ("processor", "memory", "system"))
    versions = f"Python {machine['python']}, uvloop {machine['uvloop']}"
    peers = f"Go {machine['go']}, Envoy {machine['envoy']}, nghttpx {machine['nghttpx']}"
    runs: dict[str, list[str]] = {}
    for name, item in results["work"].items():
        runs.setdefault(f"{item['date']} (commit {item['commit']})", []).append(name)
    most, *others = sorted(runs, key=lambda run: -len(runs[run]))
    when = "; ".join([most, *(f"on {run} instead: {', '.join(runs[run])}" for run in others)])
    return (
        f"{when}. {rig}, {machine['cores']} cores; {versions}; {peers}; one worker each, Go on all cores.\n"
        "A figure is the median over the rounds; ÷ is the median of h2ping's figure by the peer's within each round."
    )


LEGEND = (
    "In parentheses the least and the most; n: rounds. † The proxy took less than 95 % of a core: client, origin or "
    "machine were the limit."
)
