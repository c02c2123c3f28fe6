"""Rewrites by linear algebra, valid for every shape: less work for the same result."""

from __future__ import annotations

from cuda_agent.graph.ir import Arg, Op, Ref
from cuda_agent.graph.ops import reduction_dims
from cuda_agent.graph.program import Rewriter

_SUMS = {"aten.sum.dim_IntList", "aten.mean.dim"}
_IDEMPOTENT = _SUMS | {"aten.amax.default", "aten.amin.default"}


def rule(rw: Rewriter, op: Op) -> bool:
    if op.name in {"mm", "bmm"}:
        return _diagonal_product(rw, op)
    if op.target in _IDEMPOTENT and op.outputs[0] and not op.kwargs:
        return _single_elements(rw, op) or _reduction_of_reduction(rw, op) or _sum(rw, op)
    return False


def _keepdim(op: Op) -> bool:
    return len(op.args) > 2 and op.args[2] is True


def _diagonal_product(rw: Rewriter, op: Op) -> bool:
    """diag(v) @ b scales rows, a @ diag(v) scales columns."""
    for side in (0, 1):
        diagonal, other = op.args[side], op.args[1 - side]
        producer = rw.producer(diagonal)
        if producer is None or producer.name != "diag_embed":
            continue
        if any(default != given for default, given in zip((0, -2, -1), producer.args[1:])):
            continue
        v = producer.args[0]
        scale = rw.emit("aten.unsqueeze.default", v, -1 if side == 0 else -2)
        return rw.substitute(op.outputs[0], rw.emit("aten.mul.Tensor", other, scale))
    return False


def _single_elements(rw: Rewriter, op: Op) -> bool:
    """A sum, mean, max or min over dims of size one is the element itself."""
    shape = rw.tensor(op.args[0]).shape
    dims = reduction_dims(op, rw.values)
    if not dims or any(shape[d] != 1 for d in dims):
        return False
    if rw.tensor(op.args[0]).dtype != rw.values[op.outputs[0]].dtype:
        return False
    new = op.args[0]
    if not _keepdim(op):
        new = rw.emit("aten.view.default", new, rw.values[op.outputs[0]].shape)
    elif op.outputs[0] in rw.outputs:
        return False
    return rw.substitute(op.outputs[0], new)


def _reduction_of_reduction(rw: Rewriter, op: Op) -> bool:
    """sum(sum(x)) over two sets of dims is one sum; so for mean, max and min."""
    before = rw.producer(op.args[0])
    if before is None or before.target != op.target or not rw.single_use(op.args[0]):
        return False
    if before.kwargs or _keepdim(op) != _keepdim(before):
        return False
    rank = len(rw.tensor(before.args[0]).shape)
    inner, outer = reduction_dims(before, rw.values), reduction_dims(op, rw.values)
    left = [d for d in range(rank) if _keepdim(op) or d not in inner]
    dims = tuple(sorted({*inner, *(left[d] for d in outer)}))
    new = rw.emit(op.target, before.args[0], dims, _keepdim(op), name=op.outputs[0])
    return rw.substitute(op.outputs[0], new)


def _sum(rw: Rewriter, op: Op) -> bool:
    """Sum or mean over one dim of a product: reduce the operand first, then multiply a vector.

    sum_n (A @ B)[m, n] = A @ (sum_n B). Added biases and number factors are pulled out on the way.
    """
    dims = reduction_dims(op, rw.values)
    source = rw.producer(op.args[0])
    if len(dims) != 1 or source is None or not rw.single_use(op.args[0]):
        return False
    if rw.values[op.outputs[0]].dtype not in ("float32", "float64"):
        return False
    new = _pushed(rw, op.target, source, dims[0], depth=4)
    if new is None:
        return False
    if not _keepdim(op):
        new = rw.emit("aten.view.default", new, rw.values[op.outputs[0]].shape)
    return rw.substitute(op.outputs[0], new)


def _pushed(rw: Rewriter, target: str, source: Op, dim: int, depth: int) -> Ref | None:
    """The reduction (dims kept) of `source`'s result over `dim`, or None if no product is there."""
    out = rw.values[source.outputs[0]]
    rank = len(out.shape)
    if source.name in {"mm", "bmm"} and dim >= rank - 2:
        a, b = source.args[:2]
        if dim == rank - 1:
            b = rw.emit(target, b, (dim,), True, name="column")
        else:
            a = rw.emit(target, a, (dim,), True, name="row")
        return rw.emit(source.target, a, b)
    if depth == 0 or source.kwargs or len(source.args) != 2:
        return None
    inner = source.args[0]
    producer = rw.producer(inner)
    if producer is None or not rw.single_use(inner) or rw.tensor(inner).shape != out.shape:
        return None
    other = source.args[1]
    if source.name in {"mul", "div"} and isinstance(other, (int, float)):
        reduced = _pushed(rw, target, producer, dim, depth - 1)
        return None if reduced is None else rw.emit(source.target, reduced, other)
    if source.name == "add" and isinstance(other, Ref):
        reduced = _pushed(rw, target, producer, dim, depth - 1)
        if reduced is None:
            return None
        return rw.emit(source.target, reduced, _addend(rw, target, other, out.shape, dim))
    return None


def _addend(
    rw: Rewriter, target: str, other: Ref, shape: tuple[int, ...], dim: int
) -> Arg:
    """The same reduction of what was added, which may be broadcast along `dim`."""
    own = rw.tensor(other).shape
    place = dim - (len(shape) - len(own))
    if place >= 0 and own[place] == shape[dim]:
        return rw.emit(target, other, (place,), True, name="offset")
    if target == "aten.mean.dim":
        return other
    return rw.emit("aten.mul.Tensor", other, shape[dim], name="offset")
