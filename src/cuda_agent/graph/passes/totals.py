"""A total over values that are computed along rows is taken along the rows first.

sum(all) of a softmax row's terms becomes sum(dim=-1), which fuses with the softmax, and a small sum
of the rows' sums. Otherwise every term would go through memory.
"""

from __future__ import annotations

from cuda_agent.graph.ir import Op, Ref
from cuda_agent.graph.ops import LABEL_LOSSES, anchor, is_pointwise, reduction_dims
from cuda_agent.graph.program import Rewriter


def rule(rewriter: Rewriter, op: Op) -> bool:
    if op.name not in ("sum", "mean") or not isinstance(op.args[0], Ref):
        return False
    shape = rewriter.tensor(op.args[0]).shape
    dims = reduction_dims(op, rewriter.values)
    partial = _row_dims(rewriter, op.args[0], shape)
    if partial is None or not set(partial) < set(dims) or op.kwarg("dtype") is not None:
        return False
    target = f"aten.{op.name}.{'dim_IntList' if op.name == 'sum' else 'dim'}"
    keep = bool(op.args[2]) if len(op.args) > 2 else bool(op.kwarg("keepdim", False))
    rows = rewriter.emit(target, op.args[0], partial, keep, name="row_total")
    left = [d for d in range(len(shape)) if keep or d not in partial]
    rest = tuple(left.index(d) for d in dims if d not in partial)
    total: Ref = rewriter.emit(target, rows, rest, keep, name="total")
    return rewriter.substitute(op.outputs[0], total)


def _row_dims(rewriter: Rewriter, start: Ref, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Reduce dims of the row op behind `start`, reached through pointwise ops of this shape."""
    stack, seen = [start], {start.name}
    while stack:
        op = rewriter.producer(stack.pop())
        if op is None:
            continue
        found = anchor(op, rewriter.values)
        if found is not None:
            if found[0] == shape and op.name not in LABEL_LOSSES:
                return found[1]
            continue
        if is_pointwise(op) and rewriter.values[op.outputs[0]].shape == shape:
            for name in op.refs():
                if name not in seen:
                    seen.add(name)
                    stack.append(Ref(name))
    return None
