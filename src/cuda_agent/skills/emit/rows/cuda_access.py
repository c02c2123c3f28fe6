"""Addresses, loads and stores of one operand in a CUDA row kernel."""

from __future__ import annotations

from cuda_agent.skills.emit import types
from cuda_agent.skills.emit.rows.emitter import c_name, offset
from cuda_agent.skills.emit.rows.program import Operand, RowProgram, merge_axes
from cuda_agent.skills.emit.rows.schedule import Schedule, fits_vector, takes_tail

PACK = """
// N neighbours in memory, moved by 16-byte accesses where they fill them.
template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T v[N];
};"""


class Access:
    """How a kernel reads or writes one operand.

    `mode`: "vector" (one aligned access for `vector` elements), "splat" (one element for all of
    them, or a vector of one), "gather" (element by element).
    """

    def __init__(
        self, program: RowProgram, schedule: Schedule, operand: Operand, *, is_store: bool = False
    ) -> None:
        self.program, self.schedule, self.operand = program, schedule, operand
        self.is_store = is_store
        self.name = c_name(operand.name)
        self.pointer = f"{self.name}_ptr"
        self.base = f"{self.name}_row"
        self.storage = types.storage_type(operand.dtype)
        self.mode = self._mode()

    def _mode(self) -> str:
        vector, column = self.schedule.vector, self.schedule.column_layout
        if vector == 1:
            return "splat"
        if fits_vector(self.program, self.operand, vector, column):
            return "vector"
        if column:
            return "splat" if self.operand.row_strides[-1:] in ((0,), ()) else "gather"
        sizes, (strides,) = merge_axes(
            list(self.program.col_axes), [list(self.operand.col_strides)])
        flat = not strides or (strides[-1] == 0 and sizes[-1] % vector == 0)
        return "splat" if flat else "gather"

    @property
    def type(self) -> str:
        """Type of what one thread holds of one chunk."""
        if self.mode == "splat":
            return self.storage
        return f"Pack<{self.storage}, VEC>"

    def declare_base(self) -> str:
        """The pointer to the first element of this thread's row (or rows)."""
        const = "" if self.is_store else "const "
        start = self._row_offset()
        begin = f"{self.pointer} + {start}" if start else self.pointer
        return f"{const}{self.storage}* const {self.base} = {begin};"

    def _row_offset(self) -> str:
        program, strides = self.program, self.operand.row_strides
        if not self.schedule.column_layout:
            return offset("row", program.row_axes, strides)
        outer = offset("outer", program.row_axes[:-1], strides[:-1])
        step = strides[-1] if strides else 0
        inner = "" if step == 0 else "inner" if step == 1 else f"inner * {step}"
        return " + ".join(t for t in (outer, inner) if t)

    def row_element(self, lane: str) -> str:
        """The element of a row-level operand that belongs to row `lane` of this thread."""
        start = self._row_offset()
        step = self.operand.row_strides[-1] if self.operand.row_strides else 0
        if self.schedule.column_layout and step and self.schedule.vector > 1:
            more = lane if step == 1 else f"{lane} * {step}"
            start = f"{start} + {more}" if start else more
        return f"{self.pointer}[{start or 0}]"

    def element(self, col: str, lane: str) -> str:
        """One element of an elem-level operand: column `col` of row `lane` (column layout), or
        column `col + lane` (row layout; `lane` may be "" for none)."""
        axes, strides = self.program.col_axes, self.operand.col_strides
        if not self.schedule.column_layout:
            index = f"({col} + {lane})" if lane else col
            return f"{self.base}[{offset(index, axes, strides) or 0}]"
        start = offset(col, axes, strides)
        step = self.operand.row_strides[-1] if self.operand.row_strides else 0
        if lane and step:
            more = lane if step == 1 else f"{lane} * {step}"
            start = f"{start} + {more}" if start else more
        return f"{self.base}[{start or 0}]"

    def load(self, target: str, col: str) -> list[str]:
        """Lines that read one chunk at column `col` into `target`."""
        start = offset(col, self.program.col_axes, self.operand.col_strides)
        where = f"{self.base} + {start}" if start else self.base
        if self.mode == "splat":
            return [f"{target} = {self.base}[{start or 0}];"]
        single = ["#pragma unroll", "for (int i = 0; i < VEC; ++i)"]
        one = f"{target}.v[i] = {self.element(col, 'i')};"
        if self.mode == "gather":
            guard = f"    if ({col} + i < COLS) " if self.has_tail else "    "
            return [*single, guard + one]
        whole = f"{target} = *reinterpret_cast<const {self.type}*>({where});"
        if not self.has_tail:
            return [whole]
        return [f"if ({col} + VEC <= COLS) {{", f"    {whole}", "} else {",
                *(f"    {line}" for line in single), f"        if ({col} + i < COLS) {one}", "}"]

    def store(self, source: str, col: str) -> list[str]:
        """Lines that write one chunk, held in the pack `source` (vector mode only)."""
        start = offset(col, self.program.col_axes, self.operand.col_strides)
        where = f"{self.base} + {start}" if start else self.base
        whole = f"*reinterpret_cast<{self.type}*>({where}) = {source};"
        if not self.has_tail:
            return [whole]
        return [f"if ({col} + VEC <= COLS) {{", f"    {whole}", "} else {",
                "    #pragma unroll", "    for (int i = 0; i < VEC; ++i)",
                f"        if ({col} + i < COLS) {self.element(col, 'i')} = {source}.v[i];", "}"]

    @property
    def has_tail(self) -> bool:
        """The row ends in a partial vector."""
        return (not self.schedule.column_layout and takes_tail(self.program)
                and self.program.columns % self.schedule.vector != 0)
