"""CUDA source and launches for a row program under a schedule.

One kernel does everything where a row stays within a warp, block or cluster. With `split` layouts
each round of reductions is a kernel of its own: blocks leave partial results in a workspace, and
the next kernel merges them in a fixed order, so results do not change from run to run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from cuda_agent.skills.emit.expressions import preamble
from cuda_agent.skills.emit.rows import cuda_merge
from cuda_agent.skills.emit.rows.cuda_access import PACK
from cuda_agent.skills.emit.rows.cuda_kernel import KernelBody
from cuda_agent.skills.emit.rows.emitter import c_name
from cuda_agent.skills.emit.rows.passes import Keep, Passes, fuse_online, plan_passes
from cuda_agent.skills.emit.rows.program import RowProgram
from cuda_agent.skills.emit.rows.schedule import Schedule
from cuda_agent.skills.emit.types import compute_type

KEEP: dict[str, Keep] = {"register": "all", "shared": "loads", "reread": "none"}
STORAGE_NOTE = {
    "register": "its values stay in registers",
    "shared": "its values stay in shared memory",
    "reread": "later passes read it again",
}


@dataclass(frozen=True)
class Launch:
    """One kernel call. `args` are tensor names; workspaces are named in `CudaSource`."""

    kernel: str
    grid: tuple[int, ...]
    block: int
    args: tuple[str, ...]
    shared: int = 0
    cluster: int = 1


@dataclass(frozen=True)
class CudaSource:
    """`workspaces` maps a name to bytes; `aligned` are inputs that must start at 16 bytes."""

    text: str
    launches: tuple[Launch, ...]
    workspaces: dict[str, int] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()


def write_cuda(program: RowProgram, schedule: Schedule, label: str, title: str) -> CudaSource:
    """`label` names the kernel ("r0_softmax"), `title` opens the file ("softmax of ...")."""
    if schedule.storage == "reread":
        program = fuse_online(program)
    return _Writer(program, schedule, label, title).write()


class _Writer:
    def __init__(self, program: RowProgram, schedule: Schedule, label: str, title: str) -> None:
        self.program, self.schedule, self.label, self.title = program, schedule, label, title
        self.plan: Passes = plan_passes(program, KEEP[schedule.storage])
        self.helpers: set[str] = set()
        self.launches: list[Launch] = []
        self.kernels: list[str] = []
        self.aligned: set[str] = set()
        self.workspaces: dict[str, int] = {}
        self.index_type = "unsigned"

    def write(self) -> CudaSource:
        if self.schedule.split:
            count = len(self.plan.passes)
            for stage in range(count + bool(self.plan.passes[-1].reduces)):
                name = self.label if count == 1 and stage == 0 else f"{self.label}_{stage}"
                if stage == count:
                    name = f"{self.label}_finish"
                self._kernel(name, stage)
        else:
            self._kernel(self.label, None)
        return CudaSource(self._text(), tuple(self.launches), self.workspaces,
                          frozenset(self.aligned))

    # --- one kernel ---------------------------------------------------------------------------

    def _kernel(self, name: str, stage: int | None) -> None:
        """`stage` is None for a kernel that runs every pass, else the one pass it runs after
        merging all earlier rounds; a stage past the last pass only finishes."""
        passes = self.plan.passes
        last = stage is not None and stage == len(passes)
        body = KernelBody(self.plan, self.schedule)
        self.index_type = body.col_type
        merge = _Merge(body, self.schedule, self.program)
        self._indices(body, whole_row=last)
        body.declare_bases(passes if stage is None else passes[stage : stage + 1])
        writer = self._writer(merged_only=last)
        body.row_steps(self.plan.before, store=stage in (None, 0), writer=writer)
        for index, work in enumerate(passes):
            if stage is not None and index > stage:
                break
            if stage is None or index == stage:
                body.elem_pass(index)
                if work.reduces and stage is None:
                    merge.threads(index)
            else:
                merge.partials(index)
            self._bind(body, index)
            if stage is None or index < stage:
                body.row_steps(work.after, store=stage is None or stage == index + 1,
                               writer=writer)
            elif work.reduces:
                merge.leave_partial(index)
                self._workspace(index)
        self.helpers |= body.helpers
        args = self._arguments(body, stage)
        self._finish(name, body, args, merge, whole_row=last)

    def _indices(self, body: KernelBody, *, whole_row: bool) -> None:
        schedule, out = self.schedule, body.out
        row, col = body.row_type, body.col_type
        blocks = "" if schedule.blocks == 1 or whole_row else " / BLOCKS"
        if schedule.column_layout:
            self._tile_indices(body, whole_row=whole_row)
            return
        if schedule.strategy == "warp":
            rows = self.program.rows
            out.add(f"const {col} thread = threadIdx.x % LANES;")
            slot = "blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES"
            if rows % schedule.rows_per_block:
                out.add(f"const unsigned slot = {slot};",
                        "// Threads beyond the last row repeat it: shuffles need every lane.",
                        f"const {row} row = slot < ROWS ? slot : ROWS - 1;")
            else:
                out.add(f"const {row} row = {slot};")
            return
        if schedule.strategy == "cluster":
            out.add("const unsigned rank = cluster_rank();", "cluster_arrive();")
        elif blocks:
            out.add("const unsigned rank = blockIdx.x % BLOCKS;")
        out.add(f"const {row} row = blockIdx.x{blocks};")
        first = "rank * THREADS + threadIdx.x" if blocks else "threadIdx.x"
        out.add(f"const {col} thread = {first};")

    def _tile_indices(self, body: KernelBody, *, whole_row: bool) -> None:
        schedule, out = self.schedule, body.out
        row = body.row_type
        out.add("const unsigned along = threadIdx.x % LANES, part = threadIdx.x / LANES;")
        outer = len(self.program.row_axes) > 1
        out.add(f"const {row} outer = blockIdx.x / TILES;" if outer else "",
                "const unsigned tile = blockIdx.x % TILES;" if outer else
                "const unsigned tile = blockIdx.x;",
                "// Threads beyond the last row repeat it, so that all reach every barrier.",
                f"const {row} slot = (tile * LANES + along) * VEC;",
                f"const {row} inner = slot < INNER ? slot : INNER - VEC;")
        if schedule.split and not whole_row:
            out.add("const unsigned rank = blockIdx.y;",
                    f"const {body.col_type} thread = rank * (THREADS / LANES) + part;")
        else:
            out.add(f"const {body.col_type} thread = part;")
        out.text = [line for line in out.text if line]

    def _writer(self, *, merged_only: bool) -> str:
        """The condition under which a thread stores row-level results."""
        if self.schedule.column_layout:
            return "part == 0" if merged_only or not self.schedule.split else "thread == 0"
        return "threadIdx.x == 0" if merged_only else "thread == 0"

    def _bind(self, body: KernelBody, index: int) -> None:
        lane = "[i]" if self.schedule.column_layout else ""
        for reduce in self.plan.passes[index].reduces:
            wide = {m.name: m for m in cuda_merge.members(self.program, reduce, self.index_type)}
            for value in reduce.values:
                text = f"sums{index}{lane}.{c_name(value)}"
                if wide[c_name(value)].ctype.startswith("unsigned"):
                    text = f"((long long){text})"
                body.scope[value] = text

    def _workspace(self, index: int) -> None:
        fields = [m for r in self.plan.passes[index].reduces
                  for m in cuda_merge.members(self.program, r, self.index_type)]
        size = {"float": 4, "unsigned": 4, "bool": 1}
        # Each field rounded up to eight bytes is never less than the compiler's layout.
        each = sum(max(8, size.get(m.ctype, 8)) for m in fields)
        self.workspaces[f"{self.label}_partial{index}"] = (
            self.program.rows * self.schedule.blocks * each)

    def _arguments(self, body: KernelBody, stage: int | None) -> tuple[str, ...]:
        stored = {s.operand.name for s in self.program.stores}
        names = sorted(body.used, key=lambda n: n in stored)
        rounds: list[int] = []
        if stage is not None:
            rounds = [i for i, p in enumerate(self.plan.passes) if p.reduces and i <= stage]
        return (*names, *(f"{self.label}_partial{i}" for i in rounds))

    def _finish(
        self, name: str, body: KernelBody, args: tuple[str, ...], merge: _Merge, *, whole_row: bool
    ) -> None:
        schedule = self.schedule
        parameters = []
        for arg in args:
            if arg in body.used:
                access = body.used[arg]
                const = "" if access.is_store else "const "
                parameters.append(f"{const}{access.storage}* __restrict__ {access.pointer}")
                if access.mode == "vector" and not access.is_store:
                    self.aligned.add(arg)
            else:
                round_ = arg.removeprefix(f"{self.label}_partial")
                const = "const " if f"partial{round_}[" not in merge.written else ""
                parameters.append(f"{const}Sums{round_}* __restrict__ partial{round_}")
        head = [f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(',
                "    " + ",\n    ".join(parameters) + ") {"]
        if body.shared_bytes:
            head.append("    extern __shared__ __align__(16) unsigned char shared[];")
        head += [f"    {line}" for line in merge.declarations]
        self.kernels.append("\n".join([*head, *body.out.text, "}"]))
        self.launches.append(Launch(
            name, self._grid(whole_row=whole_row), schedule.threads, args, body.shared_bytes,
            schedule.blocks if schedule.strategy == "cluster" else 1))

    def _grid(self, *, whole_row: bool) -> tuple[int, ...]:
        schedule, program = self.schedule, self.program
        if schedule.column_layout:
            inner = program.row_axes[-1]
            tiles = -(-inner // (schedule.lanes * schedule.vector))
            blocks = tiles * (program.rows // inner)
            return (blocks,) if whole_row or not schedule.split else (blocks, schedule.blocks)
        if schedule.strategy == "warp":
            return (-(-program.rows // schedule.rows_per_block),)
        return (program.rows * (1 if whole_row else schedule.blocks),)

    # --- the file -----------------------------------------------------------------------------

    def _text(self) -> str:
        kernels = "\n\n".join(self.kernels)
        structs = [
            cuda_merge.sums_struct(self.program, f"Sums{i}", p.reduces, self.index_type)
            for i, p in enumerate(self.plan.passes) if p.reduces
        ]
        reduces = self.program.reduces
        kinds = {r.kind for r in reduces}
        ctypes = {compute_type(self.program.values[r.values[0]].dtype) for r in reduces}
        parts = [self._header(), self._constants(kernels)]
        parts.append(preamble(self.helpers, "cuda"))
        if "Pack<" in kernels:
            parts.append(PACK.strip())
        parts += cuda_merge.helper_text(self.program, kinds, ctypes)
        parts += structs
        for name, text in (("lanes_merge", cuda_merge.LANES_MERGE),
                           ("block_merge", cuda_merge.BLOCK_MERGE),
                           ("cluster_", cuda_merge.CLUSTER_MERGE),
                           ("tile_merge", cuda_merge.TILE_MERGE)):
            needs_lanes = "block_merge" in kernels or "cluster_merge" in kernels
            if name in kernels or (name == "lanes_merge" and needs_lanes):
                parts.append(text.strip())
        parts.append(kernels)
        return "\n\n".join(p for p in parts if p) + "\n"

    def _header(self) -> str:
        program, schedule = self.program, self.schedule
        moved = program.bytes_moved
        amount = f"{moved / 1e6:.1f} MB" if moved >= 1e5 else f"{moved} bytes"
        where = {
            "warp": f"{schedule.lanes} lanes share a row",
            "block": "One block for each row",
            "cluster": f"A cluster of {schedule.blocks} blocks shares a row",
            "split": f"{schedule.blocks} blocks share a row and leave partial results in memory",
            "column": "Threads lie along rows, which are neighbours in memory",
            "column_split": f"Threads lie along rows; {schedule.blocks} blocks share the columns",
        }[schedule.strategy]
        note = f"; {STORAGE_NOTE[schedule.storage]}" if len(self.plan.passes) > 1 else ""
        return (f"// {self.title}: {program.rows} rows of {program.columns} columns.\n"
                f"// Floor: {amount} moved (each input read once, each output written once).\n"
                f"// {where}{note}.")

    def _constants(self, text: str) -> str:
        schedule, program = self.schedule, self.program
        inner = program.row_axes[-1] if program.row_axes else 1
        names = {
            "ROWS": (program.rows, ""),
            "COLS": (program.columns, ""),
            "INNER": (inner, "neighbouring rows"),
            "THREADS": (schedule.threads, ""),
            "VEC": (schedule.vector, "elements that a thread moves at once"),
            "LANES": (schedule.lanes, "threads along rows" if schedule.column_layout
                      else "threads that share a row"),
            "BLOCKS": (schedule.blocks, "blocks that share a row"),
            "PARTS": (schedule.parts, "threads, of all its blocks, that share a row"),
            "TILES": (-(-inner // (schedule.lanes * schedule.vector)), "blocks along a row axis"),
        }
        lines = []
        for name, (value, note) in names.items():
            if re.search(rf"\b{name}\b", text):
                kind = "int" if name == "VEC" else (
                    "unsigned" if value < 2**31 else "unsigned long long")
                comment = f"  // {note}" if note else ""
                lines.append(f"constexpr {kind} {name} = {value};{comment}")
        return "\n".join(lines)


class _Merge:
    """How the threads of a row come to one result."""

    def __init__(self, body: KernelBody, schedule: Schedule, program: RowProgram) -> None:
        self.body, self.schedule, self.program = body, schedule, program
        self.declarations: list[str] = []
        self.written = ""
        self._cluster_started = False

    def threads(self, index: int) -> None:
        """Merge `sums` over all threads of a row; every thread gets the result."""
        schedule, out = self.schedule, self.body.out
        if schedule.strategy == "warp":
            if schedule.lanes > 1:
                out.add(f"sums{index} = lanes_merge<LANES>(sums{index});")
            return
        self._block(index)
        if schedule.strategy == "cluster":
            if not self._cluster_started:
                out.add("cluster_wait();  // all blocks of the cluster run: their memory is there")
                self._cluster_started = True
            self.declarations.append(f"__shared__ Sums{index} peers{index}[BLOCKS];")
            out.add(f"sums{index} = cluster_merge<BLOCKS>(sums{index}, peers{index});")

    def _block(self, index: int) -> None:
        schedule, out = self.schedule, self.body.out
        if schedule.column_layout:
            if schedule.threads > schedule.lanes:
                self.declarations.append(f"__shared__ Sums{index} tile{index}[THREADS * VEC];")
                out.add(f"tile_merge<LANES, THREADS / LANES>(sums{index}, tile{index});")
            return
        self.declarations.append(f"__shared__ Sums{index} slots{index}[THREADS / 32];")
        out.add(f"sums{index} = block_merge<THREADS / 32>(sums{index}, slots{index});")

    def leave_partial(self, index: int) -> None:
        out = self.body.out
        self._block(index)
        if self.schedule.column_layout:
            out.open("if (part == 0) {")
            out.add("#pragma unroll",
                    "for (int i = 0; i < VEC; ++i) "
                    f"partial{index}[rank * ROWS + {self._flat_row()} + i] = sums{index}[i];")
            out.close()
        else:
            out.add(f"if (threadIdx.x == 0) partial{index}[row * BLOCKS + rank] = sums{index};")
        self.written += f"partial{index}["

    def partials(self, index: int) -> None:
        """Merge what the blocks of an earlier kernel left for this row."""
        out = self.body.out
        self.body._declare_sums(f"sums{index}", index)
        if self.schedule.column_layout:
            out.open("for (unsigned other = part; other < BLOCKS; other += THREADS / LANES) {")
            out.add("#pragma unroll",
                    "for (int i = 0; i < VEC; ++i) "
                    f"sums{index}[i].merge(partial{index}[other * ROWS + {self._flat_row()} + i]);")
        else:
            out.open("for (unsigned other = threadIdx.x; other < BLOCKS; other += THREADS) {")
            out.add(f"sums{index}.merge(partial{index}[row * BLOCKS + other]);")
        out.close()
        self._block(index)

    def _flat_row(self) -> str:
        return "outer * INNER + inner" if len(self.program.row_axes) > 1 else "inner"
