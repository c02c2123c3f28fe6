"""Medians and their confidence intervals, free of assumptions about the distribution."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from cuda_agent.records import Interval, Timing


def median_interval(samples: Sequence[float]) -> Interval:
    """Median with its 95% interval from order statistics: the number of samples below the true
    median is binomial(n, 1/2). Under six samples the interval is their whole range."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _lower_rank(len(ordered))
    middle = statistics.median(ordered)
    return Interval(middle, ordered[rank], ordered[len(ordered) - 1 - rank])


def _lower_rank(n: int) -> int:
    """The largest k with P(binomial(n, 1/2) <= k - 1) <= 0.025, counted from 0."""
    if n < 6:
        return 0
    if n > 200:  # normal approximation
        return max(0, math.floor(n / 2 - 0.98 * math.sqrt(n)) - 1)
    total, k = 0.0, 0
    while total + math.comb(n, k) * 0.5**n <= 0.025:
        total += math.comb(n, k) * 0.5**n
        k += 1
    return max(0, k - 1)


def width(interval: Interval) -> float:
    """Of the interval, relative to its value."""
    return (interval.high - interval.low) / interval.value if interval.value > 0 else math.inf


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Median of the pairwise ratios of samples taken in the same rounds."""
    return median_interval([a / b for a, b in zip(numerator, denominator, strict=True) if b > 0])


def multiplied(a: Interval, b: Interval) -> Interval:
    """a * b of independent positive intervals, errors added in quadrature on a log scale."""
    value = a.value * b.value
    down = math.hypot(math.log(a.value / a.low), math.log(b.value / b.low))
    up = math.hypot(math.log(a.high / a.value), math.log(b.high / b.value))
    return Interval(value, min(value, value * math.exp(-down)), max(value, value * math.exp(up)))


def timing(samples_ms: Sequence[float], method: str) -> Timing:
    found = median_interval(samples_ms)
    return Timing(found.value, found.low, found.high, tuple(samples_ms), method)
