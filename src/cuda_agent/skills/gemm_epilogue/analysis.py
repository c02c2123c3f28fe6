"""A gemm region taken apart: the product, its sizes, and the elementwise ops behind it."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.graph.ir import Op, Ref, Region, Tensor
from cuda_agent.skills.emit.elementwise import Program, prepare
from cuda_agent.skills.emit.epilogue import Epilogue
from cuda_agent.skills.emit.indexing import Unaddressable

SKINNY = 16
_DTYPES = frozenset({"float32", "bfloat16", "float16", "float64"})


@dataclass(frozen=True)
class Gemm:
    """(batch, m, k) @ (batch, k, n), then `epilogue` on the product. batch is 1 for mm."""

    region: Region
    product: Tensor
    a: Tensor
    b: Tensor
    epilogue: tuple[Op, ...]

    @property
    def batch(self) -> int:
        return self.a.shape[0] if len(self.a.shape) == 3 else 1

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n, k"""
        return self.a.shape[-2], self.b.shape[-1], self.a.shape[-1]

    @property
    def flops(self) -> int:
        m, n, k = self.sizes
        return 2 * self.batch * m * n * k

    @property
    def finish(self) -> Epilogue:
        return Epilogue(self.region, self.product, self.epilogue)

    @property
    def in_place(self) -> Tensor | None:
        """The output that can take over the product's buffer: same dtype and strides, and the
        product itself is not wanted."""
        if any(t.name == self.product.name for t in self.region.outputs):
            return None
        for t in self.region.outputs:
            if (t.dtype, t.stride) == (self.product.dtype, self.product.stride):
                return t
        return None

    def program(self) -> Program:
        """The epilogue as an elementwise program over the product."""
        outputs = [t for t in self.region.outputs if t.name != self.product.name]
        taken = self.in_place
        return prepare(
            self.epilogue,
            self.region.values,
            [self.product, *self.finish.others],
            outputs,
            self.region.space,
            in_place={taken.name: self.product.name} if taken else {},
        )


def analyse(region: Region) -> Gemm | None:
    """None for a region that is no product with an epilogue that can be written."""
    products = [op for op in region.ops if op.name in ("mm", "bmm")]
    if region.kind != "gemm" or len(products) != 1:
        return None
    (product,) = products
    first, second = product.args[:2]
    if not isinstance(first, Ref) or not isinstance(second, Ref) or product.kwargs:
        return None
    epilogue = tuple(op for op in region.ops if op is not product)
    values = region.values
    gemm = Gemm(region, values[product.outputs[0]], values[first.name], values[second.name],
                epilogue)
    if gemm.product.dtype not in _DTYPES or gemm.a.dtype != gemm.b.dtype:
        return None
    if gemm.product.dtype != gemm.a.dtype or not gemm.product.is_contiguous or not gemm.a.numel:
        return None
    if not gemm.finish.writable:
        return None
    try:
        if gemm.epilogue:
            gemm.program()
    except Unaddressable:
        return None
    return gemm


@dataclass(frozen=True)
class Skinny:
    """A product with one small side, as own kernels see it.

    `wide` is the operand with `length` rows of `k`, read from memory once; `narrow` has `count`
    (at most 16) rows of `k` and stays in cache. Strides are (batch, row, k). `wide_is_b`: the
    product's rows are narrow rows, its columns wide rows.
    """

    gemm: Gemm
    wide: Tensor
    narrow: Tensor
    length: int
    count: int
    wide_stride: tuple[int, int, int]
    narrow_stride: tuple[int, int, int]
    wide_is_b: bool

    @property
    def k(self) -> int:
        return self.gemm.sizes[2]

    @property
    def along_k(self) -> bool:
        """Neighbours in memory lie along k: dot products. Else along the rows: columns."""
        return self.wide_stride[2] == 1

    @property
    def position(self) -> tuple[str, ...]:
        """Coordinates of the product in terms of wide row `l` and narrow row `q`."""
        at = ("batch", "q", "l") if self.wide_is_b else ("batch", "l", "q")
        return at[-len(self.gemm.region.space) :]


def skinny(gemm: Gemm) -> Skinny | None:
    """The skinny form, None where both sides are large or the layout does not stream."""
    m, n, k = gemm.sizes
    if min(m, n) > SKINNY or max(m, n) < 64 or k < 32 or gemm.product.dtype == "float64":
        return None
    wide_is_b = m <= n
    a, b = _strides(gemm.a), _strides(gemm.b)
    across = (b[0], b[2], b[1])  # b's rows of k are its columns
    form = Skinny(
        gemm=gemm,
        wide=gemm.b if wide_is_b else gemm.a,
        narrow=gemm.a if wide_is_b else gemm.b,
        length=max(m, n),
        count=min(m, n),
        wide_stride=across if wide_is_b else a,
        narrow_stride=a if wide_is_b else across,
        wide_is_b=wide_is_b,
    )
    # 32-bit offsets, and batch times slices in one dim of the grid.
    small = max(t.numel for t in (gemm.a, gemm.b, gemm.product)) < 2**28 and gemm.batch <= 1024
    return form if small and 1 in form.wide_stride[1:] else None


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    stride = tensor.stride if len(tensor.stride) == 3 else (0, *tensor.stride)
    return stride[0], stride[1], stride[2]
