"""CUDA for scans. `rows`: the scan lies along memory, a warp or a block walks each row in tiles.
`columns`: neighbouring threads take neighbouring rows and each walks its own.

Few long rows are cut into segments: one kernel finds each segment's total, a second one scans the
segments, each starting from the totals before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.graph.ir import Op
from cuda_agent.skills.emit import expressions, types
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import coordinates, offset
from cuda_agent.skills.scan.analysis import Read, Scan, tensors
from cuda_agent.skills.scan.cuda_text import LANES, warp_text

WORD_BYTES = 16


@dataclass(frozen=True)
class Schedule:
    """`form`: rows or columns. `warps` per row (1: several rows per block), `items` consecutive
    steps per thread and tile (rows) or loads in flight (columns)."""

    form: str = "rows"
    warps: int = 1
    items: int = 4
    segments: int = 1


@dataclass(frozen=True)
class Launch:
    name: str
    grid: tuple[int, int]
    block: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class ScanSource:
    source: str
    launches: tuple[Launch, ...]
    workspace: int
    aligned: dict[str, int]


def write(scan: Scan, schedule: Schedule, name: str, title: str) -> ScanSource:
    kind = _Rows if schedule.form == "rows" else _Columns
    return kind(scan, schedule, name, title).write()


class _Writer:
    """What both forms share: operands, statements, the pair of kernels for segments."""

    def __init__(self, scan: Scan, schedule: Schedule, name: str, title: str) -> None:
        self.scan, self.schedule, self.name, self.title = scan, schedule, name, title
        self.type = scan.accumulator
        self.symbol = "+" if scan.kind == "sum" else "*"
        self.identity = types.literal(0 if scan.kind == "sum" else 1, self.type, "cuda")
        self.segments = schedule.segments
        self.helpers: set[str] = set()
        furthest = scan.length * max(scan.steps.values(), default=1)
        wide = scan.layout.wide(furthest + 65536) or scan.rows * scan.length >= 2**31 - 65536
        self.index = "long long" if wide else "int"
        self.names = [f"d{i}" for i in range(len(scan.layout.sizes))]

    # --- operands -----------------------------------------------------------------------------

    def pointer(self, name: str) -> str:
        return f"{identifier(name)}_ptr"

    def base(self, name: str) -> str:
        """Offset of step 0 of the current row."""
        return offset(self.scan.place_named(name).strides, self.names)

    def at(self, name: str, index: str, step: int) -> str:
        """`pointer[row's start + index * step]`"""
        parts = [p for p in (self.base(name), offset((step,), (f"({index})",))) if p != "0"]
        return f"{self.pointer(name)}[{' + '.join(parts) or '0'}]"

    def position(self, orientation: int, step: str) -> str:
        return step if orientation == 0 else f"LENGTH - 1 - {step}"

    def uniform(self, read: Read) -> bool:
        return self.scan.along(read) == 0 and not read.shift

    def raw(self, read: Read, step: str) -> str:
        """The stored element of a read at a step, in bounds for steps below LENGTH."""
        index = self.position(read.orientation, step)
        if not read.shift:
            return self.at(read.tensor.name, index, self.scan.along(read))
        inside = f"({index} - {read.shift})" if read.shift > 0 else f"({index})"
        size = self.scan.length - abs(read.shift)
        filler = types.literal(read.filler, types.compute_type(read.tensor.dtype), "cuda")
        code = types.store(filler, read.tensor.dtype)
        self.helpers |= code.helpers
        element = self.at(read.tensor.name, inside, self.scan.along(read))
        guard = f"{inside} >= 0" if read.shift > 0 else f"{inside} < {size}"
        return f"({guard} ? {element} : {code.text})"

    def value(self, read: Read, raw: str) -> str:
        """A line that declares a read's value."""
        code = types.load(raw, read.tensor.dtype)
        self.helpers |= code.helpers
        kind = types.compute_type(read.tensor.dtype)
        return f"const {kind} {identifier(read.name)} = {code.text};"

    def statements(self, ops: list[Op], scope: dict[str, str]) -> list[str]:
        written = expressions.statements(ops, self.scan.values, scope, "cuda")
        self.helpers |= written.helpers
        scope.update(written.scope)
        return list(written.lines)

    def scope(self) -> dict[str, str]:
        return {r.name: identifier(r.name) for r in self.scan.reads}

    def scanned(self, scope: dict[str, str]) -> str:
        """The value to scan in the accumulator's type."""
        kind = types.compute_type(self.scan.values[self.scan.source].dtype)
        text = scope[self.scan.source]
        return text if kind == self.type else f"({self.type}){text}"

    def storage(self, name: str) -> str:
        return types.storage_type(self.scan.values[name].dtype)

    def stored(self, name: str, value: str) -> str:
        dtype = self.scan.values[name].dtype
        code = types.store(value, dtype)
        self.helpers |= code.helpers
        return code.text

    def row_coordinates(self) -> list[str]:
        used = [any(o.strides[d] for o in self.scan.layout.operands)
                for d in range(len(self.names))]
        return coordinates(self.scan.layout.sizes, "row", self.names, self.index, used)

    # --- kernels ------------------------------------------------------------------------------

    def operand_parameters(self) -> list[str]:
        outputs = {t.name for _, t in self.scan.outputs}
        return [
            f"{'' if t.name in outputs else 'const '}{types.storage_type(t.dtype)}* __restrict__ "
            f"{self.pointer(t.name)}"
            for t in tensors(self.scan)
        ]

    def input_parameters(self) -> list[str]:
        names = {r.tensor.name for r in self.scan.before_reads()}
        return [f"const {types.storage_type(t.dtype)}* __restrict__ {self.pointer(t.name)}"
                for t in tensors(self.scan) if t.name in names]

    def function(self, name: str, parameters: list[str], body: list[str]) -> str:
        lines = "\n".join(f"    {line}" if line else "" for line in body)
        head = ",\n    ".join(parameters)
        return (f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(\n    {head}) {{\n'
                f"{lines}\n}}")

    def earlier(self) -> list[str]:
        """The running value at the start of a segment: the totals of those before it."""
        if self.segments == 1:
            return [f"{self.type} carry = {self.identity};"]
        return [
            f"{self.type} carry = {self.identity};",
            "for (int before = 0; before < segment; ++before)",
            f"    carry {self.symbol}= totals_ptr[before * ROWS + row];",
        ]

    def assemble(self, constants: list[str], texts: list[str], functions: list[str]) -> str:
        megabytes = self.scan.traffic_bytes / 1e6
        comment = [f"// {self.title}", f"// At least {megabytes:.4g} MB have to move."]
        if self.segments > 1:
            comment.append("// Few rows: segments of them run at once; the input is read twice.")
        parts = ["\n".join(comment), expressions.preamble(self.helpers, "cuda"),
                 "\n".join(constants), *(t.strip("\n") for t in texts), *functions]
        return "\n\n".join(p for p in parts if p) + "\n"


class _Rows(_Writer):
    """Lanes walk along the scan. Each thread scans `items` steps, shuffles join the lanes, shared
    memory the warps; what came before is the carry."""

    def __init__(self, scan: Scan, schedule: Schedule, name: str, title: str) -> None:
        super().__init__(scan, schedule, name, title)
        self.warps, self.items = schedule.warps, schedule.items
        self.group = 32 * self.warps
        self.threads = max(256, self.group) if self.warps == 1 else self.group
        self.rows_per_block = self.threads // self.group
        per_segment = -(-scan.length // self.segments)
        tile = self.group * self.items
        self.depth = -(-per_segment // tile) * tile
        self.segments = -(-scan.length // self.depth)
        whole = scan.length % self.items == 0
        self.vectors = {r.name for r in scan.reads if whole and self._aligned(r)}
        self.vector_outputs = {
            t.name for _, t in scan.outputs
            if whole and self._row_aligned(t.name, scan.steps[t.name])
        }

    def _aligned(self, read: Read) -> bool:
        return (not read.shift and read.orientation == int(self.scan.reverse)
                and self._row_aligned(read.tensor.name, self.scan.along(read)))

    def _row_aligned(self, name: str, step: int) -> bool:
        operand = self.scan.place_named(name)
        need = min(self.items, max(1, WORD_BYTES // operand.item_bytes))
        return step == 1 and all(s % need == 0 for s in operand.strides)

    def write(self) -> ScanSource:
        scan = self.scan
        functions, launches = [], []
        grid = (-(-scan.rows // self.rows_per_block), self.segments)
        workspace = 0
        names = [t.name for t in tensors(scan)]
        parameters = self.operand_parameters()
        main = self._main()
        if self.segments > 1:
            totals = f"{self.name}_totals"
            functions.append(self.function(
                totals, [*self.input_parameters(), f"{self.type}* __restrict__ totals_ptr"],
                self._totals()))
            taken = {r.tensor.name for r in scan.before_reads()}
            launches.append(Launch(totals, grid, self.threads,
                                   (*(n for n in names if n in taken), "totals")))
            workspace = self.segments * scan.rows
            parameters = [*parameters, f"const {self.type}* __restrict__ totals_ptr"]
            names = [*names, "totals"]
        functions.append(self.function(self.name, parameters, main))
        launches.append(Launch(self.name, grid, self.threads, tuple(names)))
        constants = [
            f"constexpr int THREADS = {self.threads}, GROUP = {self.group};  // threads per row",
            f"constexpr int ITEMS = {self.items};  // consecutive steps per thread and tile",
            "constexpr int TILE = GROUP * ITEMS;",
            f"constexpr int ROWS = {scan.rows}, LENGTH = {scan.length};",
        ]
        if self.segments > 1:
            constants.append(f"constexpr int SEGMENTS = {self.segments}, DEPTH = {self.depth};")
        texts = [LANES, warp_text(self.type, self.symbol, self.identity,
                                  totals=self.segments > 1)]
        aligned = {
            r.tensor.name: min(WORD_BYTES, self.items * self.scan.place_named(r.tensor.name)
                               .item_bytes)
            for r in scan.reads if r.name in self.vectors
        }
        return ScanSource(self.assemble(constants, texts, functions), tuple(launches), workspace,
                          aligned)

    # --- pieces -------------------------------------------------------------------------------

    def _head(self) -> list[str]:
        """Which row, which thread of it, which part."""
        lines = ["const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;"]
        if self.warps == 1:
            lines += [f"const {self.index} row = blockIdx.x * (THREADS / GROUP) + warp;",
                      "const int rank = lane;",
                      "if (row >= ROWS) return;  // whole warps leave, no barrier follows"]
        else:
            lines += [f"const {self.index} row = blockIdx.x;",
                      "const int rank = threadIdx.x;"]
        if self.segments > 1:
            lines += ["const int segment = blockIdx.y, begin = segment * DEPTH;",
                      "const int end = begin + DEPTH < LENGTH ? begin + DEPTH : LENGTH;"]
        return lines + self.row_coordinates()

    def _range(self) -> tuple[str, str]:
        return ("begin", "end") if self.segments > 1 else ("0", "LENGTH")

    def _fetch(self, read: Read, target: str, first: str) -> list[str]:
        """Lines that load a thread's items of the tile whose first step for it is `first`."""
        if read.name in self.vectors:
            where = first if not self.scan.reverse else f"LENGTH - {first} - ITEMS"
            base = self.base(read.tensor.name)
            at = where if base == "0" else f"{base} + {where}"
            return [f"if ({first} < LENGTH) {target} = load({self.pointer(read.tensor.name)} + "
                    f"{at});"]
        return ["#pragma unroll",
                "for (int v = 0; v < ITEMS; ++v)",
                f"    if ({first} + v < LENGTH) {target}.lane[v] = "
                f"{self.raw(read, f'({first} + v)')};"]

    def _lane(self, read: Read) -> str:
        turned = read.name in self.vectors and self.scan.reverse
        return f"{identifier(read.name)}_in.lane[{'ITEMS - 1 - v' if turned else 'v'}]"

    def _walked(self, reads: list[Read]) -> list[Read]:
        return [r for r in reads if not self.uniform(r)]

    def _declare(self, reads: list[Read]) -> list[str]:
        lines = []
        for r in reads:
            if self.uniform(r):
                lines.append(self.value(r, self.at(r.tensor.name, "0", 0)))
        return lines

    def _lanes_type(self, read: Read) -> str:
        return f"Lanes<{types.storage_type(read.tensor.dtype)}>"

    def _local(self) -> list[str]:
        """value[v]: the scanned values of this thread's items; past the end the identity."""
        scope = self.scope()
        inner = [self.value(r, self._lane(r)) for r in self._walked(self.scan.before_reads())]
        inner += self.statements(self.scan.before, scope)
        end = self._range()[1]
        inner.append(f"value[v] = first + v < {end} ? {self.scanned(scope)} : {self.identity};")
        return ["#pragma unroll", "for (int v = 0; v < ITEMS; ++v) {",
                *(f"    {line}" for line in inner), "}"]

    def _main(self) -> list[str]:
        scan = self.scan
        walked = self._walked(scan.reads)
        begin, end = self._range()
        lines = [*self._head(), *self._declare(scan.reads), *self.earlier()]
        if self.warps > 1:
            lines.append(f"__shared__ {self.type} warp_totals[2 * (GROUP / 32)];")
        for read in walked:
            lines.append(f"{self._lanes_type(read)} {identifier(read.name)}_next{{}};")
        start = "rank * ITEMS" if begin == "0" else "begin + rank * ITEMS"
        lines += [line for r in walked
                  for line in self._fetch(r, f"{identifier(r.name)}_next", f"({start})")]
        body = ["const int first = tile + rank * ITEMS;"]
        for read in walked:
            name = identifier(read.name)
            body.append(f"const {self._lanes_type(read)} {name}_in = {name}_next;")
        if walked:
            body.append("// The next tile is on its way while this one is scanned.")
            ahead = [line for r in walked
                     for line in self._fetch(r, f"{identifier(r.name)}_next", "(first + TILE)")]
            body += [f"if (tile + TILE < {end}) {{", *(f"    {line}" for line in ahead), "}"]
        body += [f"{self.type} value[ITEMS];", *self._local(),
                 "#pragma unroll",
                 f"for (int v = 1; v < ITEMS; ++v) value[v] = value[v - 1] {self.symbol} value[v];",
                 f"const {self.type} inclusive = warp_scan(value[ITEMS - 1], lane);",
                 f"{self.type} before = __shfl_up_sync(0xffffffffu, inclusive, 1);",
                 f"if (lane == 0) before = {self.identity};"]
        body += self._join() + self._finish()
        return [*lines, f"for (int tile = {begin}; tile < {end}; tile += TILE) {{",
                *(f"    {line}" for line in body), "}"]

    def _join(self) -> list[str]:
        """`prefix`: all that came before this thread's warp; the carry moves past the tile."""
        if self.warps == 1:
            return [f"const {self.type} prefix = carry {self.symbol} before;",
                    f"carry {self.symbol}= __shfl_sync(0xffffffffu, inclusive, 31);"]
        return [
            "// Two buffers in turn, so that one barrier per tile is enough.",
            f"{self.type}* totals = warp_totals + (tile / TILE % 2) * (GROUP / 32);",
            "if (lane == 31) totals[warp] = inclusive;",
            "__syncthreads();",
            f"{self.type} prefix = carry;",
            "#pragma unroll",
            "for (int w = 0; w < GROUP / 32; ++w) {",
            f"    if (w < warp) prefix {self.symbol}= totals[w];",
            f"    carry {self.symbol}= totals[w];",
            "}",
            f"prefix {self.symbol}= before;",
        ]

    def _finish(self) -> list[str]:
        """What follows the scan, item by item, and the stores."""
        scan, scope = self.scan, self.scope()
        result = identifier(scan.result)
        scope[scan.result] = result
        inner = [self.value(r, self._lane(r)) for r in self._walked(scan.after_reads())]
        inner.append(f"const {self.type} {result} = prefix {self.symbol} value[v];")
        inner += self.statements(scan.after_ops(), scope)
        stores: list[str] = []
        _, end = self._range()
        declared = []
        for name, tensor in scan.outputs:
            code = self.stored(tensor.name, scope[name])
            if tensor.name in self.vector_outputs:
                slot = "ITEMS - 1 - v" if scan.reverse else "v"
                kind = self.storage(tensor.name)
                declared.append(f"Lanes<{kind}> {identifier(tensor.name)}_out;")
                inner.append(f"{identifier(tensor.name)}_out.lane[{slot}] = {code};")
                base = self.base(tensor.name)
                where = "LENGTH - first - ITEMS" if scan.reverse else "first"
                at = where if base == "0" else f"{base} + {where}"
                stores.append(f"if (first < {end}) store({self.pointer(tensor.name)} + {at}, "
                              f"{identifier(tensor.name)}_out);")
            else:
                index = self.position(int(scan.reverse), "(first + v)")
                element = self.at(tensor.name, index, scan.steps[tensor.name])
                inner.append(f"if (first + v < {end}) {element} = {code};")
        return [*declared, "#pragma unroll", "for (int v = 0; v < ITEMS; ++v) {",
                *(f"    {line}" for line in inner), "}", *stores]

    def _totals(self) -> list[str]:
        """The total of one segment of one row."""
        reads = self.scan.before_reads()
        body = ["const int first = tile + rank * ITEMS;"]
        for r in self._walked(reads):
            body.append(f"{self._lanes_type(r)} {identifier(r.name)}_in{{}};")
            body += self._fetch(r, f"{identifier(r.name)}_in", "first")
        body += [f"{self.type} value[ITEMS];", *self._local(),
                 "#pragma unroll",
                 f"for (int v = 0; v < ITEMS; ++v) total {self.symbol}= value[v];"]
        lines = [*self._head(), *self._declare(reads), f"{self.type} total = {self.identity};",
                 "for (int tile = begin; tile < end; tile += TILE) {",
                 *(f"    {line}" for line in body), "}", "total = warp_total(total);"]
        if self.warps == 1:
            return [*lines, "if (lane == 0) totals_ptr[segment * ROWS + row] = total;"]
        return [*lines,
                f"__shared__ {self.type} warp_totals[GROUP / 32];",
                "if (lane == 0) warp_totals[warp] = total;",
                "__syncthreads();",
                "if (threadIdx.x == 0) {",
                f"    for (int w = 1; w < GROUP / 32; ++w) total {self.symbol}= warp_totals[w];",
                "    totals_ptr[segment * ROWS + row] = total;",
                "}"]


class _Columns(_Writer):
    """A thread walks its own row; neighbours in memory are neighbouring threads."""

    def __init__(self, scan: Scan, schedule: Schedule, name: str, title: str) -> None:
        super().__init__(scan, schedule, name, title)
        self.threads, self.items = 128, schedule.items
        self.depth = -(-scan.length // self.segments)
        self.segments = -(-scan.length // self.depth)

    def write(self) -> ScanSource:
        scan = self.scan
        grid = (-(-scan.rows // self.threads), self.segments)
        names = [t.name for t in tensors(scan)]
        functions, launches, workspace = [], [], 0
        parameters = self.operand_parameters()
        if self.segments > 1:
            totals = f"{self.name}_totals"
            functions.append(self.function(
                totals, [*self.input_parameters(), f"{self.type}* __restrict__ totals_ptr"],
                self._walk(store=False)))
            taken = {r.tensor.name for r in scan.before_reads()}
            launches.append(Launch(totals, grid, self.threads,
                                   (*(n for n in names if n in taken), "totals")))
            workspace = self.segments * scan.rows
            parameters = [*parameters, f"const {self.type}* __restrict__ totals_ptr"]
            names = [*names, "totals"]
        functions.append(self.function(self.name, parameters, self._walk(store=True)))
        launches.append(Launch(self.name, grid, self.threads, tuple(names)))
        constants = [
            f"constexpr int THREADS = {self.threads};",
            f"constexpr int AHEAD = {self.items};  // loads of each operand in flight",
            f"constexpr int ROWS = {scan.rows}, LENGTH = {scan.length};",
        ]
        if self.segments > 1:
            constants.append(f"constexpr int SEGMENTS = {self.segments}, DEPTH = {self.depth};")
        return ScanSource(self.assemble(constants, [], functions), tuple(launches), workspace, {})

    def _walk(self, *, store: bool) -> list[str]:
        scan, scope = self.scan, self.scope()
        reads = scan.reads if store else scan.before_reads()
        lines = [f"const {self.index} row = blockIdx.x * THREADS + threadIdx.x;",
                 "if (row >= ROWS) return;"]
        begin, end = "0", "LENGTH"
        if self.segments > 1:
            begin, end = "segment * DEPTH", "end"
            lines += ["const int segment = blockIdx.y;",
                      "const int end = (segment + 1) * DEPTH < LENGTH ? (segment + 1) * DEPTH "
                      ": LENGTH;"]
        lines += self.row_coordinates()
        walked = [r for r in reads if not self.uniform(r)]
        lines += [self.value(r, self.at(r.tensor.name, "0", 0)) for r in reads
                  if self.uniform(r)]
        lines += self.earlier() if store else [f"{self.type} carry = {self.identity};"]
        inner = [self.value(r, f"{identifier(r.name)}_in[u]") for r in walked]
        inner += self.statements(scan.before, scope)
        inner.append(f"carry {self.symbol}= {self.scanned(scope)};")
        if store:
            result = identifier(scan.result)
            scope[scan.result] = result
            inner.append(f"const {self.type} {result} = carry;")
            inner += self.statements(scan.after, scope)
            index = self.position(int(scan.reverse), "step")
            for name, tensor in scan.outputs:
                element = self.at(tensor.name, index, scan.steps[tensor.name])
                inner.append(f"{element} = {self.stored(tensor.name, scope[name])};")
        loop = [f"{types.storage_type(r.tensor.dtype)} {identifier(r.name)}_in[AHEAD]{{}};"
                for r in walked]
        loads = [f"{identifier(r.name)}_in[u] = {self.raw(r, 'step')};" for r in walked]
        guard = f"const {self.index} step = first + u;"
        loop += ["#pragma unroll", "for (int u = 0; u < AHEAD; ++u) {", f"    {guard}",
                 f"    if (step < {end}) {{", *(f"        {line}" for line in loads), "    }", "}"]
        loop += ["#pragma unroll", "for (int u = 0; u < AHEAD; ++u) {", f"    {guard}",
                 f"    if (step >= {end}) break;", *(f"    {line}" for line in inner), "}"]
        lines += [f"for (int first = {begin}; first < {end}; first += AHEAD) {{",
                  *(f"    {line}" for line in loop), "}"]
        if not store:
            lines.append("totals_ptr[segment * ROWS + row] = carry;")
        return lines
