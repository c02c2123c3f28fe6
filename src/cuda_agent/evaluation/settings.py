"""How strictly and how long one judge looks at its candidates."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any, get_args

from cuda_agent.errors import SettingsError
from cuda_agent.records import BASELINES, Precision, Tier, Track, content_hash

# What a tier means where a setting is left at None.
_TIERS: dict[str, dict[str, Any]] = {
    "screen": {
        "deadline_s": 10.0, "time_limit_s": 0.3, "interval": 0.05, "min_rounds": 6,
        "random_sets": 3, "styles": ("large", "zeros", "negative", "mixed"), "placements": 1,
        "baselines": ("eager", "compile_default"),
    },
    "audit": {
        "deadline_s": 60.0, "time_limit_s": 6.0, "interval": 0.01, "min_rounds": 20,
        "random_sets": 5,
        "styles": ("zeros", "ones", "large", "small", "negative", "mixed", "noncontiguous"),
        "placements": 5, "baselines": BASELINES,
    },
}  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Frozen; None takes the tier's value.

    deadline_s: seconds that one exchange with a candidate may take (a forward, a load).
    compile_deadline_s: for candidates that build themselves while they load, and for each baseline
        that torch.compile makes.
    time_limit_s: seconds of sampling; it ends earlier when the 95% interval of the ratio to the
        first baseline is narrower than `interval`.
    random_sets, styles: input sets that the outputs are checked on.
    placements: how often the buffers are placed anew while timing.
    threads: of torch and OpenMP on the CPU, for both sides; None: physical cores.
    memory_bytes: for inputs and outputs that are held at a time; None: half of what is free.
    """

    target: str = "cpu"
    tier: Tier = "screen"
    track: Track = "library"
    precision: Precision = "strict"
    baselines: tuple[str, ...] | None = None
    deadline_s: float | None = None
    compile_deadline_s: float = 300.0
    time_limit_s: float | None = None
    interval: float | None = None
    min_rounds: int | None = None
    random_sets: int | None = None
    styles: tuple[str, ...] | None = None
    placements: int | None = None
    threads: int | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("tier", get_args(Tier)), ("track", get_args(Track)), ("precision", get_args(Precision))
        ):
            if getattr(self, name) not in allowed:
                raise SettingsError(
                    f"there is no {name} {getattr(self, name)!r}; use {', '.join(allowed)}"
                )
        if unknown := set(self.baselines or ()) - set(BASELINES):
            raise SettingsError(f"no baseline {sorted(unknown)[0]!r}; use {', '.join(BASELINES)}")
        for name in ("deadline_s", "compile_deadline_s", "time_limit_s", "interval"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(f"{name} must be positive, not {value}")

    def complete(self) -> Settings:
        """With the tier's values in place of None."""
        missing = {k: v for k, v in _TIERS[self.tier].items() if getattr(self, k) is None}
        return replace(self, **missing)

    @property
    def key(self) -> str:
        """Verdicts with equal keys answer the same question."""
        done = self.complete()
        return content_hash(*(getattr(done, name) for name in done.__dataclass_fields__))


def default_threads(cores: int) -> int:
    """OMP_NUM_THREADS where the caller has set it, else the physical cores."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) > 0 else max(1, cores)
