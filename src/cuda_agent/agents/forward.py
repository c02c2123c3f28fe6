"""The body of ModelNew.forward: guards, attributes, one block for each region, results."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from cuda_agent.agents.statements import expression, needs_device, statement
from cuda_agent.graph.ir import DTYPE_BYTES, Graph, InputTree, Op, Region, leaves
from cuda_agent.skills import Written

LARGE_BYTES = 1 << 20
"""Intermediates of this size are freed as soon as nothing reads them."""


@dataclass(frozen=True)
class Block:
    """A region as code: `written` by a skill, or None where its ops stay torch calls."""

    region: Region
    written: Written | None
    title: str


def guards(graph: Graph, device_type: str) -> list[str]:
    """Lines that refuse arguments for which the kernels were not built."""
    lines: list[str] = []
    for parameter, tree in zip(graph.input_names, graph.inputs):
        if tree is None:
            baked = expression(graph.baked[parameter])
            lines.append(f'_same("{parameter}", {parameter}, {baked})')
        else:
            lines += _guarded(graph, parameter, parameter, tree, device_type)
    return lines


def _guarded(
    graph: Graph, label: str, given: str, tree: InputTree, device_type: str
) -> list[str]:
    """Checks of one argument; a tuple is taken apart first, its tensors then have names."""
    if isinstance(tree, str):
        value = graph.values[tree]
        wanted = f'{value.shape}, torch.{value.dtype}, "{device_type}"'
        return [f'{tree} = runtime.expect("{label}", {given}, {wanted})']
    items = [(f"{label}[{i}]", f"{given}[{i}]", item) for i, item in enumerate(tree or ())]
    return [line for item in items for line in _guarded(graph, *item, device_type)]


def body(graph: Graph, blocks: list[Block]) -> list[str]:
    """Lines that compute the outputs from checked inputs, without the return."""
    lines = _prepared(graph, blocks)
    last = _last_readers(graph, blocks)
    for index, block in enumerate(blocks):
        lines += ["", *textwrap.wrap(f"# {block.region.id}: {block.title}", 92,
                                     subsequent_indent="#     ")]
        if block.written is not None:
            lines += block.written.forward.splitlines()
        else:
            lines += [statement(op) for op in block.region.ops]
        if freed := last.get(index):
            lines.append(f"del {', '.join(freed)}")
    return lines


def result(graph: Graph) -> str:
    names = ", ".join(graph.outputs)
    if graph.output_kind == "tensor":
        return names
    if graph.output_kind == "list":
        return f"[{names}]"
    return f"({names},)" if len(graph.outputs) == 1 else f"({names})"


def device_expression(graph: Graph) -> str:
    """Where new tensors go: with the first input, else with the first parameter."""
    for name in leaves(graph.inputs):
        return f"{name}.device"
    if graph.attributes:
        return f"{attribute(next(iter(graph.attributes.values())))}.device"
    return "torch.get_default_device()"


def attribute(path: str) -> str:
    """`self.layers.weight`; parts that are no identifiers go through getattr."""
    text = "self"
    for part in path.split("."):
        text = f"{text}.{part}" if part.isidentifier() else f'getattr({text}, "{part}")'
    return text


def _prepared(graph: Graph, blocks: list[Block]) -> list[str]:
    """Attributes, constants and derived values, each read once."""
    read = {t.name for block in blocks for t in block.region.inputs} | set(graph.outputs)
    read |= {name for derived in graph.derived for name in derived.sources}
    lines = [f"{n} = {attribute(p)}" for n, p in graph.attributes.items() if n in read]
    plain = [op for block in blocks if block.written is None for op in block.region.ops]
    made = [op for derived in graph.derived for op in derived.ops]
    if graph.constants or any(needs_device(op) for op in [*plain, *made]):
        lines.append(f"device = {device_expression(graph)}")
    lines += [
        f'{name} = self._once("{name}", partial(_{name}, device))'
        for name in graph.constants if name in read
    ]
    for derived in graph.derived:
        function = f"_{derived.name}"
        if any(needs_device(op) for op in derived.ops):
            function = f"partial({function}, device)"
        arguments = ", ".join([f'"{derived.name}"', function, *derived.sources])
        lines.append(f"{derived.name} = self._once({arguments})")
    return lines


def _last_readers(graph: Graph, blocks: list[Block]) -> Mapping[int, list[str]]:
    """Block index -> large intermediates that no later block reads.

    A view keeps its storage alive whatever happens to the name that it was made from.
    """
    made = {t.name for block in blocks for t in block.region.outputs}
    last: dict[str, int] = {}
    for index, block in enumerate(blocks):
        for tensor in (*block.region.inputs, *block.region.outputs):
            last[tensor.name] = index
    freed: dict[int, list[str]] = {}
    for name, index in last.items():
        value = graph.values[name]
        large = value.numel * DTYPE_BYTES[value.dtype] >= LARGE_BYTES
        if large and name in made and name not in graph.outputs and index < len(blocks) - 1:
            freed.setdefault(index, []).append(name)
    return freed


def derived_function(name: str, sources: tuple[str, ...], ops: tuple[Op, ...]) -> str:
    """A module-level function that computes a derived value from parameters."""
    parameters = (["device"] if any(needs_device(op) for op in ops) else []) + list(sources)
    lines = [f"def _{name}({', '.join(parameters)}):", *(f"    {statement(op)}" for op in ops)]
    return "\n".join([*lines, f"    return {name}"])
