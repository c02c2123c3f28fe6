"""Operations of a graph as lines of Python that a person would write with torch."""

from __future__ import annotations

import math

from cuda_agent.graph.ir import Arg, Op, Ref
from cuda_agent.graph.ops import FACTORIES

_METHODS = frozenset("view permute expand unsqueeze select t transpose split_with_sizes".split())
_MAX_ITEMS_ON_A_LINE = 12


def statement(op: Op, device: str = "device") -> str:
    """`out = aten.add(x, bias)`; `device` is the expression for where new tensors go."""
    named = [name for name in op.outputs if name]
    call = _call(op, device)
    if len(op.outputs) == 1:
        return f"{op.outputs[0]} = {call}"
    if len(named) == 1:
        return f"{named[0]} = {call}[{op.outputs.index(named[0])}]"
    targets = ", ".join(name or "_" for name in op.outputs)
    return f"{targets} = {call}"


def needs_device(op: Op) -> bool:
    return op.name in FACTORIES


def _call(op: Op, device: str) -> str:
    keywords = [f"{key}={expression(value)}" for key, value in op.kwargs]
    if needs_device(op):
        keywords.append(f"device={device}")
    if op.name in _METHODS and isinstance(op.args[0], Ref) and not keywords:
        rest = ", ".join(expression(a) for a in op.args[1:])
        return f"{op.args[0].name}.{op.name}({rest})"
    return f"{_function(op)}({', '.join([*(expression(a) for a in op.args), *keywords])})"


def _function(op: Op) -> str:
    """`aten.add`: torch picks the overload from the arguments, as for any call."""
    namespace, name, _ = op.target.split(".")
    if namespace != "aten":
        return f"torch.ops.{op.target}"
    return f"aten.{name}"


def expression(arg: Arg) -> str:
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, tuple):
        return f"[{', '.join(expression(a) for a in arg)}]"
    if isinstance(arg, str):
        return arg if arg.startswith("torch.") else repr(arg)
    if isinstance(arg, float) and not math.isfinite(arg):
        return f'float("{arg}")'
    return repr(arg)


def tensor_literal(elements: tuple[float | int | bool, ...], shape: tuple[int, ...]) -> str:
    """Elements as a list, reshaped where there are several dims."""
    items = [expression(element) for element in elements]
    rows = [
        ", ".join(items[i : i + _MAX_ITEMS_ON_A_LINE])
        for i in range(0, len(items), _MAX_ITEMS_ON_A_LINE)
    ]
    if not shape:
        return items[0]
    if len(rows) <= 1:
        return f"[{''.join(rows)}]"
    return "[\n    " + ",\n    ".join(rows) + ",\n]"
