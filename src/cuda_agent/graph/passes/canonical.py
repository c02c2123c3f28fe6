"""One spelling for each thing: products without bias, permute for every transposition, ..."""

from __future__ import annotations

from collections.abc import Callable

from cuda_agent.graph.ir import Arg, Op, Ref
from cuda_agent.graph.program import Rewriter

Handler = Callable[[Rewriter, Op], bool]


def rule(rewriter: Rewriter, op: Op) -> bool:
    handler = _HANDLERS.get(op.name)
    return handler is not None and handler(rewriter, op)


def _addmm(rewriter: Rewriter, op: Op) -> bool:
    """beta * bias + alpha * (a @ b) as a product and pointwise ops, which may fuse elsewhere."""
    bias, a, b = op.args[:3]
    beta, alpha = op.kwarg("beta", 1), op.kwarg("alpha", 1)
    product = rewriter.emit("aten.mm.default" if op.name == "addmm" else "aten.bmm.default", a, b)
    if alpha != 1:
        product = rewriter.emit("aten.mul.Tensor", product, alpha)
    if beta == 0:
        return rewriter.substitute(op.outputs[0], product)
    if beta != 1:
        bias = rewriter.emit("aten.mul.Tensor", bias, beta)
    return rewriter.substitute(
        op.outputs[0], rewriter.emit("aten.add.Tensor", product, bias, name="biased"))


def _linear(rewriter: Rewriter, op: Op) -> bool:
    x, weight = op.args[:2]
    bias: Arg = op.args[2] if len(op.args) > 2 else op.kwarg("bias")
    shape = rewriter.tensor(x).shape
    rows = 1
    for size in shape[:-1]:
        rows *= size
    if not shape or not rewriter.tensor(x).is_contiguous:
        return False
    flat = x if len(shape) == 2 else rewriter.emit("aten.view.default", x, (rows, shape[-1]))
    turned = rewriter.emit("aten.permute.default", weight, (1, 0))
    result = rewriter.emit("aten.mm.default", flat, turned)
    if isinstance(bias, Ref):
        result = rewriter.emit("aten.add.Tensor", result, bias, name="biased")
    if len(shape) != 2:
        out = rewriter.values[op.outputs[0]].shape
        result = rewriter.emit("aten.view.default", result, out)
    return rewriter.substitute(op.outputs[0], result)


def _instance_norm(rewriter: Rewriter, op: Op) -> bool:
    """Statistics of each (sample, channel): a group norm with one channel in each group."""
    x, weight, bias, mean, variance, use_input, _, eps = op.args[:8]
    shape = rewriter.tensor(x).shape
    if not use_input or isinstance(mean, Ref) or isinstance(variance, Ref) or len(shape) < 3:
        return False
    inner = 1
    for size in shape[2:]:
        inner *= size
    result = rewriter.emit(
        "aten.native_group_norm.default",
        x, weight, bias, shape[0], shape[1], inner, shape[1], eps, name="instance_norm",
    )
    return rewriter.substitute(op.outputs[0], result)


def _transpose(rewriter: Rewriter, op: Op) -> bool:
    rank = len(rewriter.tensor(op.args[0]).shape)
    order = list(range(rank))
    first, second = (op.args[1], op.args[2]) if op.name == "transpose" else (0, 1)
    if rank < 2 or not isinstance(first, int) or not isinstance(second, int):
        return False
    first, second = first % rank, second % rank
    order[first], order[second] = order[second], order[first]
    return rewriter.substitute(
        op.outputs[0], rewriter.emit("aten.permute.default", op.args[0], tuple(order)))


def _unsafe_view(rewriter: Rewriter, op: Op) -> bool:
    return rewriter.substitute(
        op.outputs[0], rewriter.emit("aten.view.default", op.args[0], op.args[1]))


_HANDLERS: dict[str, Handler] = {
    "addmm": _addmm,
    "baddbmm": _addmm,
    "linear": _linear,
    "instance_norm": _instance_norm,
    "transpose": _transpose,
    "t": _transpose,
    "_unsafe_view": _unsafe_view,
}
