"""Reshapes sink below pointwise and row ops, so that those run in the space of a product.

A linear layer is a 2-d product between two reshapes. With the second one moved down, the bias,
activation and residual that follow fuse with the product, and meet the next reshape, which cancels.
"""

from __future__ import annotations

from cuda_agent.graph.ir import Arg, Op, Ref, Tensor
from cuda_agent.graph.ops import REDUCTIONS, is_pointwise, reduction_dims
from cuda_agent.graph.passes.regroup import facts_of, free_to_sink
from cuda_agent.graph.program import Rewriter, overload

_FAILURES = (RuntimeError, ValueError, TypeError, IndexError)


def sink_rule(rewriter: Rewriter, op: Op) -> bool:
    if not op.outputs[0] or any(op.outputs[1:]) or op.kwarg("memory_format") is not None:
        return False
    for name in dict.fromkeys(op.refs()):
        view = rewriter.producer(Ref(name))
        if view is None or view.name != "view" or not isinstance(view.args[0], Ref):
            continue
        if not free_to_sink(rewriter, op, Ref(name), view.args[0]):
            continue
        try:
            if _sink(rewriter, op, rewriter.tensor(view.args[0]), rewriter.values[name]):
                return True
        except _FAILURES:
            continue
    return False


def broadcast_rule(rewriter: Rewriter, op: Op) -> bool:
    """A pointwise op broadcasts by itself: it reads what was expanded, not the expanded view."""
    if not is_pointwise(op) or op.kwarg("memory_format") is not None or not op.outputs[0]:
        return False
    sources: dict[str, Arg] = {}
    for name in op.refs():
        maker = rewriter.producer(Ref(name))
        if maker is not None and maker.name == "expand":
            sources[name] = maker.args[0]
    if not sources or op.name == "_native_batch_norm_legit_no_training":
        return False
    args = [sources.get(a.name, a) if isinstance(a, Ref) else a for a in op.args]
    result = rewriter.emit(op.target, *args, name=op.outputs[0], **dict(op.kwargs))
    return rewriter.substitute(op.outputs[0], result)


def _sink(rewriter: Rewriter, op: Op, source: Tensor, view: Tensor) -> bool:
    """Emit `op` on `source`'s leading dims and the view after it. Raises or False if impossible."""
    tail = _common_tail(source.shape, view.shape)
    if tail == 0 or source.shape == view.shape:
        return False
    out = rewriter.values[op.outputs[0]].shape
    old_lead = view.shape[: len(view.shape) - tail]
    new_lead = source.shape[: len(source.shape) - tail]
    args = list(op.args)
    if is_pointwise(op) and op.name != "_native_batch_norm_legit_no_training":
        if len(out) != len(view.shape) or out[: len(old_lead)] != old_lead:
            return False
        args = [_moved(rewriter, arg, old_lead, new_lead, len(view.shape)) for arg in args]
        tail_shape = out[len(old_lead):]
    elif op.name in ("_softmax", "_log_softmax"):
        dim = int(op.args[1]) % len(view.shape)  # type: ignore[arg-type]
        if dim < len(old_lead):
            return False
        args[0] = _moved(rewriter, args[0], old_lead, new_lead, len(view.shape))
        args[1] = dim - len(old_lead) + len(new_lead)
        tail_shape = out[len(old_lead):]
    elif op.name == "native_layer_norm":
        width = len(op.args[1]) if isinstance(op.args[1], tuple) else 1
        if width > tail:
            return False
        args[0] = _moved(rewriter, args[0], old_lead, new_lead, len(view.shape))
        tail_shape = out[len(old_lead):]
    elif op.name in REDUCTIONS and op.target.endswith((".dim_IntList", ".dim", ".default")):
        dims = reduction_dims(op, rewriter.values)
        position = 2 if op.name == "linalg_vector_norm" else 1
        if len(op.args) <= position or not dims or dims[0] < len(old_lead):
            return False
        if rewriter.tensor(op.args[0]) != view:
            return False
        args[0] = _moved(rewriter, args[0], old_lead, new_lead, len(view.shape))
        moved = tuple(d - len(old_lead) + len(new_lead) for d in dims)
        args[position] = moved if isinstance(op.args[position], tuple) else moved[0]
        tail_shape = out[len(old_lead):]
    else:
        return False
    overload(op.target)
    result = rewriter.emit(op.target, *args, name=op.outputs[0], **dict(op.kwargs))
    if rewriter.tensor(result).shape != (*new_lead, *tail_shape):
        return False
    facts_of(rewriter).behind.add(result.name)
    back = rewriter.emit("aten.view.default", result, out, name=op.outputs[0])
    return rewriter.substitute(op.outputs[0], back)


def _common_tail(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return min(count, max(0, min(len(a), len(b)) - 1))


def _moved(
    rewriter: Rewriter, arg: Arg, old: tuple[int, ...], new: tuple[int, ...], rank: int
) -> Arg:
    """An operand with the leading dims `new` in place of `old`. ValueError where it cannot be."""
    if isinstance(arg, tuple) and any(isinstance(a, Ref) for a in arg):
        raise ValueError("a list of tensors")
    if not isinstance(arg, Ref):
        return arg
    shape = rewriter.tensor(arg).shape
    tail = rank - len(old)
    if len(shape) <= tail:
        return arg
    if len(shape) == rank and shape[: len(old)] == old:
        lead = new
    elif all(size == 1 for size in shape[: len(shape) - tail]):
        lead = ()
    else:
        raise ValueError("broadcasts along the leading dims")
    inner = rewriter.producer(arg)
    wanted = (*lead, *shape[len(shape) - tail:])
    if inner is not None and inner.name == "view" and isinstance(inner.args[0], Ref):
        source = inner.args[0]
        if rewriter.tensor(source).shape == wanted:
            return source
    return rewriter.emit("aten.view.default", arg, wanted)
