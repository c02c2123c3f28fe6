"""Operations of a graph as lines of Python that call torch: what no skill writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, isnan

from cuda_agent.graph.ir import Arg, Op, Ref, Tensor
from cuda_agent.graph.ops import FACTORIES, VIEWS

# Methods take the same arguments as these ops, read better and dispatch faster.
_METHODS = {
    "aten.view.default": "view",
    "aten.permute.default": "permute",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.squeeze.dims": "squeeze",
    "aten.squeeze.dim": "squeeze",
    "aten.expand.default": "expand",
    "aten.select.int": "select",
    "aten.split_with_sizes.default": "split_with_sizes",
}


# Libraries choose the memory layout of these results by device and version; kernels that read them
# were written for one layout.
_LAYOUT_VARIES = frozenset(
    {"convolution", "scaled_dot_product_attention", "gru", "lstm", "rnn_relu", "rnn_tanh"}
)


def torch_lines(
    ops: Sequence[Op], values: Mapping[str, Tensor], outside: set[str], device: str
) -> list[str]:
    """One assignment for each op. `outside` names the values that later lines read, `device` is an
    expression for where new tensors go."""
    lines: list[str] = []
    joined = _biased_products(ops, values, outside)
    skipped = {id(product) for product, _ in joined.values()}
    for op in ops:
        if id(op) in skipped:
            continue
        if id(op) in joined:
            product, bias = joined[id(op)]
            a, b = (literal(arg) for arg in product.args)
            lines.append(f"{op.outputs[0]} = torch.addmm({literal(bias)}, {a}, {b})")
            continue
        lines.append(f"{_targets(op)} = {call(op, device)}")
        if op.name in _LAYOUT_VARIES:
            lines += [line for name in op.outputs if name for line in _settled(values[name])]
    return lines


def _settled(tensor: Tensor) -> list[str]:
    """Copy a result into the layout that the graph declares, where it has another one."""
    name, shape = tensor.name, tensor.shape
    dims = [d for d, size in enumerate(shape) if size != 1]
    if len(dims) < 2:
        return []
    if len(dims) == len(shape):
        got, wanted = f"{name}.stride()", literal(tensor.stride)
    else:
        got = "(" + ", ".join(f"{name}.stride({d})" for d in dims) + ")"
        wanted = literal(tuple(tensor.stride[d] for d in dims))
    empty = f"torch.empty_strided({literal(shape)}, {literal(tensor.stride)}, "
    return [
        f"if {got} != {wanted}:",
        f"    {name} = {empty}dtype={name}.dtype, device={name}.device).copy_({name})",
    ]


def external(ops: Sequence[Op]) -> list[str]:
    """Names of the ops that compute: not views, not new tensors."""
    return [op.name.strip("_") for op in ops if op.name not in VIEWS | FACTORIES]


def _biased_products(
    ops: Sequence[Op], values: Mapping[str, Tensor], outside: set[str]
) -> dict[int, tuple[Op, Arg]]:
    """{id(add): (mm, bias)} where a @ b + bias is one call of the vendor's library."""
    makers = {op.outputs[0]: op for op in ops if op.target == "aten.mm.default"}
    reads: dict[str, int] = {}
    for op in ops:
        for name in op.refs():
            reads[name] = reads.get(name, 0) + 1
    found: dict[int, tuple[Op, Arg]] = {}
    for op in ops:
        if op.target != "aten.add.Tensor" or op.kwargs or len(op.args) != 2:
            continue
        product, bias = op.args
        if not isinstance(product, Ref) or not isinstance(bias, Ref):
            continue
        name = product.name
        if name not in makers or reads[name] != 1 or name in outside:
            continue
        vector = values[bias.name]
        if len(vector.shape) == 1 and vector.dtype == values[name].dtype:
            found[id(op)] = makers[name], bias
    return found


def _targets(op: Op) -> str:
    if len(op.outputs) == 1:
        return op.outputs[0]
    return ", ".join(name or "_" for name in op.outputs)


def call(op: Op, device: str) -> str:
    """The expression that computes an op."""
    method = _METHODS.get(op.target)
    args = [literal(arg) for arg in op.args]
    keywords = [f"{key}={literal(value)}" for key, value in op.kwargs]
    if op.name in FACTORIES:
        keywords.append(f"device={device}")
    if method is not None and isinstance(op.args[0], Ref):
        return f"{args[0]}.{method}({', '.join([*args[1:], *keywords])})"
    return f"{op.target}({', '.join([*args, *keywords])})"


def literal(arg: Arg) -> str:
    """An argument as Python source."""
    if isinstance(arg, Ref):
        return arg.name
    if isinstance(arg, tuple):
        inner = ", ".join(literal(a) for a in arg)
        return f"({inner},)" if len(arg) == 1 else f"({inner})"
    if isinstance(arg, float) and (isinf(arg) or isnan(arg)):
        return f'float("{arg}")'
    if isinstance(arg, str) and arg.startswith("torch."):
        return arg
    return repr(arg)
