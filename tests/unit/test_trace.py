"""The judge trace: its quantiles are the published ones, for any number of samples."""

from __future__ import annotations

import pytest

from h2ping.lab.trace import FAST, JUDGE, Delays, Scale, quantile

JUDGE_PUBLISHED = [(0.5, 296.0), (0.9, 401.0), (0.95, 439.0), (0.99, 514.0), (1.0, 854.0)]
FAST_PUBLISHED = [(0.5, 1.0), (0.99, 14.0), (1.0, 155.0)]


@pytest.mark.parametrize("count", [600, 11_842])
@pytest.mark.parametrize(
    ("delays", "probability", "seconds"),
    [(JUDGE, *pair) for pair in JUDGE_PUBLISHED] + [(FAST, *pair) for pair in FAST_PUBLISHED],
    ids=lambda value: value.name if isinstance(value, Delays) else str(value),
)
def test_samples_have_the_published_quantiles(
    delays: Delays, probability: float, seconds: float, count: int
) -> None:
    assert quantile(delays.samples(count), probability) == pytest.approx(seconds, rel=0.01)


def test_the_same_seed_gives_the_same_run() -> None:
    assert JUDGE.samples(600, seed=7) == JUDGE.samples(600, seed=7)
    assert JUDGE.samples(600, seed=7) != JUDGE.samples(600, seed=8)


def test_the_order_of_samples_is_shuffled() -> None:
    samples = JUDGE.samples(600)
    assert samples != sorted(samples)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_samples_end_with_the_longest_call(count: int) -> None:
    samples = JUDGE.samples(count)
    assert len(samples) == count
    assert not samples or max(samples) == 854.0


@pytest.mark.parametrize("probability", [-1.0, 0.0, 0.05, 0.3, 0.999, 1.0, 2.0])
def test_the_distribution_stays_between_its_ends(probability: float) -> None:
    assert 35.0 <= JUDGE.at(probability) <= 854.0


def test_the_distribution_never_falls() -> None:
    values = [JUDGE.at(step / 1000) for step in range(1001)]
    assert values == sorted(values)


def test_one_factor_scales_every_time() -> None:
    scale = Scale(100)
    assert scale.of(340) == 3.4
    assert scale.flag(60) == "600000us"
    assert Scale().of(340) == 340
