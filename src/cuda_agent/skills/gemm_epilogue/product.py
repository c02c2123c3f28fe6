"""What a `gemm` region holds: one product, its operands, and the elementwise ops behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from cuda_agent.graph.ir import DTYPE_BYTES, Op, Ref, Region, Tensor
from cuda_agent.graph.ops import GEMMS
from cuda_agent.skills.emit import elementwise, expressions, types
from cuda_agent.skills.emit.elementwise import Program
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import (
    Unaddressable,
    channel_operands,
    contiguous,
    offset,
    place,
)
from cuda_agent.skills.emit.types import FLOATING, Language

SKINNY_LIMIT = 16


@dataclass(frozen=True)
class Product:
    """`name` = a @ b of shapes (batch, m, k) and (batch, k, n); for `mm`, batch is 1 and the
    tensors have two dims. `epilogue` are the region's other ops, in order."""

    region: Region
    name: str
    a: Tensor
    b: Tensor
    epilogue: tuple[Op, ...]

    @property
    def dtype(self) -> str:
        return self.a.dtype

    @property
    def item_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def batched(self) -> bool:
        return len(self.a.shape) == 3

    @property
    def batch(self) -> int:
        return self.a.shape[0] if self.batched else 1

    @property
    def m(self) -> int:
        return self.a.shape[-2]

    @property
    def n(self) -> int:
        return self.b.shape[-1]

    @property
    def k(self) -> int:
        return self.a.shape[-1]

    @property
    def space(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.n)

    @property
    def count(self) -> int:
        """Elements of the product."""
        return self.batch * self.m * self.n

    @property
    def buffer(self) -> Tensor:
        """The product as the library writes it."""
        return Tensor(self.name, self.space, contiguous(self.space), self.dtype)

    @property
    def operand_bytes(self) -> int:
        return self.batch * self.k * (self.m + self.n) * self.item_bytes

    @cached_property
    def extra(self) -> tuple[Tensor, ...]:
        """Tensors from outside that the epilogue reads."""
        read = {n for op in self.epilogue for n in op.refs()}
        return tuple(t for t in self.region.inputs if t.name in read)

    @cached_property
    def program(self) -> Program | None:
        """The epilogue as an elementwise pass behind the product, in place on its buffer when an
        output fits there. None for a bare product."""
        outputs = [t for t in self.region.outputs if t.name != self.name]
        if not outputs:
            return None
        kept = len(outputs) < len(self.region.outputs)
        fits = [t for t in outputs if t.dtype == self.dtype and t.is_contiguous and not kept]
        return elementwise.prepare(
            self.epilogue, self.region.values, [self.buffer, *self.extra], outputs, self.space,
            in_place={fits[0].name: self.name} if fits else {},
        )  # fmt: skip

    def describe(self) -> str:
        lead = f"{self.batch} x " if self.batched else ""
        behind = f", then {elementwise.describe(self.epilogue)}" if self.epilogue else ""
        return f"({lead}{self.m} x {self.k}) @ ({lead}{self.k} x {self.n}){behind}"


def analyse(region: Region) -> Product | None:
    """None for a region that no form here can write."""
    products = [op for op in region.ops if op.name in GEMMS]
    if region.kind != "gemm" or len(products) != 1 or not region.outputs:
        return None
    found = _product(region, products[0])
    if found is None or 0 in (found.count, found.k):
        return None
    if not elementwise.writable(found.epilogue, region.values):
        return None
    if any(t.shape != found.space or not elementwise.dense(t) for t in region.outputs):
        return None
    if any(t.name == found.name and not t.is_contiguous for t in region.outputs):
        return None
    try:
        _ = found.program, Finish(found)
    except Unaddressable:
        return None
    return found


def _product(region: Region, op: Op) -> Product | None:
    left, right = op.args[:2]
    if not isinstance(left, Ref) or not isinstance(right, Ref):
        return None
    a, b = region.values[left.name], region.values[right.name]
    made = region.values[op.outputs[0]]
    outside = {t.name for t in region.inputs}
    if a.dtype not in FLOATING or {a.dtype, b.dtype, made.dtype} != {a.dtype}:
        return None
    if not {a.name, b.name} <= outside:
        return None
    others = tuple(other for other in region.ops if other is not op)
    return Product(region, op.outputs[0], a, b, others)


@dataclass(frozen=True)
class Sides:
    """The operands of a skinny product: `big` with many rows along `rows`, `small` with at most
    SKINNY_LIMIT rows. `strides`: (batch, row, k). `flipped`: big is b, so that its rows are the
    product's columns. `copied_from`: Python for what a contiguous copy of `small` is made of."""

    big: Tensor
    small: Tensor
    big_strides: tuple[int, int, int]
    small_strides: tuple[int, int, int]
    rows: int
    count: int
    flipped: bool
    copied_from: str | None = None

    @property
    def along_k(self) -> bool:
        """Whether a row of `big` lies in one piece; otherwise neighbours are those of a column."""
        return self.big_strides[2] == 1

    def rearranged(self, k: int) -> Sides:
        """With `small` copied row by row, if vectors of its rows have to be read and cannot."""
        if not self.along_k or self.small_strides[2] == 1:
            return self
        rows = self.small.name if self.flipped else f"{self.small.name}.mT"
        return replace(self, small_strides=(self.count * k, k, 1), copied_from=rows)

    def coordinates(self, row: str, index: str) -> tuple[str, str]:
        """(row, column) of the product for a row of `big` and one of `small`."""
        return (index, row) if self.flipped else (row, index)


def sides(product: Product, limit: int = SKINNY_LIMIT) -> Sides | None:
    """None if both dims of the product exceed `limit` or the large operand has no unit stride."""
    if min(product.m, product.n) > limit:
        return None
    flipped = product.m < product.n
    a, b = _strides(product.a), _strides(product.b)
    b = (b[0], b[2], b[1])
    if product.k == 1:  # any stride will do
        a, b = (*a[:2], 1), (*b[:2], 1)
    found = (
        Sides(product.b, product.a, b, a, product.n, product.m, True)
        if flipped
        else Sides(product.a, product.b, a, b, product.m, product.n, False)
    )
    return found if 1 in found.big_strides[1:] else None


def _strides(tensor: Tensor) -> tuple[int, int, int]:
    batch, row, column = tensor.stride if len(tensor.stride) == 3 else (0, *tensor.stride)
    return batch, row, column


class Finish:
    """The epilogue for one element, written where its sum is at hand."""

    COORDINATES = ("out_batch", "out_row", "out_column")

    def __init__(self, product: Product) -> None:
        self.product = product
        values, space = product.region.values, product.space
        channels = channel_operands(product.epilogue, values)
        tensors: Sequence[Tensor] = (*product.extra, *product.region.outputs)
        self._strides = {t.name: place(t, space, channel=t.name in channels) for t in tensors}

    @property
    def wide(self) -> bool:
        """Whether an element's offset exceeds 32 bits."""
        reach = [sum((n - 1) * s for n, s in zip(self.product.space, strides))
                 for strides in self._strides.values()]  # fmt: skip
        return max(self.product.count, *reach) >= 2**31

    def parameters(self, language: Language) -> list[str]:
        """C parameters: what the epilogue reads, then the outputs."""
        restrict = "__restrict__" if language == "cuda" else "__restrict"
        found = [(t, "const ") for t in self.product.extra]
        found += [(t, "") for t in self.product.region.outputs]
        return [
            f"{const}{types.storage_type(t.dtype)}* {restrict} {identifier(t.name)}_ptr"
            for t, const in found
        ]

    def arguments(self) -> list[str]:
        return [t.name for t in (*self.product.extra, *self.product.region.outputs)]

    def lines(self, value: str, language: Language) -> tuple[list[str], set[str]]:
        """Statements that store every output from the sum `value`, and the helpers they call."""
        product, helpers = self.product, set[str]()
        text = []
        scope = {}
        kind = types.compute_type(product.dtype)
        text.append(f"const {kind} {identifier(product.name)} = {value};")
        scope[product.name] = identifier(product.name)
        for tensor in product.extra:
            code = types.load(f"{identifier(tensor.name)}_ptr[{self._at(tensor)}]", tensor.dtype)
            helpers |= code.helpers
            own = types.compute_type(tensor.dtype)
            text.append(f"const {own} {identifier(tensor.name)} = {code.text};")
            scope[tensor.name] = identifier(tensor.name)
        body = expressions.statements(product.epilogue, product.region.values, scope, language)
        helpers |= body.helpers
        text += body.lines
        for tensor in product.region.outputs:
            code = types.store(body.scope[tensor.name], tensor.dtype)
            helpers |= code.helpers
            text.append(f"{identifier(tensor.name)}_ptr[{self._at(tensor)}] = {code.text};")
        return text, helpers

    def _at(self, tensor: Tensor) -> str:
        lead = self.COORDINATES[3 - len(self.product.space):]
        return offset(self._strides[tensor.name], lead)
