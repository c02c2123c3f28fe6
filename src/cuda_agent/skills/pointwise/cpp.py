"""C++ for elementwise programs: OpenMP over chunks or rows, one simd loop inside."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from cuda_agent.skills.emit import expressions, types
from cuda_agent.skills.emit.elementwise import Program, describe
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import coordinates, offset

Form = Literal["chunks", "rows", "gather", "tiles"]
TILE_TALL, TILE_WIDE = 16, 64

_STREAM = """
#include <immintrin.h>

// Copies a finished buffer past the caches. An ordinary store would first read the line that it
// then overwrites.
static inline void stream(void* to, const void* from, int64_t bytes) {
    char* target = (char*)to;
    const char* source = (const char*)from;
    int64_t done = 0;
#if defined(__AVX512F__)
    if ((uintptr_t)target % 64 == 0)
        for (; done + 64 <= bytes; done += 64)
            _mm512_stream_si512((__m512i*)(target + done), _mm512_load_si512(source + done));
#elif defined(__AVX__)
    if ((uintptr_t)target % 32 == 0)
        for (; done + 32 <= bytes; done += 32)
            _mm256_stream_si256((__m256i*)(target + done),
                                _mm256_load_si256((const __m256i*)(source + done)));
#endif
    __builtin_memcpy(target + done, source + done, bytes - done);
}
"""


@dataclass(frozen=True)
class Schedule:
    """`chunk` elements per task; `parallel`: OpenMP threads; `stream`: results go to memory past
    the caches (flat spaces only)."""

    chunk: int = 16384
    parallel: bool = True
    stream: bool = False


def form(program: Program) -> Form:
    """flat spaces run in chunks; others by rows, unless rows are too short for a simd loop or an
    input lies contiguous along another dim."""
    layout = program.layout
    if layout.flat:
        return "chunks"
    if layout.transposed()[1]:
        return "tiles"
    return "rows" if layout.inner >= 16 else "gather"


def write(program: Program, schedule: Schedule, name: str) -> str:
    """The source of `extern "C" void name(pointers...)`."""
    return _Cpp(program, schedule, name).source()


class _Cpp:
    def __init__(self, program: Program, schedule: Schedule, name: str) -> None:
        self.program, self.schedule, self.name = program, schedule, name
        self.layout = program.layout
        self.form = form(program)
        self.stream = schedule.stream and self.form == "chunks" and not program.in_place
        self.names = [f"d{i}" for i in range(len(self.layout.sizes) - 1)] + ["i"]
        self.helpers: set[str] = set()
        moving = [n for n in program.inputs if self.layout[n].walk != "constant"]
        self.constant = [n for n in program.inputs if n not in moving]
        self.uniform = [n for n in moving if self.layout[n].walk == "uniform"]
        self.varying = [n for n in moving if n not in self.uniform]

    def source(self) -> str:
        kernel = self._kernel()
        preamble = expressions.preamble(self.helpers, "cpp")
        stream = _STREAM.strip("\n") if self.stream else ""
        parts = [self._comment(), "#include <cstdint>", stream, preamble, kernel]
        return "\n\n".join(part for part in parts if part) + "\n"

    def _comment(self) -> str:
        sizes = "x".join(map(str, self.layout.sizes))
        how = {
            "chunks": "Threads take chunks",
            "rows": "Threads take rows",
            "gather": "Rows are too short for a loop of their own, so one loop runs over all",
            "tiles": "Some inputs are contiguous along another dim: small tiles keep\n// their "
                     "cache lines until all of each is used. Threads take tiles",
        }[self.form]
        return (
            f"// {describe(self.program.ops)} over {sizes}.\n"
            f"// {how}; the innermost loop is vectorised.\n"
            f"// At least {self.program.traffic_bytes / 1e6:.4g} MB have to move."
        )

    def _kernel(self) -> str:
        lines = self._loaded(self.constant)
        lines += getattr(self, f"_{self.form}")()
        head = ",\n    ".join(self.program.parameters("cpp"))
        body = "\n".join(line if line.startswith("#") else f"    {line}" for line in lines)
        return f'extern "C" void {self.name}(\n    {head}) {{\n{body}\n}}'

    # --- loops --------------------------------------------------------------------------------

    def _parallel(self, tasks: int) -> list[str]:
        """One thread for work that costs less than waking a team."""
        wanted = self.schedule.parallel and tasks > 1
        return ["#pragma omp parallel for schedule(static)"] if wanted else []

    def _chunks(self) -> list[str]:
        count, chunk = self.layout.count, min(self.schedule.chunk, self.layout.count)
        if chunk == count and not self.stream:
            return [f"constexpr int64_t COUNT = {count};",
                    *self._simd("int64_t i = 0; i < COUNT; ++i", self._element())]
        lines = [f"constexpr int64_t COUNT = {count}, CHUNK = {chunk};",
                 *self._parallel(-(-count // chunk)),
                 "for (int64_t start = 0; start < COUNT; start += CHUNK) {"]
        body = ["const int64_t stop = start + CHUNK < COUNT ? start + CHUNK : COUNT;"]
        for name in self.program.outputs if self.stream else ():
            body.append(f"alignas(64) {self.program.storage(name)} {identifier(name)}_out[CHUNK];")
        body += self._simd("int64_t i = start; i < stop; ++i", self._element())
        for name in self.program.outputs if self.stream else ():
            body.append(f"stream({self.program.pointer(name)} + start, {identifier(name)}_out, "
                        f"(stop - start) * sizeof *{identifier(name)}_out);")
        return [*lines, *_indented(body), "}"]

    def _rows(self) -> list[str]:
        """Few long rows are cut into chunks, so that there are tasks for every thread."""
        outer = self.layout.sizes[:-1]
        rows, inner = prod(outer), self.layout.inner
        pieces = max(1, min(-(-inner // self.schedule.chunk), 256)) if rows < 256 else 1
        piece = -(-inner // pieces)
        pieces = -(-inner // piece)
        lines = [f"constexpr int64_t ROWS = {rows}, INNER = {inner};"]
        task = "row"
        body: list[str] = []
        first, last = "0", "INNER"
        if pieces > 1:
            lines[0] = lines[0][:-1] + f", PIECE = {piece}, PIECES = {pieces};"
            task, first, last = "task", "start", "stop"
            body = ["const int64_t row = task / PIECES, start = task % PIECES * PIECE;",
                    "const int64_t stop = start + PIECE < INNER ? start + PIECE : INNER;"]
        bound = "ROWS * PIECES" if pieces > 1 else "ROWS"
        moved = [o for o in self.layout.operands if not self.layout.in_order(o)]
        positions = self.program.positions.values()
        used = [d in positions or any(o.strides[d] for o in moved) for d in range(len(outer))]
        body += coordinates(outer, "row", self.names[:-1], "int64_t", used)
        body += self._loaded(self.uniform)
        body += self._simd(f"int64_t i = {first}; i < {last}; ++i", self._element())
        return [*lines, *self._parallel(rows * pieces),
                f"for (int64_t {task} = 0; {task} < {bound}; ++{task}) {{", *_indented(body), "}"]

    def _gather(self) -> list[str]:
        count = self.layout.count
        narrow = not self.layout.wide()
        kind = "uint32_t" if narrow else "int64_t"
        positions = self.program.positions.values()
        used = [d in positions or any(o.strides[d] for o in self.layout.operands)
                for d in range(len(self.names))]
        names = [*self.names[:-1], "i"]
        split = coordinates(self.layout.sizes, "index", names, kind, used)
        body = split + self._loaded(self.uniform) + self._element()
        # Unsigned 32-bit indices: division by a constant is then cheap in every lane.
        chunk = min(self.schedule.chunk, count)
        return [f"constexpr int64_t COUNT = {count}, CHUNK = {chunk};",
                *self._parallel(-(-count // chunk)),
                "for (int64_t start = 0; start < COUNT; start += CHUNK) {",
                f"    const {kind} stop = start + CHUNK < COUNT ? start + CHUNK : COUNT;",
                *_indented(self._simd(f"{kind} index = start; index < stop; ++index", body)),
                "}"]

    def _tiles(self) -> list[str]:
        dim, _ = self.layout.transposed()
        sizes, names = self.layout.sizes, self.names
        others = [d for d in range(len(sizes) - 1) if d != dim]
        tall, wide = sizes[dim], sizes[-1]
        tiles = (-(-tall // TILE_TALL), -(-wide // TILE_WIDE))
        tasks = prod(sizes[d] for d in others) * prod(tiles)
        positions = self.program.positions.values()
        used = [d in positions or any(o.strides[d] for o in self.layout.operands) for d in others]
        place = [
            f"const int64_t first = task % {tiles[1]} * TILE_WIDE, "
            f"top = task / {tiles[1]} % {tiles[0]} * TILE_TALL;",
            "const int64_t stop = first + TILE_WIDE < WIDE ? first + TILE_WIDE : WIDE;",
            "const int64_t bottom = top + TILE_TALL < TALL ? top + TILE_TALL : TALL;",
        ]
        if any(used):
            place += [f"const int64_t rest = task / {prod(tiles)};",
                      *coordinates(tuple(sizes[d] for d in others), "rest",
                                   [names[d] for d in others], "int64_t", used)]
        inner = self._loaded(self.uniform)
        inner += self._simd("int64_t i = first; i < stop; ++i", self._element())
        return [f"constexpr int64_t TALL = {tall}, WIDE = {wide};",
                f"constexpr int64_t TILE_TALL = {TILE_TALL}, TILE_WIDE = {TILE_WIDE};",
                *self._parallel(tasks),
                f"for (int64_t task = 0; task < {tasks}; ++task) {{",
                *_indented(place),
                f"    for (int64_t {names[dim]} = top; {names[dim]} < bottom; ++{names[dim]}) {{",
                *_indented(inner, 2), "    }", "}"]

    def _at(self, name: str) -> str:
        if self.form == "rows" and self.layout.in_order(self.layout[name]):
            return "row * INNER + i"
        return offset(self.layout[name].strides, self.names)

    # --- elements -----------------------------------------------------------------------------

    def _simd(self, head: str, body: list[str]) -> list[str]:
        return ["#pragma omp simd", f"for ({head}) {{", *_indented(body), "}"]

    def _loaded(self, names: list[str]) -> list[str]:
        lines = []
        for name in names:
            at = self._at(name)
            code = self.program.load(f"{self.program.pointer(name)}[{at}]", name)
            self.helpers |= code.helpers
            kind = types.compute_type(self.program.values[name].dtype)
            lines.append(f"const {kind} {identifier(name)} = {code.text};")
        return lines

    def _element(self) -> list[str]:
        program = self.program
        lines = self._loaded(self.varying)
        scope = {n: identifier(n) for n in program.inputs} | program.position_scope(self.names)
        written = program.body(scope, "cpp")
        self.helpers |= written.helpers
        lines += written.lines
        for name in program.outputs:
            code = program.store(written.scope[name], name)
            self.helpers |= code.helpers
            target = f"{program.pointer(name)}[{self._at(name)}]"
            if self.stream:
                target = f"{identifier(name)}_out[i - start]"
            lines.append(f"{target} = {code.text};")
        return lines


def _indented(lines: list[str], depth: int = 1) -> list[str]:
    return [line if line.startswith("#") else "    " * depth + line for line in lines]
