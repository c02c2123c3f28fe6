"""Intervals: coverage, monotonicity, and what they refuse."""

from __future__ import annotations

import random
import statistics

import pytest

from cuda_agent.evaluation import stats
from cuda_agent.records import Interval


def test_the_interval_covers_the_true_median_in_95_of_100() -> None:
    draw = random.Random(1)
    for n in (6, 9, 20, 51, 400):
        hits = 0
        for _ in range(1500):
            found = stats.median_interval([draw.expovariate(1.0) for _ in range(n)])
            hits += found.low <= 0.6931 <= found.high
        assert hits / 1500 >= 0.935, n


def test_more_samples_make_it_narrower() -> None:
    draw = random.Random(2)
    widths = [
        stats.width(stats.median_interval([draw.gauss(10, 1) for _ in range(n)]))
        for n in (10, 100, 1000)
    ]
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] < 0.02


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 30, 199, 200, 201, 1000])
def test_the_value_lies_inside(n: int) -> None:
    samples = [float(i % 17) for i in range(n)]
    found = stats.median_interval(samples)
    assert found.value == statistics.median(samples)
    assert found.low <= found.value <= found.high
    assert min(samples) <= found.low and found.high <= max(samples)


def test_few_samples_give_their_whole_range() -> None:
    assert stats.median_interval([3.0, 1.0, 2.0]) == Interval(2.0, 1.0, 3.0)


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no samples"):
        stats.median_interval([])


def test_a_ratio_of_pairs_is_blind_to_a_common_drift() -> None:
    """The machine slows down tenfold during the run; the ratio of rounds does not move."""
    drift = [1 + 0.1 * i for i in range(90)]
    found = stats.ratio([2 * d for d in drift], drift)
    assert found == Interval(2.0, 2.0, 2.0)


def test_a_product_widens_both_ways() -> None:
    found = stats.multiplied(Interval(2.0, 1.8, 2.2), Interval(1.5, 1.4, 1.6))
    assert found.value == pytest.approx(3.0)
    assert 2.6 < found.low < 2.72 and 3.3 < found.high < 3.4
    exact = stats.multiplied(Interval(2.0, 2.0, 2.0), Interval(1.5, 1.5, 1.5))
    assert exact == Interval(3.0, 3.0, 3.0)


def test_timing_keeps_the_raw_samples() -> None:
    found = stats.timing([1.0, 3.0, 2.0], "how")
    assert (found.median_ms, found.low_ms, found.high_ms) == (2.0, 1.0, 3.0)
    assert found.samples_ms == (1.0, 3.0, 2.0) and found.method == "how"
