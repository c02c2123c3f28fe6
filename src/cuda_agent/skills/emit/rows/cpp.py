"""C++ (OpenMP) source for a row program.

Row layout: a thread takes a row, passes over it while it lies in cache, and accumulates in LANES
independent lanes that g++ keeps in vector registers. Column layout: a thread takes WIDTH
neighbouring rows and walks the columns with one accumulator for each. Few long rows are cut into
chunks of columns instead, one result each, merged in order: every run gives the same bits.
Sums of more than one tile are added up in double.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from cuda_agent.skills.emit.expressions import preamble
from cuda_agent.skills.emit.math_cpp import PROLOGUE
from cuda_agent.skills.emit.rows.cpp_kernel import CppBody
from cuda_agent.skills.emit.rows.cpp_text import NAN_MINMAX
from cuda_agent.skills.emit.rows.passes import fuse_online, plan_passes
from cuda_agent.skills.emit.rows.program import RowProgram
from cuda_agent.skills.emit.types import storage_type


@dataclass(frozen=True)
class CppSchedule:
    """`layout`: "rows" (a thread for each row), "chunks" (threads share a row) or "columns".

    `width` is the number of neighbouring rows a thread takes in the column layout, else the
    accumulator lanes of a row. `keep` holds expensive values in a scratch row between passes.
    """

    layout: Literal["rows", "chunks", "columns"]
    width: int = 32
    chunks: int = 16
    parallel: bool = True
    keep: bool = True
    tile: int = 4096


@dataclass(frozen=True)
class CppSource:
    text: str
    function: str
    args: tuple[str, ...]


def write_cpp(program: RowProgram, schedule: CppSchedule, label: str, title: str) -> CppSource:
    """`label` names the function ("r0_softmax"), `title` opens the file."""
    online = not schedule.keep and schedule.layout != "columns"
    if online:
        program = fuse_online(program)
    plan = plan_passes(program, "maps" if schedule.keep else "none")
    body = CppBody(plan, schedule)
    body.write()
    stored = {s.operand.name for s in program.stores}
    names = sorted(body.used, key=lambda n: n in stored)
    parameters = [
        f"{'' if n in stored else 'const '}{storage_type(body.used[n].dtype)}* "
        f"__restrict__ {body.pointer(n)}" for n in names
    ]
    function = "\n".join(
        [f'extern "C" void {label}(', "    " + ",\n    ".join(parameters) + ") {",
         *body.out.text, "}"])
    helpers = preamble(body.helpers, "cpp")
    if "INLINE" in helpers and "define INLINE" not in helpers:
        helpers = f"{PROLOGUE}\n\n{helpers}"
    minmax = NAN_MINMAX.strip() if "nan_max(" in function or "nan_min(" in function else ""
    parts = [_header(program, schedule, title), _constants(program, schedule, function),
             helpers, minmax, function]
    return CppSource("\n\n".join(p for p in parts if p) + "\n", label, tuple(names))


def _header(program: RowProgram, schedule: CppSchedule, title: str) -> str:
    moved = program.bytes_moved
    amount = f"{moved / 1e6:.1f} MB" if moved >= 1e5 else f"{moved} bytes"
    how = {
        "rows": "One row at a time for each thread",
        "chunks": "Threads share each row, a chunk of columns each",
        "columns": f"{schedule.width} neighbouring rows at a time for each thread",
    }[schedule.layout]
    return (f"// {title}: {program.rows} rows of {program.columns} columns.\n"
            f"// Floor: {amount} moved (each input read once, each output written once).\n"
            f"// {how}.")


def _constants(program: RowProgram, schedule: CppSchedule, text: str) -> str:
    inner = program.row_axes[-1] if program.row_axes else 1
    names = {
        "ROWS": (program.rows, ""),
        "COLS": (program.columns, ""),
        "LANES": (schedule.width, "independent accumulators of a row"),
        "TILE": (schedule.tile, "columns that are summed up in float before they join the total"),
        "CHUNKS": (schedule.chunks, "parts of a row that threads share"),
        "WIDTH": (schedule.width, "neighbouring rows that a thread takes"),
        "INNER": (inner, "neighbouring rows"),
        "TILES": (-(-inner // schedule.width), "steps of WIDTH along the rows"),
    }
    lines = [
        f"constexpr long {name} = {value};" + (f"  // {note}" if note else "")
        for name, (value, note) in names.items() if re.search(rf"\b{name}\b", text)
    ]
    return "\n".join(lines)
