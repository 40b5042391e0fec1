"""Which timer of the path a lost request looks like."""

from __future__ import annotations

import pytest

from h2ping.timers import Evidence, looks_like

QUIET = {"waited": 30.0, "silent": 5.0, "age": 100.0, "requests": 7}


@pytest.mark.parametrize(
    ("seen", "phrase"),
    [
        ({"silent": 340.4, "waited": 341.0}, "accelerator's idle limit"),
        ({"silent": 350.2, "waited": 351.0}, "NAT's or NLB's idle limit"),
        ({"age": 3600.5}, "connection age"),
        ({"requests": 10_000}, "10,000 requests"),
        ({"waited": 60.3}, "balancer's idle timeout of 60s"),
        ({"waited": 1201.0}, "balancer's idle timeout of 1200s"),
        ({"waited": 302.0}, "NVCF-POLL-SECONDS of 300"),
        ({"waited": 902.0, "poll_seconds": 900.0}, "NVCF-POLL-SECONDS of 900"),
    ],
)
def test_a_known_timer_is_named_with_its_evidence(seen: dict[str, float], phrase: str) -> None:
    assert phrase in looks_like(Evidence(**{**QUIET, **seen}))  # type: ignore[arg-type]


@pytest.mark.parametrize("waited", [0.2, 45.0, 120.0, 330.0, 855.0])
def test_no_timer_is_named_where_none_fits(waited: float) -> None:
    assert looks_like(Evidence(**{**QUIET, "waited": waited})) == ""  # type: ignore[arg-type]


def test_a_poll_time_of_the_request_wins_over_the_defaults() -> None:
    assert looks_like(Evidence(**{**QUIET, "waited": 302.0}, poll_seconds=3600.0)) == ""  # type: ignore[arg-type]
