"""An elementwise region made ready for writing: its operands over a collapsed space.

`prepare` is shared by the pointwise, scan and gemm skills, in CUDA and in C++.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cuda_agent.graph.ir import DTYPE_BYTES, Op, Ref, Region, Tensor
from cuda_agent.graph.ops import TRIANGLES
from cuda_agent.skills.emit import expressions, types
from cuda_agent.skills.emit.expressions import Statements, identifier
from cuda_agent.skills.emit.indexing import (
    Layout,
    Shape,
    Unaddressable,
    channel_operands,
    collapse,
    place,
)
from cuda_agent.skills.emit.types import Code, Language

ROW, COLUMN = "@row", "@column"


@dataclass(frozen=True)
class Program:
    """Ops with what they read and write. `in_place` maps an output to the input whose memory it
    takes over: both then are one pointer. `positions` maps ROW and COLUMN, where ops read them, to
    their dims of the layout (None where that dim has one element)."""

    ops: tuple[Op, ...]
    values: Mapping[str, Tensor]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layout: Layout
    in_place: Mapping[str, str]
    positions: Mapping[str, int | None] = field(default_factory=dict)

    def position_scope(self, names: Sequence[str], lane: str = "") -> dict[str, str]:
        """ROW and COLUMN as C expressions of the coordinates `names`; `lane` is added to the
        innermost one."""
        last = len(names) - 1
        return {
            key: "0" if dim is None else f"({names[dim]}{lane})" if dim == last else names[dim]
            for key, dim in self.positions.items()
        }

    def body(self, scope: Mapping[str, str], language: Language) -> Statements:
        """The ops as statements. `scope` maps inputs to expressions of their compute type."""
        return expressions.statements(self.ops, self.values, scope, language)

    def pointer(self, name: str) -> str:
        """The C parameter that holds `name`."""
        return f"{identifier(self.in_place.get(name, name))}_ptr"

    def parameters(self, language: Language) -> list[str]:
        """C parameters of the kernel, inputs first. What is overwritten in place comes once."""
        shared = set(self.in_place.values())
        restrict = "__restrict__" if language == "cuda" else "__restrict"
        found = [
            f"{'' if name in shared else 'const '}{self.storage(name)}* {restrict} "
            f"{self.pointer(name)}"
            for name in self.inputs
        ]
        return found + [
            f"{self.storage(name)}* {restrict} {self.pointer(name)}"
            for name in self.outputs
            if name not in self.in_place
        ]

    def arguments(self) -> list[str]:
        """Names of the tensors to pass, in the order of `parameters`."""
        names = {self.in_place[o]: o for o in self.in_place}
        kept = [o for o in self.outputs if o not in self.in_place]
        return [names.get(name, name) for name in self.inputs] + kept

    def storage(self, name: str) -> str:
        return types.storage_type(self.values[name].dtype)

    def load(self, text: str, name: str) -> Code:
        return types.load(text, self.values[name].dtype)

    def store(self, text: str, name: str) -> Code:
        return types.store(text, self.values[name].dtype)

    @property
    def traffic_bytes(self) -> int:
        """Bytes through memory, every operand once; also the floor of the kernel's time."""
        return sum(distinct_bytes(self.values[n]) for n in (*self.inputs, *self.outputs))

    @property
    def widest_bytes(self) -> int:
        """Bytes of the largest element among operands that walk along the innermost dim."""
        sizes = [o.item_bytes for o in self.layout.operands if o.walk in ("vector", "strided")]
        return max(sizes, default=4)

    @property
    def narrowest_bytes(self) -> int:
        sizes = [o.item_bytes for o in self.layout.operands if o.walk in ("vector", "strided")]
        return min(sizes, default=4)


def distinct_bytes(tensor: Tensor) -> int:
    """Bytes that hold the tensor's elements, each broadcast one once."""
    count = DTYPE_BYTES[tensor.dtype]
    for size, step in zip(tensor.shape, tensor.stride):
        count *= size if step else 1
    return count


def prepare(
    ops: Sequence[Op],
    values: Mapping[str, Tensor],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    space: Shape,
    *,
    in_place: Mapping[str, str] | None = None,
) -> Program:
    """Raises Unaddressable for an operand that the space cannot address."""
    channels = channel_operands(ops, values)
    made = {name for op in ops for name in op.outputs}
    if channels & made:
        raise Unaddressable("per-channel operands must come from outside the region")
    plain = {
        name for op in ops for name in _plain_refs(op, values)
    }
    if channels & plain:
        raise Unaddressable("a tensor is read both per channel and aligned at the right")
    leader = max(outputs, key=lambda t: (t.numel, DTYPE_BYTES[t.dtype]))
    ordered = [*inputs, *(t for t in outputs if t.name != leader.name), leader]
    placed = [(t, place(t, space, channel=t.name in channels)) for t in ordered]
    ops, values = positioned(ops, values)
    marks = [(values[n], _mark(n, space)) for n in (ROW, COLUMN) if n in values]
    layout = collapse(space, [*marks, *placed])
    positions = {
        o.name: next((d for d, step in enumerate(o.strides) if step), None)
        for o in layout.operands[: len(marks)]
    }
    return Program(
        tuple(ops),
        values,
        tuple(t.name for t in inputs),
        tuple(t.name for t in outputs),
        replace(layout, operands=layout.operands[len(marks) :]),
        dict(in_place or {}),
        positions,
    )


def positioned(
    ops: Sequence[Op], values: Mapping[str, Tensor]
) -> tuple[Sequence[Op], Mapping[str, Tensor]]:
    """tril and triu as ops that also read the element's row and column in the last two dims."""
    if not any(op.name in TRIANGLES for op in ops):
        return ops, values
    at = (Ref(ROW), Ref(COLUMN))
    return (
        [
            replace(op, target=f"aten.{op.name}_at.default", args=(op.args[0], *at, *op.args[1:]))
            if op.name in TRIANGLES else op
            for op in ops
        ],
        {**values, **{n: Tensor(n, (), (), "int64") for n in (ROW, COLUMN)}},
    )


def _mark(name: str, space: Shape) -> tuple[int, ...]:
    """Strides that keep a dim of the last two from merging with others."""
    here = len(space) - (2 if name == ROW else 1)
    return tuple(int(d == here) for d in range(len(space)))


def _plain_refs(op: Op, values: Mapping[str, Tensor]) -> set[str]:
    return set(op.refs()) - channel_operands([op], values)


def from_region(region: Region) -> Program | None:
    """The program of a pointwise region, or None where it cannot be written."""
    if not writable(region.ops, region.values) or not region.outputs:
        return None
    if any(t.shape != region.space or not dense(t) for t in region.outputs):
        return None
    try:
        return prepare(region.ops, region.values, region.inputs, region.outputs, region.space)
    except Unaddressable:
        return None


def writable(ops: Sequence[Op], values: Mapping[str, Tensor]) -> bool:
    """Whether every op is a pointwise one that both languages can write, on non-empty tensors."""
    ops, values = positioned(ops, values)
    return all(expressions.supports(op, values) for op in ops) and all(
        values[n].numel for op in ops for n in op.outputs if n
    )


def dense(tensor: Tensor) -> bool:
    """No two elements share an address and none is left out: a fresh buffer can hold it."""
    expected = 1
    for step, size in sorted((s, n) for s, n in zip(tensor.stride, tensor.shape) if n != 1):
        if step != expected:
            return False
        expected *= size
    return True


def allocation(tensor: Tensor, device_of: str) -> str:
    """Python that makes an output's buffer with its shape, stride and dtype, on the device of the
    value `device_of`."""
    where = f"dtype=torch.{tensor.dtype}, device={device_of}.device"
    if tensor.is_contiguous:
        return f"torch.empty({tensor.shape}, {where})"
    return f"torch.empty_strided({tensor.shape}, {tensor.stride}, {where})"


def realigned(name: str, required: int) -> str:
    """Python that copies an input whose start is not aligned for vector access."""
    return (
        f"if {name}.data_ptr() % {required}:  # read {required} bytes at a time\n"
        f"    {name} = torch.empty_strided({name}.size(), {name}.stride(), "
        f"dtype={name}.dtype, device={name}.device).copy_({name})"
    )


def label(ops: Sequence[Op], limit: int = 3) -> str:
    """A word for file and kernel names from the op names: what stands out, at most `limit`."""
    plain = {"add", "sub", "mul", "div", "_to_copy", "clone", "full", "scalar_tensor"}
    names = [op.name.strip("_") for op in ops]
    telling = list(dict.fromkeys(n for n in names if n not in plain)) or list(dict.fromkeys(names))
    short = {"native_batch_norm_legit_no_training": "batch_norm", "to_copy": "convert"}
    return "_".join(short.get(n, n) for n in telling[:limit])


def describe(ops: Sequence[Op]) -> str:
    """The ops in words, e.g. "add, gelu, mul"."""
    short = {"_native_batch_norm_legit_no_training": "batch_norm", "_to_copy": "convert"}
    names = [short.get(op.name, op.name) for op in ops if op.name != "scalar_tensor"]
    shown = names if len(names) <= 8 else [*names[:7], f"... ({len(names)} ops)"]
    return ", ".join(shown)
