"""A row program: what a `rowwise` region computes, freed of tensor ranks and layouts.

The kept dims of a region become R rows, its reduce dims C columns. A value lives at one of two
levels: "elem" (one for each row and column) or "row" (one for each row). Steps are in order:

    Load    a tensor element (or a row's element) from memory
    Map     a pointwise op on values of either level; elem as soon as one operand is
    Reduce  over the columns of a row; gives row-level values
    Pick    an elem-level value at one column, which a row-level index names (gather, NLL loss)
    Store   a value to memory

Every emitter (CUDA, C++) works on this form only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cuda_agent.graph.ir import DTYPE_BYTES, Op

Level = Literal["row", "elem"]
FLOATS = ("float32", "bfloat16", "float16", "float64")


class Unsupported(Exception):
    """The region cannot be written as a row program; another skill, or torch, has to take it."""


@dataclass(frozen=True)
class Operand:
    """A tensor in memory; strides count elements, one for each row axis and column axis."""

    name: str
    dtype: str
    row_strides: tuple[int, ...]
    col_strides: tuple[int, ...]

    @property
    def level(self) -> Level:
        return "elem" if any(self.col_strides) else "row"

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Value:
    name: str
    dtype: str
    level: Level


@dataclass(frozen=True)
class Load:
    value: str
    operand: Operand


@dataclass(frozen=True)
class Map:
    """`op` reads program values by Ref; its one output is `value`."""

    value: str
    op: Op

    @property
    def refs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.op.refs()))


@dataclass(frozen=True)
class Reduce:
    """Kinds and their results:

    sum prod max min any all   one value
    argmax argmin              (extreme, its first column); NaN counts as the extreme, as in torch
    max_expsum                 (m, sum of exp(x - m)) in one reading: online softmax
    mean_m2                    (mean, sum of (x - mean)^2) in one reading: Chan's merge
    """

    values: tuple[str, ...]
    kind: str
    source: str


@dataclass(frozen=True)
class Pick:
    value: str
    source: str
    index: str


@dataclass(frozen=True)
class Store:
    source: str
    operand: Operand

    @property
    def level(self) -> Level:
        return self.operand.level


Step = Load | Map | Reduce | Pick | Store


def defined(step: Step) -> tuple[str, ...]:
    """Names that a step gives a value to."""
    if isinstance(step, Reduce):
        return step.values
    return () if isinstance(step, Store) else (step.value,)


def used(step: Step) -> tuple[str, ...]:
    """Names that a step reads."""
    if isinstance(step, Map):
        return step.refs
    if isinstance(step, Pick):
        return (step.source, step.index)
    return () if isinstance(step, Load) else (step.source,)


@dataclass(frozen=True)
class RowProgram:
    """`row_axes` and `col_axes` are sizes, outermost first; an empty tuple counts as one."""

    name: str
    row_axes: tuple[int, ...]
    col_axes: tuple[int, ...]
    steps: tuple[Step, ...]
    values: dict[str, Value]

    @property
    def rows(self) -> int:
        return product(self.row_axes)

    @property
    def columns(self) -> int:
        return product(self.col_axes)

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(s for s in self.steps if isinstance(s, Load))

    @property
    def stores(self) -> tuple[Store, ...]:
        return tuple(s for s in self.steps if isinstance(s, Store))

    @property
    def reduces(self) -> tuple[Reduce, ...]:
        return tuple(s for s in self.steps if isinstance(s, Reduce))

    @property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(s.operand for s in self.steps if isinstance(s, (Load, Store)))

    def step_of(self, name: str) -> Step:
        return next(s for s in self.steps if name in defined(s))

    def elements(self, operand: Operand) -> int:
        """Distinct elements of an operand: a broadcast axis counts once."""
        sizes = (*self.row_axes, *self.col_axes)
        strides = (*operand.row_strides, *operand.col_strides)
        return product(tuple(n for n, s in zip(sizes, strides) if s))

    @property
    def bytes_moved(self) -> int:
        """The floor: each input read once, each output written once."""
        seen = {o.name: self.elements(o) * o.element_bytes for o in self.operands}
        return sum(seen.values())


def product(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def main_operand(program: RowProgram) -> Operand:
    """The operand that moves most bytes: it decides the order in which memory is walked."""
    return max(program.operands, key=lambda o: program.elements(o) * o.element_bytes)


def canonical(program: RowProgram) -> RowProgram:
    """Axes reordered to walk memory in order, then merged wherever every operand allows it.

    Columns keep their order when a result names a column (argmax, Pick).
    """
    main = main_operand(program)
    row_order = _by_stride(main.row_strides)
    names_column = any(
        isinstance(s, Pick) or (isinstance(s, Reduce) and s.kind.startswith("arg"))
        for s in program.steps
    )
    col_order = (
        tuple(range(len(program.col_axes))) if names_column else _by_stride(main.col_strides)
    )
    operands = {
        o: ([o.row_strides[i] for i in row_order], [o.col_strides[i] for i in col_order])
        for o in program.operands
    }
    row_axes, row_strides = merge_axes(
        [program.row_axes[i] for i in row_order], [v[0] for v in operands.values()]
    )
    col_axes, col_strides = merge_axes(
        [program.col_axes[i] for i in col_order], [v[1] for v in operands.values()]
    )
    moved = {
        o: replace(o, row_strides=tuple(row_strides[i]), col_strides=tuple(col_strides[i]))
        for i, o in enumerate(operands)
    }
    steps = tuple(
        replace(s, operand=moved[s.operand]) if isinstance(s, (Load, Store)) else s
        for s in program.steps
    )
    return replace(program, row_axes=row_axes, col_axes=col_axes, steps=steps)


def _by_stride(strides: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(strides)), key=lambda i: (-strides[i], i)))


def merge_axes(
    sizes: list[int], strides: list[list[int]]
) -> tuple[tuple[int, ...], list[list[int]]]:
    """Merge neighbouring axes that all stride lists walk as one; axes of size one vanish."""
    axes: list[int] = []
    merged: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(sizes):
        if size == 1:
            continue
        if axes and all(m[-1] == s[axis] * size for m, s in zip(merged, strides)):
            axes[-1] *= size
            for m, s in zip(merged, strides):
                m[-1] = s[axis]
        else:
            axes.append(size)
            for m, s in zip(merged, strides):
                m.append(s[axis])
    return tuple(axes), merged


def column_major(program: RowProgram) -> bool:
    """True when neighbours in memory are rows, so that threads must lie along rows."""
    along_rows = along_cols = 0
    for operand in program.operands:
        if operand.level != "elem":
            continue
        moved = program.elements(operand) * operand.element_bytes
        if operand.col_strides and operand.col_strides[-1] == 1:
            along_cols += moved
        elif operand.row_strides and operand.row_strides[-1] == 1:
            along_rows += moved
    return along_rows > along_cols


def cone(program: RowProgram, roots: tuple[str, ...], stop: frozenset[str]) -> Iterator[Step]:
    """Elem-level steps that `roots` need, in program order; `stop` are values already at hand."""
    needed = set(roots) - stop
    chosen: list[Step] = []
    for step in reversed(program.steps):
        names = defined(step)
        if not isinstance(step, (Load, Map)) or not needed.intersection(names):
            continue
        if program.values[names[0]].level == "elem":
            chosen.append(step)
            needed.update(n for n in used(step) if n not in stop)
    return reversed(chosen)
