"""C++ for scans: only the running value is sequential, all around it is vectorised.

`rows`: a tile of each row is computed into a buffer, scanned there with one dependent operation for
four steps, and finished from there. `columns`: neighbouring rows lie
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

TILE, BLOCK = 1024, 256


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
        writer.helper() if schedule.form == "rows" else "",
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

    def _tile(self, end: str) -> list[str]:
        """One tile: fill the buffer, scan it, finish from it."""
        steps = "int64_t step = start; step < stop; ++step"
        return [
            f"const int64_t stop = start + TILE < {end} ? start + TILE : {end};",
            *self._simd(steps, [*self._source(), "buffer[step - start] = scanned;"]),
            "carry = running(buffer, stop - start, carry);",
            *self._simd(steps, self._results("buffer[step - start]")),
        ]

    def helper(self) -> str:
        """`running`: the only sequential part."""
        op, kind, wide = self.symbol, self.type, self.running
        return f"""
// The running value over `count` steps, four at a time: one dependent operation for each four.
static inline {wide} running({kind}* x, int64_t count, {wide} carry) {{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {{
        const {wide} a = x[i], b = x[i + 1], c = x[i + 2], d = x[i + 3];
        const {wide} two = a {op} b, all = two {op} (c {op} d);
        x[i] = ({kind})(carry {op} a);
        x[i + 1] = ({kind})(carry {op} two);
        x[i + 2] = ({kind})(carry {op} (two {op} c));
        x[i + 3] = ({kind})(carry {op} all);
        carry = carry {op} all;
    }}
    for (; i < count; ++i) x[i] = ({kind})(carry = carry {op} x[i]);
    return carry;
}}""".strip()

    def _whole_rows(self) -> list[str]:
        scan = self.scan
        body = [*self._row(), f"{self.running} carry = {self.identity};",
                f"{self.type} buffer[TILE];",
                "for (int64_t start = 0; start < LENGTH; start += TILE) {",
                *_indented(self._tile("LENGTH")), "}"]
        return [
            f"constexpr int64_t ROWS = {scan.rows}, LENGTH = {scan.length};",
            f"constexpr int64_t TILE = {TILE};  // steps whose values wait in L1",
            *self._parallel(scan.rows),
            "for (int64_t row = 0; row < ROWS; ++row) {",
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
        first = [*self._row(), *end, f"{self.running} total = {self.identity};", *total,
                 "totals[row][segment] = total;"]
        second = [
            *self._row(), *end, f"{self.running} carry = {self.identity};",
            f"for (int64_t before = 0; before < segment; ++before) "
            f"carry {self.symbol}= totals[row][before];",
            f"{self.type} buffer[TILE];",
            "for (int64_t start = segment * DEPTH; start < end; start += TILE) {",
            *_indented(self._tile("end")),
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
