"""Shared by the skill tests: regions from traced functions, and compiling of sources."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import operator
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent import runtime
from cuda_agent.graph.decompositions import table
from cuda_agent.graph.ir import Arg, Op, Ref, Region, RegionKind, Tensor
from cuda_agent.graph.ops import VIEWS

CPP_FLAGS = runtime.FLAGS["cpp"]
_FOLDER = Path(tempfile.mkdtemp(prefix="skills_tests_"))


decompositions = functools.cache(table)


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def describe(name: str, tensor: torch.Tensor) -> Tensor:
    return Tensor(name, tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor))


def _arg(value: Any) -> Arg:
    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, (list, tuple)):
        return tuple(_arg(v) for v in value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value)
    return value


def region(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], kind: RegionKind = "pointwise",
    space: tuple[int, ...] | None = None, reduce_dims: tuple[int, ...] = (),
) -> Region:  # fmt: skip
    """`function` traced to core ATen ops as one region."""
    return trace(function, tensors, kind, space, reduce_dims)[0]


def trace(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], kind: RegionKind = "pointwise",
    space: tuple[int, ...] | None = None, reduce_dims: tuple[int, ...] = (),
) -> tuple[Region, dict[str, torch.Tensor]]:  # fmt: skip
    """The region of a function, and its inputs by name: x0, x1, ... and views of those, which
    region forming would leave outside."""
    graph = make_fx(function, decompositions())(*tensors).graph
    graph.eliminate_dead_code()
    values: dict[str, Tensor] = {}
    ops: list[Op] = []
    inputs: list[Tensor] = []
    actual: dict[Any, torch.Tensor] = {}
    outputs: tuple[Any, ...] = ()
    for node in graph.nodes:
        if node.op == "placeholder":
            node.name = f"x{len(inputs)}"
            actual[node] = tensors[len(inputs)]
            values[node.name] = describe(node.name, actual[node])
            inputs.append(values[node.name])
        elif node.op == "output":
            found = node.args[0]
            outputs = tuple(found) if isinstance(found, (list, tuple)) else (found,)
        elif _is_view(node) and all(n in actual for n in node.all_input_nodes):
            (source,) = node.all_input_nodes
            actual[node] = node.target(actual[source], *node.args[1:], **node.kwargs)
            values[node.name] = describe(node.name, actual[node])
            inputs.append(values[node.name])
        elif node.target is not operator.getitem:
            found = node.meta["val"]
            names = (node.name,)
            if isinstance(found, (list, tuple)):
                taken = {u.args[1]: u.name for u in node.users}
                names = tuple(taken.get(i, "") for i in range(len(found)))
                values.update({n: describe(n, v) for n, v in zip(names, found) if n})
            else:
                values[node.name] = describe(node.name, found)
            kwargs = tuple((k, _arg(v)) for k, v in node.kwargs.items())
            ops.append(Op(str(node.target), tuple(map(_arg, node.args)), names, kwargs))
    used = {n for op in ops for n in op.refs()} | {o.name for o in outputs}
    results = tuple(values[o.name] for o in outputs)
    if space is None:
        space = tuple(torch.broadcast_shapes(*(t.shape for t in results)))
    kept = tuple(t for t in inputs if t.name in used)
    found = Region("r0", kind, tuple(ops), kept, results, values, space, reduce_dims)
    return found, {node.name: tensor for node, tensor in actual.items()}


def _is_view(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and _short(node) in VIEWS


def _short(node: torch.fx.Node) -> str:
    return str(node.target).split(".")[1]


@functools.cache
def build_cpp(source: str) -> ctypes.CDLL:
    stem = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = _FOLDER / f"{stem}.cpp"
    path.write_text(source)
    done = subprocess.run(
        ["g++", *CPP_FLAGS, str(path), "-o", str(path.with_suffix(".so"))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{source}"
    return ctypes.CDLL(str(path.with_suffix(".so")))


def compile_cuda(source: str) -> None:
    """Compiles for sm_90a with NVRTC, which needs no GPU; the log is shown on failure."""
    core = pytest.importorskip("cuda.core")
    options = core.ProgramOptions(
        std="c++17", arch="sm_90a", device_as_default_execution_space=True)
    try:
        core.Program(source, "c++", options).compile("cubin")
    except Exception as error:
        raise AssertionError(f"{error}\n{source}") from error


def compiler_missing() -> bool:
    return shutil.which("g++") is None
