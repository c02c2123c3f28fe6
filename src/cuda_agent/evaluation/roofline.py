"""Where a measured time lies between what the problem must move and compute and the peaks here.

S. Williams et al., "Roofline: an insightful visual performance model", CACM 2009. The work is the
problem's, whatever the candidate does: every input and parameter read once and every output
written once; operations of products, convolutions and attention, as torch counts them. Only these
have a measured peak, so elementwise arithmetic is left out. An advice, no rule: algebra may save
operations, and a reference that touches a part of its inputs moves less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cuda_agent.problems import Instance
from cuda_agent.records import Precision, Roofline
from cuda_agent.targets.base import DeviceFacts


def operations(instance: Instance, inputs: tuple[Any, ...]) -> int | None:
    """2*m*n*k of every product, and the like, in one forward of the reference. None where it can't
    be counted."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            instance.reference(inputs)
        return int(counter.get_total_flops())
    except Exception:  # a formula that does not take this operator's arguments
        return None


def peak_flops(
    rates: Mapping[str, float], dtype: torch.dtype, precision: Precision
) -> float | None:
    """The measured matrix rate that this precision policy allows. Under `strict` float32 three
    products of split operands in TF32 count as one."""
    if dtype == torch.float32:
        tf32 = rates.get("tf32", 0.0)
        best = max(rates.get("fp32", 0.0), tf32 / 3 if precision == "strict" else tf32)
        return best or None
    return rates.get({torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, ""))


def position(
    median_ms: float, moved_bytes: int, flops: int | None, facts: DeviceFacts,
    dtype: torch.dtype, precision: Precision,
) -> Roofline:
    """What bounds the problem on this device, and how far the candidate is from it."""
    seconds = median_ms / 1e3
    peak_bytes = facts.peak_bytes_per_s
    peak = peak_flops(facts.matrix_flops_per_s, dtype, precision)
    floors: dict[str, float] = {}
    if peak_bytes:
        floors["memory"] = moved_bytes / peak_bytes * 1e3
    if peak and flops:
        floors["compute"] = flops / peak * 1e3
    if facts.launch_s and floors:
        floors["launch"] = facts.launch_s * 1e3
    bound = max(floors, key=lambda name: floors[name]) if floors else "unknown"
    floor = floors.get(bound)
    return Roofline(
        bytes=moved_bytes, flops=flops, bytes_per_s=moved_bytes / seconds,
        flops_per_s=None if flops is None else flops / seconds,
        peak_bytes_per_s=peak_bytes, peak_flops_per_s=peak,
        bound=bound,  # type: ignore[arg-type]
        floor_ms=floor, share=None if floor is None else floor / median_ms,
    )


def describe(found: Roofline) -> str:
    """One line: achieved rates, what bounds the problem, how far it is."""
    achieved = f"{found.bytes_per_s / 1e9:.4g} GB/s"
    if found.peak_bytes_per_s:
        achieved += f" of {found.peak_bytes_per_s / 1e9:.4g}"
    if found.flops and found.flops_per_s:
        achieved += f", {found.flops_per_s / 1e12:.3g} TFLOP/s"
        if found.peak_flops_per_s:
            achieved += f" of {found.peak_flops_per_s / 1e12:.3g}"
    if found.floor_ms is None or found.share is None:
        return f"{achieved}; no measured peaks: run `cuda-agent doctor --calibrate`"
    if found.share > 1:
        return (
            f"{achieved}; faster than the {found.bound} floor of {found.floor_ms:.3g} ms: less "
            "is touched or computed than the problem's sizes say"
        )
    return (
        f"{achieved}; bound by {found.bound}: floor {found.floor_ms:.3g} ms, "
        f"{found.share:.0%} reached, {1 / found.share:.2g}x to gain at most"
    )
