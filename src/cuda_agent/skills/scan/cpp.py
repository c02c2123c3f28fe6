"""C++ for scans: only the running value is sequential, all around it is vectorised.

`rows`: a tile of each row is computed into a buffer, scanned there (several rows side by side, so
that their chains of additions overlap), and finished from there. `columns`: neighbouring rows lie
side by side in memory, so each step is a vector operation over them. Running values are double for
floating types, as torch's are on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from cuda_agent.graph.ir import Op
from cuda_agent.skills.emit import expressions, types
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import coordinates, offset
from cuda_agent.skills.scan.analysis import Read, Scan, tensors

TILE, BLOCK, SIDE_BY_SIDE = 1024, 256, 4


@dataclass(frozen=True)
class Schedule:
    """`segments` of each row run in parallel when rows are fewer than threads (rows form)."""

    form: str = "rows"
    parallel: bool = True
    segments: int = 1


def write(scan: Scan, schedule: Schedule, name: str, title: str) -> tuple[str, list[str]]:
    """(source, arguments)"""
    writer = _Cpp(scan, schedule)
    body = writer.rows() if schedule.form == "rows" else writer.columns()
    outputs = {t.name for _, t in scan.outputs}
    taken = list(tensors(scan))
    parameters = [
        f"{'' if t.name in outputs else 'const '}{types.storage_type(t.dtype)}* __restrict "
        f"{identifier(t.name)}_ptr"
        for t in taken
    ]
    head = ",\n    ".join(parameters)
    lines = "\n".join(line if line.startswith("#") else f"    {line}" for line in body)
    parts = [
        f"// {title}\n// At least {scan.traffic_bytes / 1e6:.4g} MB have to move.",
        "#include <cstdint>",
        expressions.preamble(writer.helpers, "cpp"),
        f'extern "C" void {name}(\n    {head}) {{\n{lines}\n}}',
    ]
    return "\n\n".join(p for p in parts if p) + "\n", [t.name for t in taken]


class _Cpp:
    def __init__(self, scan: Scan, schedule: Schedule) -> None:
        self.scan, self.schedule = scan, schedule
        self.helpers: set[str] = set()
        self.type = scan.accumulator
        self.running = "double" if self.type == "float" else self.type
        self.symbol = "+" if scan.kind == "sum" else "*"
        self.identity = "0" if scan.kind == "sum" else "1"
        self.names = [f"d{i}" for i in range(len(scan.layout.sizes))]

    # --- operands -----------------------------------------------------------------------------

    def _at(self, name: str, index: str) -> str:
        base = offset(self.scan.place_named(name).strides, self.names)
        along = offset((self.scan.steps[name],), (f"({index})",))
        parts = [p for p in (base, along) if p != "0"]
        return f"{identifier(name)}_ptr[{' + '.join(parts) or '0'}]"

    def _index(self, orientation: int) -> str:
        return "LENGTH - 1 - step" if orientation else "step"

    def _read(self, read: Read) -> str:
        index = self._index(read.orientation)
        shifted = f"{index} - {read.shift}" if read.shift > 0 else index
        code = types.load(self._at(read.tensor.name, shifted), read.tensor.dtype)
        self.helpers |= code.helpers
        kind = types.compute_type(read.tensor.dtype)
        text = code.text
        if read.shift:
            inside = (f"{shifted} >= 0" if read.shift > 0
                      else f"{index} < {self.scan.length + read.shift}")
            text = f"{inside} ? {text} : {types.literal(read.filler, kind, 'cpp')}"
        return f"const {kind} {identifier(read.name)} = {text};"

    def _statements(self, ops: list[Op], scope: dict[str, str]) -> list[str]:
        written = expressions.statements(ops, self.scan.values, scope, "cpp")
        self.helpers |= written.helpers
        scope.update(written.scope)
        return list(written.lines)

    def _source(self) -> list[str]:
        """Lines that end with `scanned`, the value to scan at `step`."""
        scope = {r.name: identifier(r.name) for r in self.scan.reads}
        lines = [self._read(r) for r in self.scan.before_reads()]
        lines += self._statements(self.scan.before, scope)
        lines.append(f"const {self.type} scanned = ({self.type}){scope[self.scan.source]};")
        return lines

    def _results(self, value: str) -> list[str]:
        """Lines that finish and store `step` from the running value."""
        scan = self.scan
        scope = {r.name: identifier(r.name) for r in scan.reads}
        scope[scan.result] = identifier(scan.result)
        lines = [self._read(r) for r in scan.after_reads()]
        lines.append(f"const {self.type} {identifier(scan.result)} = {value};")
        lines += self._statements(scan.after_ops(), scope)
        index = self._index(int(scan.reverse))
        for name, tensor in scan.outputs:
            code = types.store(scope[name], tensor.dtype)
            self.helpers |= code.helpers
            lines.append(f"{self._at(tensor.name, index)} = {code.text};")
        return lines

    def _simd(self, head: str, body: list[str]) -> list[str]:
        return ["#pragma omp simd", f"for ({head}) {{", *_indented(body), "}"]

    def _row(self) -> list[str]:
        used = [any(o.strides[d] for o in self.scan.layout.operands)
                for d in range(len(self.names))]
        return coordinates(self.scan.layout.sizes, "row", self.names, "int64_t", used)

    def _parallel(self, tasks: int, *, nested: int = 1) -> list[str]:
        if not self.schedule.parallel or tasks < 2:
            return []
        collapse = f" collapse({nested})" if nested > 1 else ""
        return [f"#pragma omp parallel for{collapse} schedule(static)"]

    # --- rows ---------------------------------------------------------------------------------

    def rows(self) -> list[str]:
        segments = self.schedule.segments
        return self._segmented(segments) if segments > 1 else self._whole_rows()

    def _tile(self) -> list[str]:
        return ["const int64_t stop = start + TILE < LENGTH ? start + TILE : LENGTH;"]

    def _whole_rows(self) -> list[str]:
        scan = self.scan
        side = SIDE_BY_SIDE if scan.rows >= 2 * SIDE_BY_SIDE else 1
        fill = self._simd("int64_t step = start; step < stop; ++step",
                          [*self._source(), "buffer[r][step - start] = scanned;"])
        finish = self._simd("int64_t step = start; step < stop; ++step",
                            self._results("buffer[r][step - start]"))
        each = ["const int64_t row = group + r;", *self._row()]
        body = [
            "const int64_t rows = group + SIDE < ROWS ? SIDE : ROWS - group;",
            f"{self.running} carry[SIDE];",
            f"for (int64_t r = 0; r < SIDE; ++r) carry[r] = {self.identity};",
            f"{self.type} buffer[SIDE][TILE] = {{}};",
            "for (int64_t start = 0; start < LENGTH; start += TILE) {",
            *_indented(self._tile()),
            "    for (int64_t r = 0; r < rows; ++r) {",
            *_indented([*each, *fill], 2),
            "    }",
            "    // The only sequential part: a chain per row, SIDE of them overlap.",
            "    for (int64_t i = 0; i < stop - start; ++i)",
            "        for (int64_t r = 0; r < SIDE; ++r) {",
            f"            carry[r] {self.symbol}= buffer[r][i];",
            f"            buffer[r][i] = ({self.type})carry[r];",
            "        }",
            "    for (int64_t r = 0; r < rows; ++r) {",
            *_indented([*each, *finish], 2),
            "    }",
            "}",
        ]
        return [
            f"constexpr int64_t ROWS = {scan.rows}, LENGTH = {scan.length};",
            f"constexpr int64_t TILE = {TILE}, SIDE = {side};  // steps, rows side by side",
            *self._parallel(-(-scan.rows // side)),
            "for (int64_t group = 0; group < ROWS; group += SIDE) {",
            *_indented(body), "}",
        ]

    def _segmented(self, segments: int) -> list[str]:
        """Two passes: totals of the segments, then each starts from those before it."""
        scan = self.scan
        depth = -(-scan.length // segments)
        segments = -(-scan.length // depth)
        end = ["const int64_t end = (segment + 1) * DEPTH < LENGTH ? (segment + 1) * DEPTH "
               ": LENGTH;"]
        sign = "+" if self.symbol == "+" else "*"
        total = ["#pragma omp simd reduction(" + sign + " : total)",
                 "for (int64_t step = segment * DEPTH; step < end; ++step) {",
                 *_indented([*self._source(), f"total {self.symbol}= scanned;"]), "}"]
        tile = ["const int64_t stop = start + TILE < end ? start + TILE : end;"]
        fill = self._simd("int64_t step = start; step < stop; ++step",
                          [*self._source(), "buffer[step - start] = scanned;"])
        finish = self._simd("int64_t step = start; step < stop; ++step",
                            self._results("buffer[step - start]"))
        first = [*self._row(), *end, f"{self.running} total = {self.identity};", *total,
                 "totals[row][segment] = total;"]
        second = [
            *self._row(), *end, f"{self.running} carry = {self.identity};",
            f"for (int64_t before = 0; before < segment; ++before) "
            f"carry {self.symbol}= totals[row][before];",
            f"{self.type} buffer[TILE];",
            "for (int64_t start = segment * DEPTH; start < end; start += TILE) {",
            *_indented([
                *tile, *fill,
                "for (int64_t i = 0; i < stop - start; ++i) {",
                f"    carry {self.symbol}= buffer[i];",
                f"    buffer[i] = ({self.type})carry;",
                "}", *finish]),
            "}",
        ]
        loops = ["for (int64_t row = 0; row < ROWS; ++row)",
                 "    for (int64_t segment = 0; segment < SEGMENTS; ++segment) {"]
        parallel = self._parallel(scan.rows * segments, nested=2)
        return [
            f"constexpr int64_t ROWS = {scan.rows}, LENGTH = {scan.length}, TILE = {TILE};",
            f"constexpr int64_t SEGMENTS = {segments}, DEPTH = {depth};  // of each row, in "
            "parallel",
            f"{self.running} totals[ROWS][SEGMENTS];",
            *parallel, *loops, *_indented(first, 2), "    }",
            *parallel, *loops, *_indented(second, 2), "    }",
        ]

    # --- columns ------------------------------------------------------------------------------

    def columns(self) -> list[str]:
        scan = self.scan
        sizes = scan.layout.sizes
        outer, inner = sizes[:-1], sizes[-1]
        self.names[-1] = "i"
        used = [any(o.strides[d] for o in scan.layout.operands) for d in range(len(outer))]
        body = [
            "const int64_t stop = first + BLOCK < INNER ? first + BLOCK : INNER;",
            *coordinates(outer, "outer", self.names[:-1], "int64_t", used),
            f"{self.running} carry[BLOCK];",
            f"for (int64_t c = 0; c < BLOCK; ++c) carry[c] = {self.identity};",
            "for (int64_t step = 0; step < LENGTH; ++step) {",
            *_indented(self._simd(
                "int64_t i = first; i < stop; ++i",
                [*self._column_source(), f"carry[i - first] {self.symbol}= scanned;",
                 *self._column_results()])),
            "}",
        ]
        blocks = prod(outer) * -(-inner // BLOCK)
        return [
            f"constexpr int64_t OUTER = {prod(outer)}, INNER = {inner}, LENGTH = {scan.length};",
            f"constexpr int64_t BLOCK = {BLOCK};  // neighbouring columns whose running values "
            "stay in L1",
            *self._parallel(blocks, nested=2),
            "for (int64_t outer = 0; outer < OUTER; ++outer)",
            "    for (int64_t first = 0; first < INNER; first += BLOCK) {",
            *_indented(body, 2), "    }",
        ]

    def _column_source(self) -> list[str]:
        return self._source()

    def _column_results(self) -> list[str]:
        """Finishes in a scope of its own: what was read for the source may be read again."""
        return ["{", *_indented(self._results(f"({self.type})carry[i - first]")), "}"]


def _indented(lines: list[str], depth: int = 1) -> list[str]:
    return [line if line.startswith("#") else "    " * depth + line for line in lines]
