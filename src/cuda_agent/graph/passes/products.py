"""A product with one column is a sum along rows."""

from __future__ import annotations

from cuda_agent.graph.ir import Op
from cuda_agent.graph.program import Rewriter


def rule(rewriter: Rewriter, op: Op) -> bool:
    """(m, k) @ (k, 1) reads each element once, so it is bound by memory as row sums are."""
    if op.name != "mm":
        return False
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
