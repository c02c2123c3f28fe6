"""Products that need no product: of a diagonal matrix, with a vector, summed over their result."""

from __future__ import annotations

from cuda_agent.graph.ir import Op, Ref
from cuda_agent.graph.ops import reduction_dims
from cuda_agent.graph.program import Rewriter


def rule(rewriter: Rewriter, op: Op) -> bool:
    if op.name == "mm":
        return _diagonal(rewriter, op) or _matvec(rewriter, op)
    return op.name in ("sum", "mean") and _reduced_product(rewriter, op)


def _matvec(rewriter: Rewriter, op: Op) -> bool:
    """(m, k) @ (k, 1) reads each element once: a sum along rows, bound by memory."""
    a, b = op.args[:2]
    (rows, inner), columns = rewriter.tensor(a).shape, rewriter.tensor(b).shape[1]
    if columns != 1 or rows == 1:
        return False
    vector = rewriter.emit("aten.squeeze.dims", b, (1,))
    terms = rewriter.emit("aten.mul.Tensor", a, vector, name="terms")
    if rewriter.tensor(terms).shape != (rows, inner):
        return False
    return rewriter.substitute(
        op.outputs[0], rewriter.emit("aten.sum.dim_IntList", terms, (1,), True, name="product"))


def _reduced_product(rewriter: Rewriter, op: Op) -> bool:
    """sum(a @ b, dim=1) = a @ sum(b, dim=1): the result of the product never exists."""
    product = rewriter.producer(op.args[0])
    if product is None or product.name != "mm" or not rewriter.single_use(op.args[0]):
        return False
    dims = reduction_dims(op, rewriter.values)
    out = rewriter.values[op.outputs[0]]
    if len(dims) != 1 or op.kwarg("dtype") is not None:
        return False
    a, b = product.args[:2]
    dim = (dims[0],)
    if dims[0] == 1:
        b = rewriter.emit(op.target, b, dim, True, name="reduced")
    else:
        a = rewriter.emit(op.target, a, dim, True, name="reduced")
    result: Ref = rewriter.emit("aten.mm.default", a, b)
    if len(out.shape) != 2:
        result = rewriter.emit("aten.squeeze.dims", result, dim)
    return rewriter.substitute(op.outputs[0], result)


def _diagonal(rewriter: Rewriter, op: Op) -> bool:
    """diag(a) @ b scales the rows of b; b @ diag(a) its columns."""
    for position in (0, 1):
        vector = _diagonal_of(rewriter, op.args[position])
        if vector is None:
            continue
        other = op.args[1 - position]
        if position == 0:
            vector = rewriter.emit("aten.unsqueeze.default", vector, 1)
        scaled = rewriter.emit("aten.mul.Tensor", other, vector, name="scaled")
        return rewriter.substitute(op.outputs[0], scaled)
    return False


def _diagonal_of(rewriter: Rewriter, arg: object) -> Ref | None:
    """The vector on the diagonal when `arg` is a square matrix made by diag()."""
    maker = rewriter.producer(arg) if isinstance(arg, Ref) else None
    while maker is not None and maker.name in ("alias", "clone", "view", "permute"):
        maker = rewriter.producer(maker.args[0])
    if maker is None:
        return None
    if maker.name == "diag_embed" and len(maker.args) == 1 and isinstance(maker.args[0], Ref):
        return maker.args[0]
    return None
