"""Where the elements of an operand lie, seen from an iteration space.

`place` gives an operand's strides over the space (0 where it broadcasts), `collapse` merges dims
that all operands walk alike, so that a contiguous tensor of any rank is one dim. `Layout` then says
which operands can be read as vectors, which are uniform along the innermost dim, which are
permuted, and writes offsets as C expressions of the coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from cuda_agent.graph.ir import DTYPE_BYTES, Op, Ref, Tensor

Shape = tuple[int, ...]
Walk = Literal["constant", "uniform", "vector", "strided"]

# Ops whose further operands have one element per channel, along dim 1 of the first.
CHANNEL_OPERANDS = {
    "_native_batch_norm_legit_no_training": (1, 2, 3, 4),
    "prelu": (1,),
    "_prelu_kernel": (1,),
}


class Unaddressable(ValueError):
    """An operand that does not broadcast to the space."""


def channel_operands(ops: Sequence[Op], values: Mapping[str, Tensor]) -> set[str]:
    """Names of values that `ops` read along dim 1 of the space."""
    return {
        arg.name
        for op in ops
        for position in CHANNEL_OPERANDS.get(op.name, ())
        if position < len(op.args)
        and isinstance(arg := op.args[position], Ref)
        and len(values[arg.name].shape) == 1
    }


def place(tensor: Tensor, space: Shape, *, channel: bool = False) -> tuple[int, ...]:
    """Strides of `tensor` over `space`: aligned at the right, or at dim 1 if `channel`."""
    shape, stride = tensor.shape, tensor.stride
    if channel and len(space) > 1:
        padding = len(space) - 2
        shape, stride = (*shape, *[1] * padding), (*stride, *[0] * padding)
    lead = len(space) - len(shape)
    if lead < 0:
        raise Unaddressable(f"{tensor.name} of {tensor.shape} has more dims than {space}")
    result = [0] * lead
    for size, step, wanted in zip(shape, stride, space[lead:]):
        if size not in (1, wanted):
            raise Unaddressable(f"{tensor.name} of {tensor.shape} does not broadcast to {space}")
        result.append(0 if size == 1 else step)
    return tuple(result)


@dataclass(frozen=True)
class Operand:
    """A tensor and its strides over the (collapsed) dims of the space."""

    tensor: Tensor
    strides: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def item_bytes(self) -> int:
        return DTYPE_BYTES[self.tensor.dtype]

    @property
    def walk(self) -> Walk:
        """How the operand moves along the innermost dim."""
        if not any(self.strides):
            return "constant"
        return {0: "uniform", 1: "vector"}.get(self.strides[-1], "strided")  # type: ignore[return-value]


@dataclass(frozen=True)
class Layout:
    """Collapsed dims of a space, slowest first, with every operand's strides over them."""

    sizes: Shape
    operands: tuple[Operand, ...]

    def __getitem__(self, name: str) -> Operand:
        return next(o for o in self.operands if o.name == name)

    def in_order(self, operand: Operand) -> bool:
        """Whether the operand's offset is the linear index of the element itself."""
        return operand.strides == contiguous(self.sizes)

    @property
    def count(self) -> int:
        return prod(self.sizes)

    @property
    def inner(self) -> int:
        return self.sizes[-1]

    @property
    def flat(self) -> bool:
        """One dim: every operand is contiguous or constant."""
        return len(self.sizes) == 1

    def wide(self, slack: int = 0) -> bool:
        """Whether an index or offset, `slack` past the end included, exceeds 32 bits."""
        furthest = [
            sum((n - 1) * abs(s) for n, s in zip(self.sizes, o.strides)) for o in self.operands
        ]
        return max(self.count, *furthest) + slack >= 2**31

    def vector_width(self, limit: int) -> int:
        """The widest power of two up to `limit` for which every vector operand can be accessed
        `width` elements at a time: the inner dim holds whole vectors (a flat space may end in a
        partial one) and every start is aligned to the access."""
        width = limit
        while width > 1 and not self._fits(width):
            width //= 2
        return width

    def _fits(self, width: int) -> bool:
        if not self.flat and self.inner % width:
            return False
        return all(
            step % min(width, max(16 // o.item_bytes, 1)) == 0
            for o in self.operands
            if o.walk == "vector"
            for step in o.strides[:-1]
        )

    def transposed(self) -> tuple[int, tuple[Operand, ...]]:
        """(dim, operands): operands whose elements are neighbours along `dim`, not along the
        innermost one, where reading them directly would fetch a whole sector per element."""
        found: dict[int, list[Operand]] = {}
        for operand in self.operands:
            if operand.walk != "strided":
                continue
            for dim, (size, step) in enumerate(zip(self.sizes[:-1], operand.strides)):
                if step == 1 and size >= 8 and self.inner >= 8:
                    found.setdefault(dim, []).append(operand)
        if not found:
            return -1, ()
        dim = max(found, key=lambda d: len(found[d]))
        return dim, tuple(found[dim])


def contiguous(sizes: Shape) -> tuple[int, ...]:
    """Row-major strides."""
    return tuple(prod(sizes[d + 1 :]) for d in range(len(sizes)))


def collapse(space: Shape, operands: Sequence[tuple[Tensor, tuple[int, ...]]]) -> Layout:
    """The layout of `operands` (tensor, strides over `space`), the last one's order of dims kept:
    its fastest dim becomes the innermost, so that what is written is written in order."""
    dims = [d for d, size in enumerate(space) if size != 1]
    leader = operands[-1][1]
    dims.sort(key=lambda d: -leader[d] if leader[d] else -(10**18))
    sizes: list[int] = []
    steps: list[list[int]] = []
    for d in dims:
        here = [strides[d] for _, strides in operands]
        if sizes and all(before == step * space[d] for before, step in zip(steps[-1], here)):
            sizes[-1] *= space[d]
            steps[-1] = here
        else:
            sizes.append(space[d])
            steps.append(here)
    if not sizes:
        sizes, steps = [1], [[0] * len(operands)]
    return Layout(
        tuple(sizes),
        tuple(
            Operand(tensor, tuple(step[i] for step in steps))
            for i, (tensor, _) in enumerate(operands)
        ),
    )


def offset(strides: Sequence[int], coordinates: Sequence[str]) -> str:
    """The element offset as a C expression, e.g. "row * 512 + col"; "0" for no step at all."""
    terms = [
        coordinate if step == 1 else f"{coordinate} * {step}"
        for step, coordinate in zip(strides, coordinates)
        if step and coordinate != "0"
    ]
    return " + ".join(terms) or "0"


def coordinates(
    sizes: Shape, index: str, names: Sequence[str], ctype: str, used: Sequence[bool] | None = None
) -> list[str]:
    """Lines that split a linear `index` over `sizes` (slowest first) into `names`. Division by a
    constant compiles to a multiplication. Names that are not `used` get no line."""
    lines: list[str] = []
    for position, name in enumerate(names):
        if used is not None and not used[position]:
            continue
        below = prod(sizes[position + 1 :])
        text = index if below == 1 else f"{index} / {below}"
        if position > 0:
            text = f"{text} % {sizes[position]}"
        lines.append(f"const {ctype} {name} = {text};")
    return lines
