"""What the benchmarks make of their figures."""

from __future__ import annotations

from typing import Any

import pytest
from bench import goals, plot, record, table
from bench.work import all_work

RESULTS: dict[str, Any] = {
    "machine": dict.fromkeys(
        ("processor", "memory", "system", "cores", "python", "uvloop", "go", "envoy", "nghttpx"), "?"
    ),
    "work": {
        "h1_to_h2_x64_1kb_1kb": {
            "date": "2026-01-01",
            "commit": "abc",
            "proxies": {
                "h2ping": [{"cpu_us": 10.0}, {"cpu_us": 40.0}, {"cpu_us": 12.0}],
                "go": [{"cpu_us": 40.0}, {"cpu_us": 80.0}, {"cpu_us": 40.0}],
            },
        }
    },
}


def with_item(name: str, **figures: float) -> dict[str, Any]:
    """The same results with one round of h2ping at that item."""
    item = {"date": "2026-01-02", "commit": "def", "proxies": {"h2ping": [figures]}}
    return RESULTS | {"work": {**RESULTS["work"], name: item}}


def test_a_ratio_is_taken_within_each_round() -> None:
    assert goals.ratio(RESULTS, "h1_to_h2_x64_1kb_1kb", "go", "cpu_us") == 0.3


def test_a_figure_is_the_median_with_its_spread() -> None:
    line = next(
        line
        for line in table.markdown(RESULTS, all_work(False), headlines=False).splitlines()
        if "CPU" in line
    )
    assert "| 12 (10-40) |" in line
    assert "| 40 (40-80) |" in line


def test_what_was_not_measured_has_no_line_and_no_bar() -> None:
    assert len(table.markdown(RESULTS, all_work(False), headlines=True).splitlines()) == 3
    assert plot.bars(RESULTS).count("CPU,") == 1


def test_every_bar_of_the_plot_belongs_to_work_that_exists() -> None:
    known = {(item.name, shown.figure) for item in all_work(False) for shown in item.shown}
    assert {(name, figure) for name, figure, _ in plot.GROUPS} <= known


def test_a_measurement_repeated_later_is_shown_with_its_own_date_and_commit() -> None:
    caption = table.caption(with_item("start", start_ms=200.0))
    assert caption.startswith("2026-01-01 (commit abc); on 2026-01-02 (commit def) instead: start.")


def test_a_part_replaces_its_item_and_keeps_the_date_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_machine", lambda: RESULTS["machine"])
    monkeypatch.setattr(record, "_commit", lambda: "now")
    work = record.made(RESULTS, {"start": {"h2ping": [{"start_ms": 1.0}]}})["work"]
    assert work["start"]["commit"] == "now"
    assert work["h1_to_h2_x64_1kb_1kb"]["commit"] == "abc"


def test_requests_per_second_of_a_proxy_that_waited_are_marked_and_not_compared() -> None:
    figures = {
        "per_second": 9000.0,
        "cpu_us": 50.0,
        "proxy_cores": 0.6,
        "client_cores": 0.2,
        "origin_cores": 0.1,
    }
    results = with_item("h1_to_h2_x64_1kb_1kb", **figures)
    results["work"]["h1_to_h2_x64_1kb_1kb"]["proxies"]["go"] = [figures | {"proxy_cores": 1.0}]
    line = next(
        line
        for line in table.markdown(results, all_work(False), headlines=False).splitlines()
        if "per sec" in line
    )
    assert (
        line == "| requests per second, 1 KB / 1 KB, 64 clients | 9,000 † |  | 9,000 |  |  |  |  |  |  | 1 |"
    )


@pytest.mark.parametrize(
    ("name", "figures", "held"),
    [
        ("burst_8192_64kb", {"dialled": 64.0}, True),
        ("burst_8192_64kb", {"dialled": 65.0}, False),
        ("cold_burst_300", {"dialled": 20.0}, False),
        ("goaway_600_per_s", {"failed": 1.0}, False),
        ("in_flight_2000_512kb", {"peak_mb": 325.0}, True),
    ],
)
def test_what_must_hold_is_checked(name: str, figures: dict[str, float], held: bool) -> None:
    found = [
        verdict
        for verdict in goals.verdicts(with_item(name, **figures), all_work(False))
        if verdict.goal.must
    ]
    assert [verdict.held for verdict in found] == [held]


@pytest.mark.parametrize(("cpu_us", "held"), [(129.0, True), (131.0, False)])
def test_growth_is_by_the_same_request_beside_fewer_streams(cpu_us: float, held: bool) -> None:
    results = with_item("open_streams_8000", cpu_us=cpu_us)
    results["work"]["open_streams_100"] = with_item("x", cpu_us=100.0)["work"]["x"]
    (verdict,) = (each for each in goals.verdicts(results, all_work(False)) if each.goal.must)
    assert verdict.held is held


def test_goals_that_were_missed_are_listed() -> None:
    assert "| 0.35 x Go, below nghttpx | 0.30 x Go |" not in table.missed(RESULTS, all_work(False))
    assert "| 0.75 x the best |" in table.missed(
        with_both("bulk_up_x8_8mb", {"cpu_s_per_gb": 2.0}, {"cpu_s_per_gb": 2.0}), all_work(False)
    )


def with_both(name: str, ours: dict[str, float], go: dict[str, float]) -> dict[str, Any]:
    results = with_item(name, **ours)
    results["work"][name]["proxies"]["go"] = [go]
    return results


def test_every_goal_compares_with_work_that_exists() -> None:
    for quick in (False, True):
        names = {item.name for item in all_work(quick)}
        goals_there = [shown.goal for item in all_work(quick) for shown in item.shown if shown.goal]
        assert {goal.beside[1] for goal in goals_there if goal.beside} <= names


def test_lines_of_growth_are_of_work_that_exists() -> None:
    assert {f"open_streams_{held}" for held in plot.OPEN_STREAMS} <= {item.name for item in all_work(False)}
