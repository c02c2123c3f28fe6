"""Verdict -> float. Pure functions; every constant is named, with its source."""

from __future__ import annotations

import math
from collections.abc import Callable

from cuda_agent.errors import SettingsError
from cuda_agent.records import Verdict

# arXiv 2602.24286, Eq. 1: "faster" means by more than 5%.
MARGIN = 0.05
REWARD_FAILED = -1.0
REWARD_CORRECT = 1.0
REWARD_FASTER_THAN_EAGER = 2.0
REWARD_FASTER_THAN_COMPILE = 3.0

# `ratio` and `energy`: a factor e in speed or energy is worth 1; beyond e^2 nothing is gained, so
# that one outlier cannot dominate a batch.
LOG_LIMIT = 2.0

Reward = Callable[[Verdict], float]


def milestone(verdict: Verdict) -> float:
    """arXiv 2602.24286, Eq. 1: -1 not correct, 1 correct, 2 faster than eager, 3 faster than eager
    and torch.compile, tested in the order 3, 2, 1.

    Faster: the lower end of the 95% interval of the speed-up exceeds 1 + MARGIN, so that noise
    earns nothing. (The paper compares point estimates.) A baseline that was not measured counts
    as not beaten.
    """
    if not verdict.ok:
        return REWARD_FAILED
    eager = _low(verdict, "eager") > 1 + MARGIN
    if eager and _low(verdict, "compile_default") > 1 + MARGIN:
        return REWARD_FASTER_THAN_COMPILE
    return REWARD_FASTER_THAN_EAGER if eager else REWARD_CORRECT


def ratio(verdict: Verdict) -> float:
    """-1 not correct, else the log of the smallest measured speed-up over eager and torch.compile
    (lower ends), clamped to ±LOG_LIMIT. 0 where no baseline could be measured."""
    if not verdict.ok:
        return REWARD_FAILED
    lows = [low for name in ("eager", "compile_default") if (low := _low(verdict, name)) > 0]
    return _clamp(math.log(min(lows))) if lows else 0.0


def energy(verdict: Verdict, *, baseline_mj: float | None = None) -> float:
    """-1 not correct, else log(baseline / candidate) of the energy of one call, clamped.

    Args:
        baseline_mj: millijoules of one eager call. Without it, of 1 mJ: then rewards compare only
            candidates of the same problem.
    Raises: SettingsError when the device's energy could not be read.
    """
    if not verdict.ok:
        return REWARD_FAILED
    if verdict.energy_mj is None or verdict.energy_mj <= 0:
        raise SettingsError(
            f"the energy of {verdict.target} was not measured, so it cannot be rewarded; "
            "use the milestone or ratio reward."
        )
    return _clamp(math.log((baseline_mj or 1.0) / verdict.energy_mj))


REWARDS: dict[str, Reward] = {"milestone": milestone, "ratio": ratio, "energy": energy}


def get(name: str) -> Reward:
    """Raises SettingsError for an unknown name."""
    if name not in REWARDS:
        raise SettingsError(f"there is no reward {name!r}; choose from {', '.join(REWARDS)}.")
    return REWARDS[name]


def _low(verdict: Verdict, baseline: str) -> float:
    interval = verdict.speedup.get(baseline)
    return interval.low if interval is not None else 0.0


def _clamp(value: float) -> float:
    return max(-LOG_LIMIT, min(LOG_LIMIT, value))
