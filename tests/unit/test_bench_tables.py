"""What the benchmarks make of their figures."""

from __future__ import annotations

from bench import plot, table
from bench.work import all_work

RESULTS = {
    "date": "2026-01-01",
    "machine": {},
    "work": {
        "h1_to_h2_x64_1kb_1kb": {
            "h2ping": [{"cpu_us": 10.0}, {"cpu_us": 40.0}, {"cpu_us": 12.0}],
            "go": [{"cpu_us": 40.0}, {"cpu_us": 80.0}, {"cpu_us": 40.0}],
        }
    },
}


def test_a_ratio_is_taken_within_each_round() -> None:
    assert table.ratio(RESULTS, "h1_to_h2_x64_1kb_1kb", "go", "cpu_us") == 0.3


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
    assert plot.svg(RESULTS).count("CPU,") == 1


def test_every_bar_of_the_plot_belongs_to_work_that_exists() -> None:
    known = {(item.name, shown.figure) for item in all_work(False) for shown in item.shown}
    assert {(name, figure) for name, figure, _ in plot.GROUPS} <= known
