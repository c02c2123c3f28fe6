"""Arithmetic with numbers: chains are joined, neutral elements vanish."""

from __future__ import annotations

from cuda_agent.graph.ir import Arg, Op
from cuda_agent.graph.program import Rewriter

_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1}
_ARITHMETIC = frozenset({"add", "sub", "mul", "div"})


def rule(rw: Rewriter, op: Op) -> bool:
    if op.name not in _NEUTRAL or len(op.args) != 2 or not op.outputs[0]:
        return False
    if rw.values[op.outputs[0]].dtype not in ("float32", "float64"):
        return False
    number = op.args[1]
    if not _is_number(number):
        return _number_from_tensor(rw, op)
    if op.target.endswith(".Scalar") and op.name == "pow":  # number ** tensor
        return False
    if number == _NEUTRAL[op.name] and rw.producer(op.args[0]) is not None:
        return rw.substitute(op.outputs[0], op.args[0])
    return _chain(rw, op)


def _is_number(value: Arg) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number_from_tensor(rw: Rewriter, op: Op) -> bool:
    """add(x, scalar_tensor(2.0)) -> add(x, 2.0)."""
    producer = rw.producer(op.args[1])
    if op.name not in _ARITHMETIC or producer is None or producer.name != "scalar_tensor":
        return False
    new = rw.emit(op.target, op.args[0], producer.args[0], name=op.outputs[0], **dict(op.kwargs))
    return rw.substitute(op.outputs[0], new)


def _chain(rw: Rewriter, op: Op) -> bool:
    """(x * a) * b -> x * (a * b), and the same for sums of numbers."""
    before = rw.producer(op.args[0])
    if before is None or before.name != op.name or op.name not in {"add", "mul"} or op.kwargs:
        return False
    if before.kwargs or len(before.args) != 2 or not _is_number(before.args[1]):
        return False
    if not rw.single_use(op.args[0]):
        return False
    first, second = before.args[1], op.args[1]
    assert isinstance(first, (int, float)) and isinstance(second, (int, float))
    joined = first + second if op.name == "add" else first * second
    new = rw.emit(op.target, before.args[0], joined, name=op.outputs[0])
    return rw.substitute(op.outputs[0], new)
