"""Is a problem worth judging at all? A few forward passes find out.

A benchmark task that a null kernel passes rewards nothing but cheating, so each finding here makes
the verdict `invalid_problem`:

P-memory     inputs, intermediates and outputs do not fit the device
P-raises     the reference raises on its own inputs
P-output     the reference returns something else than (nested) tensors
P-nonfinite  NaN, or infinities that are not at fixed positions, on random inputs
P-random     two runs on the same inputs differ by more than rounding (dropout, torch.rand)
P-constant   different inputs give the same output: a stored constant would pass
P-zeros      the output is zero: an empty kernel would pass
P-identity   every output equals an input: returning it would pass
"""

from __future__ import annotations

import math
from typing import Any

import torch

from cuda_agent.errors import ProblemError
from cuda_agent.problems import tree
from cuda_agent.problems.materialize import Instance
from cuda_agent.records import Finding

# Relative error, against the spread of the reference, that a strict judge lets pass at most: some
# tens of rounding errors. Deep nets on uniform noise answer alike to 5e-5 and are still sound.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
# Two runs may differ by this, or by the tolerance: atomics reorder sums, which is not randomness.
_NOISE = 1e-4
_CHUNK = 1 << 24
_SEEDS = (20_011, 40_009)


def probe(instance: Instance, *, tolerance: float | None = None) -> list[Finding]:
    """Reasons why `instance` cannot be judged; empty for a sound problem.

    Three forward passes: twice on one set of inputs, once on another.

    Args:
        tolerance: relative error that would pass; default is by dtype (TOLERANCE).
    """
    limit = TOLERANCE[instance.dtype] if tolerance is None else tolerance
    try:
        inputs = instance.inputs(_SEEDS[0])
        first = instance.reference(inputs)
        again = instance.reference(inputs)
        other = instance.reference(instance.inputs(_SEEDS[1]))
    except torch.OutOfMemoryError as error:
        return [Finding("P-memory", f"The reference ran out of memory: {error}".split("\n")[0])]
    except ProblemError as error:
        kind = "P-output" if "forward returned" in str(error) else "P-raises"
        return [Finding(kind, str(error))]
    return examine(inputs, first, again, other, limit)


def examine(inputs: Any, first: Any, again: Any, other: Any, limit: float) -> list[Finding]:
    """The findings of outputs at hand: `first` and `again` on `inputs`, `other` on others."""
    outs, repeats, others = tree.tensors(first), tree.tensors(again), tree.tensors(other)
    found = []
    if bad := _nonfinite(outs, others):
        found.append(Finding("P-nonfinite", bad))
    if not close(repeats, outs, max(limit, _NOISE)):
        worst = max(relative_error(a, b) for a, b in zip(repeats, outs))
        found.append(
            Finding(
                "P-random",
                f"Two runs of the reference on the same inputs differ (relative {worst:.1e}); "
                "remove dropout and random numbers from forward.",
            )
        )
    elif close(others, outs, limit):
        found.append(
            Finding(
                "P-constant",
                "The output is the same for different inputs within the tolerance "
                f"({limit:g}), so a stored constant would pass.",
            )
        )
    if close([torch.zeros_like(t) for t in outs], outs, limit):
        found.append(Finding("P-zeros", "The output is zero, so an empty kernel would pass."))
    sources = tree.tensors(inputs)
    if all(any(_same(source, out, limit) for source in sources) for out in outs):
        found.append(
            Finding("P-identity", "The output equals an input, so returning it would pass.")
        )
    return found


def close(got: list[torch.Tensor], expected: list[torch.Tensor], limit: float) -> bool:
    """Whether every tensor passes at `limit`; shapes must agree (P-random sees to that)."""
    return len(got) == len(expected) and all(
        a.shape == b.shape and relative_error(a, b) <= limit for a, b in zip(got, expected)
    )


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """||got - expected|| / ||expected - mean(expected)||, in float64.

    Against the spread, so that neither zeros nor the mean pass. A single value, or one value
    repeated, has no spread; then ||expected|| takes its place. Integers and booleans are either
    equal (0) or not (inf). Elements that are not finite must agree and are left out of the norms.
    """
    if not expected.is_floating_point() and not expected.is_complex():
        return 0.0 if torch.equal(got, expected) else math.inf
    count, total, square, error = 0, 0.0, 0.0, 0.0
    chunks = zip(got.reshape(-1).split(_CHUNK), expected.reshape(-1).split(_CHUNK))
    for g, e in chunks:
        finite = torch.isfinite(e)
        if not torch.equal(finite, torch.isfinite(g)):
            return math.inf
        if not bool(finite.all()):
            g, e = g[finite], e[finite]
        if e.is_complex():
            g, e = torch.view_as_real(g), torch.view_as_real(e)
        g, e = g.double(), e.double()
        count += e.numel()
        total += float(e.sum())
        square += float(e.square().sum())
        error += float((g - e).square().sum())
    if count == 0 or error == 0:
        return 0.0
    spread = max(square - total * total / count, 0.0)
    scale = spread if count > 1 and spread > 1e-12 * square else square
    return math.sqrt(error / scale) if scale > 0 else math.inf


def _same(source: torch.Tensor, out: torch.Tensor, limit: float) -> bool:
    if source.numel() != out.numel() or source.dtype != out.dtype or out.numel() == 0:
        return False
    return relative_error(source.reshape(out.shape), out) <= limit


def _nonfinite(outs: list[torch.Tensor], others: list[torch.Tensor]) -> str:
    """What is wrong, or "". Infinities at the same places for all inputs are a mask."""
    for i, (a, b) in enumerate(zip(outs, others)):
        if not a.is_floating_point() and not a.is_complex():
            continue
        if n := int(torch.isnan(a).sum()):
            return f"Output {i} holds {n} NaN of {a.numel()} elements on random inputs."
        finite = torch.isfinite(a)
        n = a.numel() - int(finite.sum())
        if n == a.numel() > 0 or (n and not torch.equal(finite, torch.isfinite(b))):
            return f"Output {i} holds {n} infinities of {a.numel()} elements on random inputs."
    return ""
