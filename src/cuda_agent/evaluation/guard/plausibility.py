"""Numbers that physics does not allow: a time under the roofline floor."""

from __future__ import annotations

from collections.abc import Iterable

from cuda_agent.records import Finding
from cuda_agent.targets.base import DeviceFacts

_MARGIN = 0.8  # peaks are measured, and buffers placed luckily may be a little faster
_CPU_CACHES = 4  # times the last-level cache, from where on a CPU's memory must be touched


def floor_ms(
    input_bytes: int, output_bytes: int, facts: DeviceFacts, baselines_ms: Iterable[float] = ()
) -> float | None:
    """The least time for reading every input and writing every output once, or None.

    None without a calibration; where everything may stay in caches; and where a trusted baseline
    is faster, because then the reference does not touch all of its inputs (an embedding, a slice).
    What is written may stay in a GPU's L2, so that much of the output is free. Parameters don't
    count: they may be read in part. Operations don't either: algebra may save them.
    """
    peak = facts.peak_bytes_per_s
    if not peak:
        return None
    if facts.target == "cuda":
        moved = input_bytes + max(0, output_bytes - facts.cache_bytes)
    else:
        moved = input_bytes + output_bytes
        if moved < _CPU_CACHES * facts.cache_bytes:
            return None
    floor = moved / peak * 1e3
    return None if any(ms < floor for ms in baselines_ms) else floor


def check(median_ms: float, floor: float | None) -> list[Finding]:
    """A finding when a time lies clearly under the floor."""
    if floor is None or median_ms >= _MARGIN * floor:
        return []
    return [
        Finding(
            "roofline",
            f"{median_ms:.4g} ms a call, but reading the inputs and writing the outputs takes at "
            f"least {floor:.4g} ms on this device: some of the work was not done",
        )
    ]
