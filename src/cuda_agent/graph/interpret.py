"""Run a graph op by op through torch: proves that capture and passes keep the meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cuda_agent.graph.ir import Graph, InputTree, Op
from cuda_agent.graph.ops import FACTORIES
from cuda_agent.graph.program import decode, describe, overload, same_layout


def interpret(
    graph: Graph,
    get_attribute: Callable[[str], torch.Tensor],
    inputs: Sequence[Any],
    *,
    check_layout: bool = False,
) -> tuple[torch.Tensor, ...]:
    """The outputs of `graph` for `inputs` (forward's arguments, tensors and others).

    `get_attribute("linear.weight")` gives parameters and buffers, e.g.
    `lambda path: operator.attrgetter(path)(model)`. With `check_layout`, each value must have the
    shape, strides and dtype that the graph declares (ValueError else); an input's dtype may differ
    otherwise, so that a float32 graph can be run in float64.
    """
    values: dict[str, torch.Tensor] = {}
    _bind(graph.inputs, inputs, values)
    for name, path in graph.attributes.items():
        values[name] = get_attribute(path)
    device = next((v.device for v in values.values()), torch.device("cpu"))
    for name, elements in graph.constants.items():
        kind = graph.values[name]
        dtype = getattr(torch, kind.dtype)
        values[name] = torch.tensor(elements, dtype=dtype, device=device).reshape(kind.shape)
    ops = [op for derived in graph.derived for op in derived.ops] + list(graph.ops)
    with torch.no_grad():
        for op in ops:
            _run(op, values, device)
            for name in filter(None, op.outputs) if check_layout else ():
                if name in graph.values:
                    _check(op, describe(name, values[name]), graph)
    return tuple(values[name] for name in graph.outputs)


def _bind(tree: InputTree, given: Any, values: dict[str, torch.Tensor]) -> None:
    if isinstance(tree, str):
        values[tree] = given
    elif tree is not None:
        for item, value in zip(tree, given):
            _bind(item, value, values)


def _run(op: Op, values: dict[str, torch.Tensor], device: torch.device) -> None:
    keywords = {key: decode(arg, values.__getitem__) for key, arg in op.kwargs}
    if op.name in FACTORIES:
        keywords["device"] = device
    result = overload(op.target)(*(decode(a, values.__getitem__) for a in op.args), **keywords)
    results = result if isinstance(result, (tuple, list)) else (result,)
    values.update((name, value) for name, value in zip(op.outputs, results) if name)


def _check(op: Op, got: Any, graph: Graph) -> None:
    expected = graph.values[got.name]
    if not same_layout(got, expected):
        raise ValueError(f"{op.target}: got {got}, expected {expected}")
