"""Elementwise ops on one element that a kernel has just computed: a product's, a convolution's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cuda_agent.graph.ir import Op, Region, Tensor
from cuda_agent.skills.emit import elementwise, expressions, types
from cuda_agent.skills.emit.elementwise import COLUMN, ROW
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import Unaddressable, channel_operands, offset, place
from cuda_agent.skills.emit.types import Language


@dataclass(frozen=True)
class Epilogue:
    """`ops` of `region` that follow `result`, the tensor of the region's space that the kernel
    computes; the region's outputs are stored, `result` too if it is one."""

    region: Region
    result: Tensor
    ops: tuple[Op, ...]

    @property
    def writable(self) -> bool:
        """Every op can be written, every operand addressed, and fresh buffers hold the outputs."""
        region = self.region
        if not elementwise.writable(self.ops, region.values) or not self.result.numel:
            return False
        if any(t.shape != region.space or not elementwise.dense(t) for t in region.outputs):
            return False
        try:
            self._strides()
        except Unaddressable:
            return False
        return True

    @property
    def others(self) -> tuple[Tensor, ...]:
        """What the ops read besides the result."""
        read = {n for op in self.ops for n in op.refs()}
        return tuple(t for t in self.region.inputs if t.name in read)

    def _strides(self) -> dict[str, tuple[int, ...]]:
        channels = channel_operands(self.ops, self.region.values)
        space = self.region.space
        return {t.name: place(t, space, channel=t.name in channels) for t in self.others}

    def parameters(self, language: Language) -> list[str]:
        """C parameters: what the ops read, then the outputs."""
        restrict = "__restrict__" if language == "cuda" else "__restrict"
        read = [
            f"const {types.storage_type(t.dtype)}* {restrict} {identifier(t.name)}_ptr"
            for t in self.others
        ]
        return read + [
            f"{types.storage_type(t.dtype)}* {restrict} {identifier(t.name)}_ptr"
            for t in self.region.outputs
        ]

    def arguments(self) -> list[str]:
        return [t.name for t in (*self.others, *self.region.outputs)]

    def lines(
        self, at: Sequence[str], value: str, language: Language
    ) -> tuple[list[str], frozenset[str]]:
        """Statements that finish and store the element at the coordinates `at`, where the result
        is the float `value`; and the helpers that they call."""
        ops, values = elementwise.positioned(self.ops, self.region.values)
        name = identifier(self.result.name)
        lines = [f"const float {name} = {value};"]
        helpers: set[str] = set()
        scope = {self.result.name: name, ROW: at[-2], COLUMN: at[-1]}
        strides = self._strides()
        for t in self.others:
            code = types.load(f"{identifier(t.name)}_ptr[{offset(strides[t.name], at)}]", t.dtype)
            helpers |= code.helpers
            kind = expressions.compute_type(t.dtype)
            lines.append(f"const {kind} {identifier(t.name)} = {code.text};")
            scope[t.name] = identifier(t.name)
        written = expressions.statements(ops, values, scope, language)
        helpers |= written.helpers
        lines += written.lines
        for t in self.region.outputs:
            code = types.store(written.scope[t.name], t.dtype)
            helpers |= code.helpers
            lines.append(f"{identifier(t.name)}_ptr[{offset(t.stride, at)}] = {code.text};")
        return lines, frozenset(helpers)
