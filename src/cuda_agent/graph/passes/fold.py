"""What depends on parameters alone is computed once: batch norm in the weights before it, and any
expression of parameters. Only with `capture(..., fold=True)`."""

from __future__ import annotations

from cuda_agent.graph.ir import Arg, Derived, Op, Ref
from cuda_agent.graph.ops import NULLARY, RANDOM, VIEWS
from cuda_agent.graph.program import Program, Rewriter


def batch_norm_rule(rw: Rewriter, op: Op) -> bool:
    """norm(conv(x, w) + b) -> conv(x, w * s) + (b - mean) * s + beta, s = gamma * rsqrt(var + eps).

    The same for a product with a matrix of parameters.
    """
    if op.name != "_native_batch_norm_legit_no_training" or not rw.single_use(op.args[0]):
        return False
    before = rw.producer(op.args[0])
    static = set(rw.program.attributes)
    if before is None or not set(op.refs()) - {_name(op.args[0])} <= static:
        return False
    if before.name == "convolution":
        return _into_convolution(rw, op, before)
    return _into_product(rw, op, before)


def _name(arg: Arg) -> str:
    return arg.name if isinstance(arg, Ref) else ""


def _scale_shift(rw: Rewriter, op: Op, bias: Arg) -> tuple[Ref, Ref]:
    """(s, (b - mean) * s + beta), both of shape (C,)."""
    _, gamma, beta, mean, var, _, eps = op.args
    scale = rw.emit("aten.add.Tensor", var, eps, name="scale")
    scale = rw.emit("aten.rsqrt.default", scale, name="scale")
    if gamma is not None:
        scale = rw.emit("aten.mul.Tensor", scale, gamma, name="scale")
    if bias is None:
        shift = rw.emit("aten.neg.default", mean, name="shift")
    else:
        shift = rw.emit("aten.sub.Tensor", bias, mean, name="shift")
    shift = rw.emit("aten.mul.Tensor", shift, scale, name="shift")
    if beta is not None:
        shift = rw.emit("aten.add.Tensor", shift, beta, name="shift")
    return scale, shift


def _into_convolution(rw: Rewriter, op: Op, conv: Op) -> bool:
    x, weight, bias, *settings = conv.args
    transposed, groups = settings[3], settings[5]
    if not isinstance(weight, Ref) or weight.name not in rw.program.attributes:
        return False
    if transposed and groups != 1:
        return False
    rank = len(rw.tensor(weight).shape)
    scale, shift = _scale_shift(rw, op, bias)
    shape = [1] * rank
    shape[1 if transposed else 0] = rw.tensor(scale).numel
    scale = rw.emit("aten.view.default", scale, tuple(shape))
    weight = rw.emit("aten.mul.Tensor", weight, scale, name=f"{weight.name}_folded")
    return rw.substitute(op.outputs[0], rw.emit(conv.target, x, weight, shift, *settings))


def _into_product(rw: Rewriter, op: Op, before: Op) -> bool:
    bias: Arg = None
    if before.name == "add" and not before.kwargs and len(before.args) == 2:
        bias = before.args[1]
        product = rw.producer(before.args[0])
        if not rw.single_use(before.args[0]) or _name(bias) not in rw.program.attributes:
            return False
    else:
        product = before
    if product is None or product.name != "mm" or not _static(rw, product.args[1]):
        return False
    scale, shift = _scale_shift(rw, op, bias)
    weight = rw.emit("aten.mul.Tensor", product.args[1], scale, name="weight_folded")
    new = rw.emit(product.target, product.args[0], weight)
    return rw.substitute(op.outputs[0], rw.emit("aten.add.Tensor", new, shift))


def _static(rw: Rewriter, arg: Arg) -> bool:
    if _name(arg) in rw.program.attributes:
        return True
    producer = rw.producer(arg)
    return producer is not None and producer.name in VIEWS and _static(rw, producer.args[0])


def split_off(program: Program) -> tuple[Derived, ...]:
    """Take the ops that depend on parameters alone out of `program`."""
    static: dict[str, Op] = {}
    known = set(program.attributes) | set(program.constants)
    for op in program.ops:
        if op.name not in RANDOM and all(n in known or n in static for n in op.refs()):
            static.update((name, op) for name in op.outputs if name)
    wanted = list(program.outputs)
    wanted += [n for op in program.ops if not set(op.outputs) & set(static) for n in op.refs()]
    derived: list[Derived] = []
    for name in dict.fromkeys(wanted):
        if name not in static or name in program.outputs:
            continue
        needed = _closure(name, static, program)
        if all(op.name in VIEWS | NULLARY for op in needed):
            continue
        sources = tuple(dict.fromkeys(n for op in needed for n in op.refs() if n not in static))
        derived.append(Derived(name, sources, tuple(needed)))
    ready = {d.name for d in derived}
    program.ops = [op for op in program.ops if ready.isdisjoint(op.outputs)]
    inside = {n for d in derived for op in d.ops for n in (*op.outputs, *op.refs()) if n}
    _drop_unread(program, inside)
    return tuple(derived)


def _closure(name: str, static: dict[str, Op], program: Program) -> list[Op]:
    """The ops that compute `name`, in program order."""
    needed: set[int] = set()
    stack = [name]
    while stack:
        op = static.get(stack.pop())
        if op is not None and id(op) not in needed:
            needed.add(id(op))
            stack += op.refs()
    return [op for op in program.ops if id(op) in needed]


def _drop_unread(program: Program, inside: set[str]) -> None:
    """Prune, but keep what the derived values are computed from and through."""
    attributes, constants, values = program.attributes, program.constants, program.values
    program.prune()
    program.attributes = {
        k: v for k, v in attributes.items() if k in inside or k in program.attributes
    }
    program.constants = {
        k: v for k, v in constants.items() if k in inside or k in program.constants
    }
    program.values |= {k: v for k, v in values.items() if k in inside}
