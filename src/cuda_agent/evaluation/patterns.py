"""How the wrong elements of an output lie, and what stands there instead of the right values.

Measured on the tensors, in the judge's process, once a candidate has failed. `describe` answers
with "where: what", e.g. "columns 60 to 63 of 64 (the tail): zeros". Every test is exact or has its
tolerance here; where none fits, nothing is claimed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_SAMPLES = 1 << 16  # wrong elements whose values are looked at
_LISTED = 1 << 22  # wrong elements, up to where all their positions are listed
_NEAR = 1e-3  # how near a value must be to what it is taken for, in units of it and of the rms
_LEAST = 4  # wrong elements, under which any relation between values would be chance
_TILES = (256, 128, 64, 32, 16, 8)
_PRECISIONS = ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"))


def describe(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> str:
    """`got`, `want`: an output and its reference, of equal shape; `wrong`: a mask over them."""
    total, count = wrong.numel(), int(wrong.sum())
    if count == 0:
        return _slightly(got, want)
    if got.is_floating_point() and (nan := torch.isnan(got) & wrong).any():
        nans = int(nan.sum())
        if nans == total:
            return "all NaN"
        # A few among many wrong ones say nothing of their own: memory that was never written.
        if nans * 8 < count:
            sample = Sample.of(got, want, wrong & ~nan, count - nans)
            said = f"{where(wrong, count)}{_what(sample, whole=False)}"
            return f"{said}; {nans} of them NaN"
        others = f"; {count - nans} other elements are wrong as well" if count > nans else ""
        return f"{nans} NaN: {where(nan, nans)}{others}"
    sample = Sample.of(got, want, wrong, count)
    return f"{where(wrong, count)}{_what(sample, whole=count == total)}"


# --- where --------------------------------------------------------------------------------------


def where(wrong: torch.Tensor, count: int) -> str:
    """The smallest plain region that holds the `count` wrong elements and no right one; else in
    which rows, columns or channels they are, and how many of their elements."""
    total, flat = wrong.numel(), wrong.reshape(-1)
    if count == total:
        return "every element" if total > 1 else "the only element"
    hits = [_hit(wrong, d) for d in range(wrong.dim())]
    parts = [d for d, hit in enumerate(hits) if len(hit) < wrong.shape[d]]
    names = _names(wrong.dim())
    spans = [_span(hits[d], wrong.shape[d], names[d]) for d in parts]
    if math.prod(len(hit) for hit in hits) == count:
        return " × ".join(spans)
    first, last = _first(flat), total - 1 - _first(flat.flip(0))
    if last - first + 1 == count:
        if last == total - 1:
            return f"everything from flat index {first} on, the tail of {count}"
        return f"the first {count} elements" if first == 0 else f"flat indices {first} to {last}"
    found = _triangle(wrong, count) or _stepped(flat, count) or _tiles(wrong) or _border(wrong)
    if found:
        return found
    if not spans:
        return f"{count} scattered elements, {_percent(count, total)}"
    inside = math.prod(len(hit) for hit in hits)
    return f"in {' × '.join(spans)}, {_percent(count, inside)} of the elements there"


def _percent(part: int, whole: int) -> str:
    share = 100 * part / whole
    return f"{share:.0f}%" if share >= 1 else f"{share:.2g}%"


def _first(flat: torch.Tensor) -> int:
    return int(flat.to(torch.uint8).argmax())


def _hit(wrong: torch.Tensor, dim: int) -> list[int]:
    """Indices along `dim` at which anything is wrong."""
    lead = math.prod(wrong.shape[:dim])
    return wrong.reshape(lead, wrong.shape[dim], -1).any(2).any(0).nonzero()[:, 0].tolist()


def _names(dims: int) -> list[str]:
    """What the dimensions of such a tensor are called, as torch lays them out."""
    if dims == 1:
        return ["element"]
    outer = {2: [], 3: ["batch item"], 4: ["batch item", "channel"]}.get(
        dims, ["batch item", "channel", *(f"dim-{d} index" for d in range(2, dims - 2))]
    )
    return [*outer, "row", "column"]


def _span(hit: Sequence[int], size: int, name: str) -> str:
    """Indices in words: "rows 4 to 8 of 32", "every 4th column from 1 on"."""
    first, last, n = hit[0], hit[-1], len(hit)
    plural = "batch items" if name == "batch item" else f"{name}s".replace("indexs", "indices")
    if n == 1:
        return f"{name} {first} of {size}" + (" (the last)" if first == size - 1 > 0 else "")
    if last - first + 1 == n:
        if last == size - 1:
            return f"{plural} {first} to {last} of {size} (the tail)"
        return f"{plural} {first} to {last} of {size}" + (" (the first)" if first == 0 else "")
    step = hit[1] - hit[0]
    if n > 2 and all(b - a == step for a, b in itertools.pairwise(hit)):
        return f"every {_nth(step)} {name} from {first} on, {n} of {size}"
    shown = ", ".join(map(str, hit[:4])) + ("" if n <= 4 else ", …")
    return f"{n} of {size} {plural} ({shown})"


def _nth(n: int) -> str:
    return f"{n}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10 if n % 100 // 10 != 1 else 0, 'th') }"


def _stepped(flat: torch.Tensor, count: int) -> str:
    if not 3 <= count <= _LISTED:
        return ""
    places = flat.nonzero()[:, 0]
    steps = places.diff()
    if not bool((steps == steps[0]).all()):
        return ""
    return f"every {_nth(int(steps[0]))} element from flat index {int(places[0])} on"


def _tiles(wrong: torch.Tensor) -> str:
    """Whole square tiles of the last two dimensions, as blocks of a kernel compute them."""
    if wrong.dim() < 2:
        return ""
    rows, columns = wrong.shape[-2:]
    for tile in _TILES:
        if min(rows, columns) < 2 * tile or rows % tile or columns % tile:
            continue
        sums = wrong.reshape(-1, rows // tile, tile, columns // tile, tile).sum((2, 4))
        bad = sums > 0
        if bool((sums[bad] == tile * tile).all()):
            _, r, c = (int(i) * f for i, f in zip(bad.nonzero()[0], (1, tile, tile)))
            return (
                f"{int(bad.sum())} of {bad.numel()} whole {tile}×{tile} tiles, the first at row "
                f"{r}, column {c}"
            )
    return ""


def _triangle(wrong: torch.Tensor, count: int) -> str:
    if wrong.dim() < 2 or wrong.shape[-1] != wrong.shape[-2] or wrong.shape[-1] < 3:
        return ""
    n = wrong.shape[-1]
    batch = wrong.numel() // (n * n)
    for text, kept, size in (
        ("the diagonal", wrong.triu().tril(), n),
        ("everything above the diagonal", wrong.triu(1), n * (n - 1) // 2),
        ("everything below the diagonal", wrong.tril(-1), n * (n - 1) // 2),
    ):
        if count == batch * size == int(kept.sum()):
            return text
    return ""


def _border(wrong: torch.Tensor) -> str:
    """Only the outermost rows and columns: padding."""
    if wrong.dim() < 3 or min(wrong.shape[-2:]) < 8:
        return ""
    for width in (1, 2, 3):
        inner = wrong[..., width:-width, width:-width]
        sides = (wrong[..., :width, :], wrong[..., -width:, :],
                 wrong[..., :width], wrong[..., -width:])  # fmt: skip
        if not bool(inner.any()) and all(bool(side.any()) for side in sides):
            return f"only the border of the last two dimensions, up to {width} wide (padding?)"
    return ""


# --- what ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Wrong elements in float64: `got` and `want` at the flat indices `places` of a tensor of
    `shape`; `whole` is the reference, flat. `near`: the absolute part of every tolerance."""

    got: torch.Tensor
    want: torch.Tensor
    places: torch.Tensor
    whole: torch.Tensor
    shape: torch.Size
    near: float

    @classmethod
    def of(
        cls, got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor, count: int
    ) -> Sample | None:
        """None for complex numbers."""
        if got.is_complex():
            return None
        flat, total = wrong.reshape(-1), wrong.numel()
        if count <= _LISTED:
            places = flat.nonzero()[:, 0]
            places = places[:: -(-len(places) // _SAMPLES)]
        else:
            places = torch.arange(0, total, max(1, total // _SAMPLES), device=flat.device)
            places = places[flat[places]]
        whole = want.reshape(-1)
        w = whole[places].double()
        kept = torch.isfinite(w)
        size = float(w[kept].square().mean().sqrt()) if bool(kept.any()) else 0.0
        g = got.reshape(-1)[places].double()
        return cls(g, w, places, whole, got.shape, _NEAR * size)

    def same(self, got: torch.Tensor, want: torch.Tensor) -> bool:
        """Equal within _NEAR, but for one element in a thousand."""
        apart = (got - want).abs() > _NEAR * want.abs() + self.near
        return len(got) >= _LEAST and int(apart.sum()) <= len(got) // 1000

    def moved(self, places: torch.Tensor, inside: torch.Tensor | None = None) -> bool:
        """Whether `got` holds what the reference has at the flat indices `places`; those that are
        not `inside` do not count."""
        got = self.got
        if inside is not None:
            got, places = got[inside], places[inside]
        return 2 * len(got) > len(self.got) and self.same(got, self.whole[places].double())


def _what(sample: Sample | None, whole: bool) -> str:
    if sample is None or not len(sample.got):
        return ""
    g, w = sample.got, sample.want
    if bool((g == 0).all()):
        if bool((w < 0).all()) and not whole:
            return ": zero wherever a negative value is expected (clamped?)"
        return ": the output is all zeros" if whole else ": zeros (not written?)"
    if bool(torch.isinf(g).all()):
        return ": infinite"
    if bool((w == 0).all()):
        sign = "negative" if bool((g < 0).all()) else "other"
        return f": {sign} values where 0 is expected (a missing clamp or mask?)"
    if len(g) > 1 and bool((g == g[0]).all()) and not bool((w == w[0]).all()):
        return f": the constant {float(g[0]):.4g}"
    found = _moved(sample) or _scaled(sample) or _rounded(sample)
    return f": {found}" if found else ""


def _moved(s: Sample) -> str:
    """Right values in wrong places."""
    if len(s.got) < _LEAST:
        return ""
    if len(s.shape) >= 2 and min(s.shape[-2:]) > 1:
        rows, columns = s.shape[-2:]
        inner = s.places % (rows * columns)
        base = s.places - inner
        if rows == columns and s.moved(base + inner % columns * columns + inner // columns):
            return "the transpose of the last two dimensions"
        # Laid out as [columns, rows] in the same memory.
        if rows != columns and s.moved(base + inner % rows * columns + inner // rows):
            return "laid out as the transpose of the last two dimensions"
    for dim, name in reversed([*enumerate(_names(len(s.shape)))]):
        size, stride = s.shape[dim], math.prod(s.shape[dim + 1 :])
        for by in (1, -1, 2, -2):
            source = s.places // stride % size - by
            if s.moved(s.places - by * stride, (source >= 0) & (source < size)):
                way = "later" if by > 0 else "earlier"
                much = "one" if abs(by) == 1 else "two"
                return f"shifted by {much}: the value of the {name} {way} than it belongs"
    return ""


def _scaled(s: Sample) -> str:
    """Times a constant, or a constant apart."""
    big = s.want.abs() > s.near
    g, w = s.got[big], s.want[big]
    if len(g) < _LEAST:
        return ""
    ratio = float((g * w).sum() / w.square().sum())
    if ratio and s.same(s.got / ratio, s.want) and _explains(g, ratio * w, w):
        if abs(ratio + 1) < 1e-3:
            return "the sign is flipped"
        return f"{ratio:.4g} times the expected value{_size_of(ratio, s.shape)}"
    offset = float((g - w).median())
    if offset and s.same(s.got - offset, s.want) and _explains(g, w + offset, w):
        return f"{abs(offset):.4g} too {'large' if offset > 0 else 'small'}"
    return ""


def _explains(got: torch.Tensor, model: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether `model` leaves under a twentieth of the error: a small error is no scale."""
    return bool((got - model).square().sum() < 0.0025 * (got - want).square().sum())


def _size_of(ratio: float, shape: torch.Size) -> str:
    for dim, n in enumerate(shape):
        for value, said in ((n, "not divided by it?"), (1 / n, "divided once too often?")):
            if n > 2 and abs(ratio / value - 1) < 1e-3:
                return f" (the size of dim {dim} is {n}: {said})"
    return ""


def _rounded(s: Sample) -> str:
    """All values of fewer bits than the output's type has."""
    if s.whole.dtype == torch.float64 or s.whole.dtype == torch.float32:
        for kind, name in _PRECISIONS:
            g, w = s.got.to(kind).double(), s.want.to(kind).double()
            if torch.equal(g, s.got) and s.same(g, w) and not torch.equal(w, s.want):
                return f"rounded to {name}"
    return ""


def _slightly(got: torch.Tensor, want: torch.Tensor) -> str:
    """No element is wrong alone, and all together are: lost precision, or a small bias."""
    said = "every element is slightly off: the error as a whole is too large"
    if got.is_complex() or not got.numel():
        return said
    everything = torch.ones_like(got, dtype=torch.bool)
    sample = Sample.of(got, want, everything, got.numel())
    assert sample is not None
    finite = torch.isfinite(sample.want) & torch.isfinite(sample.got)
    g, w = sample.got[finite], sample.want[finite]
    if not len(w) or not bool((g != w).any()):
        return said
    if rounded := _rounded(sample):
        return f"{said}: {rounded}"
    bias = float((g - w).mean() / (g - w).square().mean().sqrt())
    if abs(bias) > 0.9:
        return f"{said}, almost all {'above' if bias > 0 else 'below'} what is expected"
    return f"{said} (reduced precision, or another order of a long sum)"
