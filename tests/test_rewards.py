"""Rewards: the milestones of arXiv 2602.24286 Eq. 1 on lower bounds, log ratio, energy."""

from __future__ import annotations

import dataclasses
import math

import pytest

from cuda_agent import rewards
from cuda_agent.errors import SettingsError
from cuda_agent.records import Interval, Timing, Verdict


def verdict(eager: float | None, compiled: float | None, width: float = 0.0) -> Verdict:
    def interval(value: float | None) -> Interval | None:
        return None if value is None else Interval(value, value - width, value + width)

    return Verdict(
        status="ok", problem="p", problem_hash="h", candidate_hash="c", target="cpu",
        tier="screen", track="library", precision="strict", dtype="float32",
        speedup={"eager": interval(eager), "compile_default": interval(compiled)},
        timing=Timing(1.0, 1.0, 1.0, (1.0,), "made up"),
    )


FAILED = Verdict(
    status="wrong", problem="p", problem_hash="h", candidate_hash="c", target="cpu",
    tier="screen", track="library", precision="strict", dtype="float32",
)


@pytest.mark.parametrize(
    ("eager", "compiled", "width", "reward"),
    [
        (2.0, 1.5, 0.0, 3.0),
        (1.06, 1.06, 0.0, 3.0),
        (1.06, 1.06, 0.02, 1.0),  # the lower ends are within the margin
        (2.0, 1.05, 0.0, 2.0),  # exactly 5% is not more than 5%
        (2.0, None, 0.0, 2.0),  # a baseline that is missing is not beaten
        (1.04, 3.0, 0.0, 1.0),
        (None, None, 0.0, 1.0),
        (0.2, 0.2, 0.0, 1.0),
    ],
)
def test_milestones(
    eager: float | None, compiled: float | None, width: float, reward: float
) -> None:
    assert rewards.milestone(verdict(eager, compiled, width)) == reward


def test_a_failure_earns_minus_one_everywhere() -> None:
    assert {rewards.get(name)(FAILED) for name in rewards.REWARDS} == {-1.0}


def test_ratio_is_the_log_of_the_worse_lower_end() -> None:
    assert rewards.ratio(verdict(2.0, 1.5, 0.1)) == pytest.approx(math.log(1.4))
    assert rewards.ratio(verdict(2.0, None)) == pytest.approx(math.log(2.0))
    assert rewards.ratio(verdict(1e6, 1e6)) == rewards.LOG_LIMIT
    assert rewards.ratio(verdict(None, None)) == 0.0


def test_energy_needs_a_reading() -> None:
    measured = dataclasses.replace(verdict(1.0, 1.0), energy_mj=2.0)
    assert rewards.energy(measured, baseline_mj=4.0) == pytest.approx(math.log(2))
    assert rewards.energy(measured) < rewards.energy(dataclasses.replace(measured, energy_mj=1.0))
    with pytest.raises(SettingsError, match="energy of cpu was not measured"):
        rewards.energy(verdict(1.0, 1.0))
    with pytest.raises(SettingsError, match="no reward 'fame'"):
        rewards.get("fame")
