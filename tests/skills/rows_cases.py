"""Rowwise regions for the tests: torch functions traced to core ATen, with inputs that hurt.

A `Case` gives a function, its inputs and the space and reduce dims that region forming would find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent.graph.decompositions import table
from cuda_agent.graph.ir import Op, Ref, Region, Tensor

Make = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    make: Make
    space: tuple[int, ...]
    reduce_dims: tuple[int, ...]

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(seed)
        return self.make()


def randn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Make:
    return lambda: tuple((torch.randn(s) * scale).to(dtype) for s in shapes)


def region_of(case: Case, name: str = "r0") -> Region:
    """Trace a case to one region, as `graph.form_regions` would hand it to a skill."""
    inputs = case.inputs()
    traced = make_fx(case.function, decomposition_table=table(), tracing_mode="real")(*inputs)
    traced.graph.eliminate_dead_code()
    values: dict[str, Tensor] = {}
    names: dict[Any, str] = {}
    ops: list[Op] = []
    region_inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    tuples: dict[Any, list[str]] = {}

    def tensor(name: str, value: torch.Tensor) -> Tensor:
        dtype = str(value.dtype).removeprefix("torch.")
        values[name] = Tensor(name, tuple(value.shape), tuple(value.stride()), dtype)
        return values[name]

    def argument(arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return Ref(names[arg])
        if isinstance(arg, (list, tuple)):
            return tuple(argument(a) for a in arg)
        return arg if isinstance(arg, (int, float, bool, str)) or arg is None else str(arg)

    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = node.name
            region_inputs.append(tensor(node.name, node.meta["val"]))
        elif node.op == "get_attr":
            names[node] = node.name
            constant = getattr(traced, node.target)
            target, fill = "aten.full.default", constant.item()
            tensor(node.name, constant)
            ops.append(Op(target, ((), fill), (node.name,)))
        elif node.op == "output":
            result = node.args[0]
            result = result if isinstance(result, (list, tuple)) else (result,)
            outputs = [values[names[n]] for n in result]
        elif "getitem" in str(node.target):
            source, index = node.args
            names[node] = node.name
            tensor(node.name, node.meta["val"])
            tuples[source][index] = node.name
        else:
            several = isinstance(node.meta["val"], (tuple, list))
            produced = [""] * len(node.meta["val"]) if several else [node.name]
            if several:
                tuples[node] = produced
            else:
                names[node] = node.name
                tensor(node.name, node.meta["val"])
            kwargs = tuple((k, argument(v)) for k, v in node.kwargs.items())
            ops.append(Op(str(node.target), argument(node.args), produced, kwargs))  # type: ignore
    ops = [Op(o.target, o.args, tuple(o.outputs), o.kwargs) for o in ops]
    return Region(name, "rowwise", tuple(ops), tuple(region_inputs), tuple(outputs), values,
                  case.space, case.reduce_dims)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _block(x: Any, bias: Any, residual: Any, w: Any, b: Any) -> Any:
    h = F.gelu(x + bias) + residual
    return h, F.layer_norm(h, h.shape[-1:], w, b)


def _rms(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def _manual_softmax(x: Any) -> Any:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


SMALL = [
    Case("softmax", lambda x: torch.softmax(x, -1), randn((37, 256)), (37, 256), (1,)),
    Case("softmax_hand", _manual_softmax, randn((33, 1000)), (33, 1000), (1,)),
    Case("layer_norm", _layer_norm, randn((21, 512), (512,), (512,)), (21, 512), (1,)),
    Case("rms_norm", _rms, randn((2, 9, 384), (384,)), (2, 9, 384), (2,)),
    Case("sum", lambda x: x.sum(-1), randn((19, 300)), (19, 300), (1,)),
    Case("gelu_norm", _block, randn((5, 7, 256), (256,), (5, 7, 256), (256,), (256,)),
         (5, 7, 256), (2,)),
]
