"""Are these outputs right? Error against a high-precision reference, structure, first mismatch.

An output passes when (1) structure, shape, dtype and device are exactly the reference's, (2) NaN
and infinities lie where eager has them, (3) ||out - ref|| / ||ref - mean(ref)|| is within a bound
that grows with eager's own error against float64, and (4) single elements are within atol + rtol
of the reference, but for about as many as eager itself misses. Zeros and constants have a relative
error of 1 or more by (3), and no bound exceeds 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.evaluation import layout, patterns
from cuda_agent.evaluation.precision import Tolerance
from cuda_agent.records import Mismatch

_CHUNK = 1 << 22  # elements compared at a time, in float64
_NOISE = 0.05  # eager's error in units of the spread, from where on the spread is no scale
_ZERO = 1e-6  # largest absolute error where the reference is zero everywhere


@dataclass
class Expected:
    """What one output tensor must be.

    reference: float64 (or float32 where that did not fit); exact for integers and booleans.
    eager: the same in the problem's dtype; kept for integers, and where elements are not finite.
    scale: norm that errors are divided by. rms: root mean square of the finite elements.
    eager_relative, eager_outliers: how eager itself compares.
    """

    reference: torch.Tensor
    eager: torch.Tensor | None
    dtype: torch.dtype
    finite: bool
    scale: float
    rms: float
    eager_relative: float
    eager_outliers: int

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def nbytes(self) -> int:
        held = [self.reference, *([] if self.eager is None else [self.eager])]
        return sum(t.numel() * t.element_size() for t in held)


@dataclass(frozen=True)
class Comparison:
    """One output against its expectation. `relative` may be inf."""

    relative: float
    absolute: float
    bound: float
    outliers: int
    allowed_outliers: int
    structural: str = ""

    @property
    def ok(self) -> bool:
        return (
            not self.structural
            and self.relative <= self.bound
            and self.outliers <= self.allowed_outliers
        )


def expect(reference: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance | None) -> Expected:
    """From the reference's output and eager's, of equal shape. `tolerance` is None for integers."""
    eager = eager.detach()
    if tolerance is None:
        return Expected(reference, eager, eager.dtype, True, 0.0, 0.0, 0.0, 0)
    finite = all(bool(torch.isfinite(part).all()) for part in eager.reshape(-1).split(_CHUNK))
    spread, norm, rms = _norms(reference, eager, finite)
    error, largest, _ = _difference(eager, reference, None if finite else eager, math.inf, 0.0)
    scale = spread if spread > 1e-6 * norm and error < _NOISE * spread else norm
    relative = _relative(error, largest, scale)
    atol = tolerance.atol * (rms if tolerance.scaled else 1.0)
    _, _, outliers = _difference(eager, reference, None if finite else eager, atol, tolerance.rtol)
    kept = None if finite else eager.clone()
    return Expected(reference, kept, eager.dtype, finite, scale, rms, relative, outliers)


def compare(
    got: torch.Tensor, expected: Expected, tolerance: Tolerance | None, eager_relative: float
) -> Comparison:
    """`got` has the right shape and dtype. `eager_relative`: eager's largest relative error so far,
    because on a single input it may be small by luck."""
    if tolerance is None:
        same = got == expected.reference
        if expected.eager is not None:
            same |= got == expected.eager  # float64 and eager may break a near-tie differently
        wrong = got.numel() - int(same.sum())
        return Comparison(math.inf if wrong else 0.0, float(wrong > 0), 0.0, wrong, 0)
    if not expected.finite and not _same_nonfinite(got, expected.eager):
        return Comparison(math.inf, math.inf, 0.0, 1, 0, "NaN or infinities at other positions")
    atol = tolerance.atol * (expected.rms if tolerance.scaled else 1.0)
    error, largest, outliers = _difference(
        got, expected.reference, expected.eager, atol, tolerance.rtol
    )
    own = max(eager_relative, expected.eager_relative)
    bound = min(max(tolerance.floor, tolerance.factor * own), max(tolerance.cap, 2 * own))
    allowed = 4 * expected.eager_outliers + 2 if expected.eager_outliers else 0
    relative = _relative(error, largest, expected.scale)
    if expected.scale == 0 and largest <= _ZERO:
        outliers = 0
    return Comparison(relative, largest, bound, outliers, allowed)


def _relative(error: float, largest: float, scale: float) -> float:
    if math.isnan(error):
        return math.inf
    if scale > 0:
        return error / scale
    return 0.0 if largest <= _ZERO else math.inf


def _parts(
    a: torch.Tensor, b: torch.Tensor, mask: torch.Tensor | None
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Chunks in float64, complex numbers as pairs, without elements that are not finite in mask."""
    flat = [a.reshape(-1).split(_CHUNK), b.reshape(-1).split(_CHUNK)]
    masks = mask.reshape(-1).split(_CHUNK) if mask is not None else [None] * len(flat[0])
    for x, y, m in zip(*flat, masks, strict=True):
        if m is not None:
            keep = torch.isfinite(m) & torch.isfinite(y)
            x, y = x[keep], y[keep]
        if x.is_complex():
            x, y = torch.view_as_real(x).reshape(-1), torch.view_as_real(y).reshape(-1)
        yield x.double(), y.double()


def _norms(
    reference: torch.Tensor, eager: torch.Tensor, finite: bool
) -> tuple[float, float, float]:
    """(spread, norm, root mean square) of the finite elements of the reference."""
    count, total, square = 0, 0.0, 0.0
    for y, _ in _parts(reference, reference, None if finite else eager):
        count += y.numel()
        total += float(y.sum())
        square += float(torch.dot(y, y))
    if not count:
        return 0.0, 0.0, 0.0
    spread = math.sqrt(max(square - total * total / count, 0.0)) if count > 1 else 0.0
    return spread, math.sqrt(square), math.sqrt(square / count)


def _difference(
    got: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor | None, atol: float, rtol: float
) -> tuple[float, float, int]:
    """(norm of the difference, largest one, how many are beyond atol + rtol |reference|)."""
    error, largest, outliers = 0.0, 0.0, 0
    for x, y in _parts(got, reference, mask):
        d = (x - y).abs_()
        if not d.numel():
            continue
        error += float(torch.dot(d, d))
        top = float(d.max())
        if math.isnan(top):
            return math.nan, math.inf, int(torch.isnan(d).sum())
        largest = max(largest, top)
        if top > atol:
            outliers += int((d > y.abs().mul_(rtol).add_(atol)).sum())
    return math.sqrt(error), largest, outliers


def _same_nonfinite(got: torch.Tensor, eager: torch.Tensor | None) -> bool:
    assert eager is not None
    if got.is_complex():
        got, eager = torch.view_as_real(got), torch.view_as_real(eager)
    bad_got, bad = ~torch.isfinite(got), ~torch.isfinite(eager)
    if not torch.equal(bad_got, bad):
        return False
    return torch.equal(
        torch.nan_to_num(got[bad].float(), nan=0.5), torch.nan_to_num(eager[bad].float(), nan=0.5)
    )


# --- structure ----------------------------------------------------------------------------------


def structure_error(
    answer: Mapping[str, Any], tree: layout.Tree, expected: Sequence[torch.Tensor], device: str
) -> str:
    """"" when a contestant's output has the reference's form, else the first difference."""
    if _shape_of(answer["tree"]) != _shape_of(tree):
        return f"forward returned {_shape_of(answer['tree'])}, the reference {_shape_of(tree)}"
    if len(answer["specs"]) != len(expected):
        return f"forward returned {len(answer['specs'])} tensors, the reference {len(expected)}"
    for i, (spec, want) in enumerate(zip(answer["specs"], expected)):
        if spec["shape"] != list(want.shape):
            return f"output {i} has shape {spec['shape']}, the reference {list(want.shape)}"
        if spec["dtype"] != layout.dtype_name(want.dtype):
            return f"output {i} has dtype {spec['dtype']}, the reference {want.dtype}"
        if spec["device"] != device:
            return f"output {i} lies on {spec['device']}, the reference on {device}"
    return "" if answer["copied"] else "the outputs could not be copied"


def _shape_of(tree: Any, depth: int = 0) -> str:
    """Structure as text. Lists and tuples differ; literals are shown."""
    if depth > 32 or not isinstance(tree, dict) or len(tree) != 1:
        return "?"
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return "tensor"
    if kind in ("tuple", "list") and isinstance(value, list):
        inside = ", ".join(_shape_of(item, depth + 1) for item in value)
        return f"({inside})" if kind == "tuple" else f"[{inside}]"
    if kind == "dict" and isinstance(value, list) and all(
        isinstance(item, list) and len(item) == 2 for item in value
    ):
        return "{" + ", ".join(f"{k!r}: {_shape_of(v, depth + 1)}" for k, v in value) + "}"
    return repr(value)[:60] if kind == "value" else "?"


# --- what is wrong ------------------------------------------------------------------------------


def mismatch(
    name: str, got: torch.Tensor, expected: Expected, tolerance: Tolerance | None
) -> Mismatch:
    """The first wrong element and how the wrong ones lie. Called once, on failure only."""
    want = expected.reference if expected.eager is None else expected.eager
    wrong = _wrong_mask(got, expected, tolerance)
    count = int(wrong.sum())
    flat = int(wrong.reshape(-1).to(torch.uint8).argmax()) if count else _worst(got, want)
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape))
    return Mismatch(
        output=name, index=index, got=_value(got, flat), expected=_value(want, flat),
        wrong_elements=count, total_elements=got.numel(),
        pattern=patterns.describe(got, want, wrong),
    )


def _wrong_mask(
    got: torch.Tensor, expected: Expected, tolerance: Tolerance | None
) -> torch.Tensor:
    if tolerance is None:
        same = got == expected.reference
        return ~(same if expected.eager is None else same | (got == expected.eager))
    atol = tolerance.atol * (expected.rms if tolerance.scaled else 1.0)
    wide = torch.complex128 if got.is_complex() else torch.float64
    atol = max(atol, 1e-30)
    close = torch.isclose(
        got.to(wide), expected.reference.to(wide), tolerance.rtol, atol, equal_nan=True
    )
    if expected.eager is not None:  # what float64 holds and the dtype can't
        bad = ~torch.isfinite(expected.eager)
        same = (got == expected.eager) | (torch.isnan(got) & torch.isnan(expected.eager))
        close = torch.where(bad, same, close)
    return ~close


def _worst(got: torch.Tensor, want: torch.Tensor) -> int:
    if not got.numel():
        return 0
    d = (got.double() - want.double()).abs() if not got.is_complex() else (got - want).abs()
    return int(d.reshape(-1).argmax())


def _value(t: torch.Tensor, flat: int) -> float | str:
    """A JSON number, or text for what JSON has no number for."""
    if not t.numel():
        return "nothing"
    value = t.reshape(-1)[flat].item()
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return float(value)
