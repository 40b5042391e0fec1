"""Metrics: what is counted, and the Prometheus text format 0.0.4."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from h2ping.metrics import Histogram, Metrics

STATE: dict[str, Any] = {
    "memory": {"limit": 1024, "used": 512, "resident": 256, "waiting": 1, "copies_given_up": 2, "copies_compressed": 3,
               "unread": 128, "readers_cut_off": 4},
    "instances": [
        {
            "name": "judge", "clients": 3, "requests": 2, "waiting": 1, "dialled": 5, "dials_failed": 1,
            "accept_pauses": 3,
            "connections": [{"id": 1, "streams": 2}, {"id": 2, "streams": 0}],
        }
    ],
}  # fmt: skip

LINE = re.compile(r'[a-z0-9_]+(\{[a-z_]+="[^"\n]*"(,[a-z_]+="[^"\n]*")*\})? [0-9.e+-]+')


def rendered() -> tuple[Metrics, str]:
    metrics = Metrics("0.1.0", "compiled")
    judge = metrics.instance("judge")
    judge.finished(200, None, 296.0)
    judge.finished(200, None, 0.5)
    judge.finished(499, "client-gone", 30.0)
    judge.finished(None, "shutdown-grace", 1.0)
    judge.retried("goaway-refused")
    judge.connection_lost("flood")
    judge.round_trip(0.02)
    return metrics, metrics.render(STATE)


@pytest.mark.parametrize(
    "line",
    [
        'h2ping_info{version="0.1.0",engine="compiled"} 1',
        'h2ping_requests_total{instance="judge",status="200"} 2',
        'h2ping_requests_total{instance="judge",status="499"} 1',
        'h2ping_requests_total{instance="judge",status="0"} 1',
        'h2ping_request_failures_total{instance="judge",cause="client-gone"} 1',
        'h2ping_request_resends_total{instance="judge",cause="goaway-refused"} 1',
        'h2ping_upstream_connections_lost_total{instance="judge",cause="flood"} 1',
        'h2ping_accept_pauses_total{instance="judge"} 3',
        'h2ping_request_duration_seconds_bucket{instance="judge",le="0.5"} 1',
        'h2ping_request_duration_seconds_bucket{instance="judge",le="340"} 4',
        'h2ping_request_duration_seconds_bucket{instance="judge",le="+Inf"} 4',
        'h2ping_request_duration_seconds_sum{instance="judge"} 327.5',
        'h2ping_request_duration_seconds_count{instance="judge"} 4',
        'h2ping_ping_round_trip_seconds_count{instance="judge"} 1',
        "h2ping_memory_limit_bytes 1024",
        "h2ping_body_copies_given_up_total 2",
        "h2ping_body_copies_compressed_total 3",
        'h2ping_requests_in_flight{instance="judge"} 2',
        'h2ping_dials_total{instance="judge"} 5',
        'h2ping_upstream_connections{instance="judge"} 2',
        'h2ping_upstream_streams{instance="judge"} 2',
    ],
)
def test_a_sample_is_rendered(line: str) -> None:
    assert line in rendered()[1].splitlines()


def test_every_line_is_a_sample_or_announces_one() -> None:
    """Each family once, HELP and TYPE before its samples."""
    families: list[str] = []
    for line in rendered()[1].splitlines():
        if line.startswith("# HELP "):
            families.append(line.split()[2])
        elif line.startswith("# TYPE "):
            assert line.split()[2] == families[-1]
            assert line.split()[3] in ("counter", "gauge", "histogram")
        else:
            assert LINE.fullmatch(line), line
            assert line.startswith(families[-1])
    assert len(set(families)) == len(families)
    assert all(name.startswith("h2ping_") for name in families)


def test_without_a_state_only_counts_are_rendered() -> None:
    text = Metrics().render()
    assert "h2ping_memory" not in text
    assert text.endswith("\n")


def test_an_instance_keeps_its_books() -> None:
    metrics = Metrics()
    metrics.instance("a").retried("stream-refused")
    metrics.instance("a").retried("stream-refused")
    assert 'cause="stream-refused"} 2' in metrics.render()


def test_a_value_on_a_bound_belongs_to_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    counts = [line.rsplit(" ", 1)[1] for line in histogram.samples("x", {})]
    assert counts == ["2", "4", "5", "14.0", "5"]
    assert histogram.count == 5


def test_a_label_cannot_break_its_line() -> None:
    metrics = Metrics('a"b\\c\nd')
    assert 'version="a\\"b\\\\c\\nd"' in metrics.render()


def test_the_documents_have_every_metric() -> None:
    document = (Path(__file__).parents[2] / "docs" / "observability.md").read_text(encoding="utf-8")
    documented = re.findall(r"(?m)^\| `(h2ping_[a-z_]+)` \|", document)
    assert documented == re.findall(r"(?m)^# TYPE (\S+)", rendered()[1])
