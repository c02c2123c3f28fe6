"""Ops that change nothing: copies, casts to the same dtype, views of views."""

from __future__ import annotations

# ruff: noqa: SIM905
from cuda_agent.graph.ir import Op, Ref
from cuda_agent.graph.program import Rewriter, same_layout

_RESHAPES = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias"})
_IDENTITIES = frozenset(
    """
    alias as_strided clone contiguous detach dropout expand lift lift_fresh_copy
    permute slice squeeze unsqueeze view _to_copy _unsafe_view reshape transpose t
    """.split()
)


def rule(rewriter: Rewriter, op: Op) -> bool:
    return _identity(rewriter, op) or _view_of_view(rewriter, op)


def _identity(rewriter: Rewriter, op: Op) -> bool:
    if op.name not in _IDENTITIES or not isinstance(op.args[0], Ref):
        return False
    source, out = op.args[0], op.outputs[0]
    if op.name in ("permute", "as_strided", "slice") and not _keeps_order(rewriter, op):
        return False
    if not same_layout(rewriter.tensor(source), rewriter.values[out]):
        return False
    if source.name in rewriter.program.fixed() and out in rewriter.outputs:
        return False  # a caller who changes the result must not change what was given
    return rewriter.substitute(out, source)


def _keeps_order(rewriter: Rewriter, op: Op) -> bool:
    """Equal layouts do not prove the same elements: permuting equal sizes of a tensor of ones
    strides, or slicing with an offset."""
    if op.name == "permute":
        order = op.args[1]
        return isinstance(order, tuple) and all(
            isinstance(d, int) and d % len(order) == i for i, d in enumerate(order)
        )
    if op.name == "as_strided":
        return len(op.args) < 4 or op.args[3] in (None, 0)
    assert isinstance(op.args[0], Ref)
    return rewriter.tensor(op.args[0]).shape == rewriter.values[op.outputs[0]].shape


def _view_of_view(rewriter: Rewriter, op: Op) -> bool:
    """reshape(reshape(x)) -> view(x); permute(permute(x)) -> permute(x)."""
    inner = rewriter.producer(op.args[0]) if op.args else None
    if inner is None or not inner.args or not isinstance(inner.args[0], Ref):
        return False
    source, out = inner.args[0], op.outputs[0]
    if op.name in _RESHAPES and inner.name in _RESHAPES:
        shape = rewriter.values[out].shape
        if rewriter.tensor(source).shape == shape:
            return rewriter.substitute(out, source)
        try:
            return rewriter.substitute(out, rewriter.emit("aten.view.default", source, shape))
        except (RuntimeError, ValueError):
            return False
    if op.name == inner.name == "permute":
        outer_order, inner_order = op.args[1], inner.args[1]
        if isinstance(outer_order, tuple) and isinstance(inner_order, tuple):
            order = tuple(inner_order[d] for d in outer_order if isinstance(d, int))
            return rewriter.substitute(
                out, rewriter.emit("aten.permute.default", source, order))
    return False
