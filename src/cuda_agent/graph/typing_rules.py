"""Which sets of operations one region may hold: its kind, space and reduced dims, or no.

Pure rules on a set of ops in topological order; `regions.py` decides what to try.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.graph.ir import Op, Ref, RegionKind, Tensor
from cuda_agent.graph.ops import (
    GEMMS,
    LABEL_LOSSES,
    NULLARY,
    REDUCTIONS,
    SCANS,
    TRIANGLES,
    VIEWS,
    anchor,
    is_pointwise,
    is_stencil,
)

Shape = tuple[int, ...]
_ROW_VIEWS = frozenset({"unsqueeze", "squeeze", "view"})


@dataclass(frozen=True)
class Fit:
    """What a set of ops is as a region."""

    kind: RegionKind
    space: Shape = ()
    reduce_dims: tuple[int, ...] = ()


def classify(
    ops: Sequence[Op], values: dict[str, Tensor], outputs: set[str]
) -> Fit | None:
    """The region that `ops` form, None if they cannot be one. `outputs` are read outside."""
    if len(ops) == 1:
        return _alone(ops[0], values)
    if all(op.name in VIEWS for op in ops):
        return Fit("view")
    if any(_head(op, values) for op in ops):
        return _headed(ops, values, outputs)
    if any(op.name in SCANS for op in ops):
        return _scan(ops, values, outputs)
    if any(anchor(op, values) is not None for op in ops):
        return _rowwise(ops, values, outputs)
    return _pointwise(ops, values, outputs)


def _alone(op: Op, values: dict[str, Tensor]) -> Fit:
    found = anchor(op, values)
    if op.name in VIEWS:
        return Fit("view")
    if (head := _head(op, values)) is not None:
        return Fit(head, _out(op, values).shape)
    if found is not None:
        return Fit("scan" if op.name in SCANS else "rowwise", *found)
    if is_pointwise(op):
        return Fit("pointwise", _out(op, values).shape)
    return Fit("torch")


def _out(op: Op, values: dict[str, Tensor]) -> Tensor:
    return values[next(name for name in op.outputs if name)]


def broadcasts(shape: Shape, space: Shape) -> bool:
    """`shape` broadcasts to exactly `space`."""
    if len(shape) > len(space):
        return False
    return all(a in (1, b) for a, b in zip(reversed(shape), reversed(space)))


def _elementwise(op: Op) -> bool:
    return is_pointwise(op) or op.name in NULLARY


def _batch_norm_ok(op: Op, made: set[str], space: Shape, values: dict[str, Tensor]) -> bool:
    """Inference batch norm works on the whole space and reads its vectors from outside."""
    if op.name != "_native_batch_norm_legit_no_training":
        return True
    vectors = [a.name for a in op.args[1:] if isinstance(a, Ref)]
    return _out(op, values).shape == space and made.isdisjoint(vectors)


def _all_elementwise(
    ops: Sequence[Op], space: Shape, values: dict[str, Tensor], outputs: set[str]
) -> bool:
    """Every op broadcasts to `space`, and what leaves the region fills it."""
    made = {name for op in ops for name in op.outputs if name}
    for op in ops:
        shape = _out(op, values).shape
        if not broadcasts(shape, space) or not _batch_norm_ok(op, made, space, values):
            return False
        if shape != space and not outputs.isdisjoint(op.outputs):
            return False
    return True


def _pointwise(ops: Sequence[Op], values: dict[str, Tensor], outputs: set[str]) -> Fit | None:
    if not all(_elementwise(op) for op in ops) or all(op.name in NULLARY for op in ops):
        return None
    space = max((_out(op, values).shape for op in ops), key=lambda s: (_numel(s), len(s)))
    return Fit("pointwise", space) if _all_elementwise(ops, space, values, outputs) else None


def _numel(shape: Shape) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _head(op: Op, values: dict[str, Tensor]) -> RegionKind | None:
    """The kind of region that `op` begins, for one that takes elementwise ops behind it only."""
    if op.name in GEMMS:
        return "gemm"
    return "stencil" if is_stencil(op, values) else None


def _headed(ops: Sequence[Op], values: dict[str, Tensor], outputs: set[str]) -> Fit | None:
    """One product or stencil, then elementwise ops in its shape, and tril or triu behind a
    product; nothing in front of it."""
    heads = [op for op in ops if _head(op, values)]
    others = [op for op in ops if op not in heads]
    kind = _head(heads[0], values)
    triangles = [op for op in others if op.name in TRIANGLES]
    if kind is None or len(heads) != 1 or (triangles and kind != "gemm"):
        return None
    if not all(_elementwise(op) or op in triangles for op in others):
        return None
    made = {name for op in others for name in op.outputs}
    space = _out(heads[0], values).shape
    if not made.isdisjoint(heads[0].refs()):
        return None
    if any(_out(op, values).shape != space for op in triangles):
        return None
    return Fit(kind, space) if _all_elementwise(ops, space, values, outputs) else None


def _scan(ops: Sequence[Op], values: dict[str, Tensor], outputs: set[str]) -> Fit | None:
    """One scan with elementwise ops around it, flips along it, and a shift: a constant put in
    front of what is scanned (exclusive sums)."""
    scans = [op for op in ops if op.name in SCANS]
    found = anchor(scans[0], values)
    if len(scans) != 1 or found is None:
        return None
    space, dims = found
    made = {name: op for op in ops for name in op.outputs}
    shifts = [op for op in ops if op.name == "cat"]
    for op in ops:
        flips = op.name == "flip" and op.args[1] in (dims, (dims[0] - len(space),))
        shift = op.name == "cat" and _shift_ok(op, dims[0], len(space), made)
        if not (_elementwise(op) or op is scans[0] or flips or shift):
            return None
        if (flips or op is scans[0]) and _out(op, values).shape != space:
            return None
    fillers = {name for op in shifts for name in op.refs() if name in made}
    plain = [op for op in ops if fillers.isdisjoint(op.outputs)]
    fits = len(shifts) <= 1 and _all_elementwise(plain, space, values, outputs)
    return Fit("scan", space, dims) if fits and outputs.isdisjoint(fillers) else None


def _shift_ok(op: Op, dim: int, rank: int, made: dict[str, Op]) -> bool:
    """cat([constant, x], dim), x coming from outside."""
    parts = op.args[0]
    along = op.args[1] if len(op.args) > 1 else 0
    if not isinstance(parts, tuple) or len(parts) != 2 or not isinstance(along, int):
        return False
    names = [part.name for part in parts if isinstance(part, Ref)]
    constants = [n for n in names if n in made and made[n].name in NULLARY]
    outside = [n for n in names if n not in made]
    return along % rank == dim and len(constants) == 1 and len(outside) == 1


def _rowwise(ops: Sequence[Op], values: dict[str, Tensor], outputs: set[str]) -> Fit | None:
    """Reductions and norms over the same dims of the same space, elementwise ops on whole rows
    ("elem" level) and on what was reduced ("row" level)."""
    fits = {anchor(op, values) for op in ops if anchor(op, values) is not None}
    if len(fits) != 1:
        return None
    space, dims = fits.pop() or ((), ())
    shapes = {values[_source(op)].shape for op in ops if anchor(op, values) is not None}
    if len(shapes) != 1:
        return None
    levels = _Levels(shapes.pop(), space, dims, values, outputs)
    return Fit("rowwise", space, dims) if levels.accept(ops) else None


def _source(op: Op) -> str:
    return next(op.refs())


class _Levels:
    """Checks the ops of a rowwise region one by one, in order.

    `full` is the shape of whole rows: the space itself, or (N, C, ...) for a group norm, whose
    space is a view of it.
    """

    def __init__(
        self,
        full: Shape,
        space: Shape,
        dims: tuple[int, ...],
        values: dict[str, Tensor],
        outputs: set[str],
    ) -> None:
        self.full, self.values, self.outputs = full, values, outputs
        regrouped = full != space
        self.kept: Shape | None = None
        self.squeezed: Shape | None = None
        # Without the reduced dims, a row value broadcasts against whole rows as it should only
        # if those dims came first.
        self.squeezed_aligns = dims == tuple(range(len(dims)))
        if not regrouped:
            self.kept = tuple(1 if d in dims else n for d, n in enumerate(full))
            self.squeezed = tuple(n for d, n in enumerate(full) if d not in dims)
        self.row: set[str] = set()
        self.elem: set[str] = set()
        self.loss: set[str] = set()  # reduced over the rows as well

    def accept(self, ops: Sequence[Op]) -> bool:
        made = {name for op in ops for name in op.outputs if name}
        return all(self._one(op, made) for op in ops)

    def _is_row(self, shape: Shape) -> bool:
        return shape in (self.kept, self.squeezed)

    def _one(self, op: Op, made: set[str]) -> bool:
        if anchor(op, self.values) is not None:
            return self._anchor(op)
        if op.name == "gather":
            return self._pick(op)
        if op.name in _ROW_VIEWS:
            is_row = _source(op) in self.row and self._is_row(self.values[op.outputs[0]].shape)
            self.row.update(op.outputs)
            return is_row
        if not _elementwise(op) or not _batch_norm_ok(op, made, self.full, self.values):
            return False
        return self._elementwise(op)

    def _anchor(self, op: Op) -> bool:
        if _source(op) in self.row or any(n in self.row | self.elem for n in list(op.refs())[1:]):
            return False
        named = [name for name in op.outputs if name]
        if op.name in REDUCTIONS:
            self.row.update(named)
            return all(self._is_row(self.values[name].shape) for name in named)
        if op.name in LABEL_LOSSES:
            per_row = op.args[3] == 0 and self._is_row(self.values[named[0]].shape)
            (self.row if per_row else self.loss).update(named)
            return True
        self.elem.update(op.outputs[:1])
        self.row.update(filter(None, op.outputs[1:]))
        return all(self._is_row(self.values[name].shape) for name in op.outputs[1:] if name)

    def _pick(self, op: Op) -> bool:
        """gather of one element of each row."""
        shape = self.values[op.outputs[0]].shape
        self.row.update(op.outputs)
        source = self.values[_source(op)].shape
        return source == self.full and shape == self.kept and _source(op) not in self.row

    def _elementwise(self, op: Op) -> bool:
        shape = self.values[op.outputs[0]].shape
        reads = set(op.refs())
        rows = reads & self.row
        if not reads.isdisjoint(self.loss):
            return False
        if rows and self._is_row(shape):
            self.row.update(op.outputs)
            return all(self._fits_row(name, shape) for name in reads & self.elem)
        if rows and not all(self._aligns(name) for name in rows):
            return False
        if broadcasts(shape, self.full):
            self.elem.update(op.outputs)
            return shape == self.full or self.outputs.isdisjoint(op.outputs)
        if not rows and self._is_row(shape) and reads.isdisjoint(self.elem):
            self.row.update(op.outputs)
            return True
        return False

    def _fits_row(self, name: str, shape: Shape) -> bool:
        """An elementwise value that a row op reads must not vary along the row."""
        own = self.values[name].shape
        return _numel(own) == 1 or (shape == self.kept and broadcasts(own, shape))

    def _aligns(self, name: str) -> bool:
        shape = self.values[name].shape
        return shape == self.kept or self.squeezed_aligns or _numel(shape) == 1
