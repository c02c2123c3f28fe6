"""CUDA for programs whose inputs are permuted against the output: transposition in shared memory.

A block reads a 32x32 tile of each permuted input along the dim where that input is contiguous, and
after a barrier computes and writes along the output's. Both sides then move whole sectors.
"""

from __future__ import annotations

from math import prod

from cuda_agent.skills.emit import expressions
from cuda_agent.skills.emit.elementwise import Program, describe
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import coordinates, offset

TILE = 32


def tile_kernel(program: Program, name: str) -> tuple[str, int]:
    """(source, grid) of a kernel with 256 threads per block."""
    return _Tile(program, name).text()


class _Tile:
    def __init__(self, program: Program, name: str) -> None:
        self.program, self.name, self.layout = program, name, program.layout
        self.dim, permuted = self.layout.transposed()
        self.permuted = [o.name for o in permuted if o.name in program.inputs]
        sizes = self.layout.sizes
        self.others = [d for d in range(len(sizes) - 1) if d != self.dim]
        self.tall, self.wide = sizes[self.dim], sizes[-1]
        self.tiles = (-(-self.tall // TILE), -(-self.wide // TILE))
        self.grid = prod(sizes[d] for d in self.others) * prod(self.tiles)
        self.index = "long long" if self.layout.wide(TILE * TILE) else "int"
        self.names = [f"d{d}" for d in range(len(sizes))]
        self.names[self.dim], self.names[-1] = "j", "i"
        self.helpers: set[str] = set()

    def text(self) -> tuple[str, int]:
        kernel = self._kernel()
        preamble = expressions.preamble(self.helpers, "cuda")
        constants = "\n".join([
            "constexpr int THREADS = 256, ROWS = THREADS / 32;",
            f"constexpr int TILE = {TILE};",
            f"constexpr int TALL = {self.tall}, WIDE = {self.wide};  // dims j and i",
            f"constexpr int TILES_TALL = {self.tiles[0]}, TILES_WIDE = {self.tiles[1]};",
        ])
        comment = (
            f"// {describe(self.program.ops)} over {'x'.join(map(str, self.layout.sizes))}.\n"
            f"// {', '.join(self.permuted)}: contiguous along j, while results are along i. Tiles\n"
            "// are transposed in shared memory, so that global memory is read and written in\n"
            f"// order. At least {self.program.traffic_bytes / 1e6:.4g} MB have to move."
        )
        return "\n\n".join(p for p in (comment, preamble, constants, kernel) if p) + "\n", self.grid

    def _kernel(self) -> str:
        program = self.program
        lines = self._shared() + [
            "const int tile = blockIdx.x;",
            "const int i0 = tile % TILES_WIDE * TILE, j0 = tile / TILES_WIDE % TILES_TALL * TILE;",
        ]
        lines += self._other_coordinates()
        lines += [
            "const int column = threadIdx.x % TILE, row = threadIdx.x / TILE;",
            "#pragma unroll",
            "for (int step = row; step < TILE; step += ROWS) {",
            f"    const {self.index} i = i0 + step, j = j0 + column;",
            "    if (i < WIDE && j < TALL) {",
            *(f"        {self._tile_slot(n, 'step', 'column')} = "
              f"{program.pointer(n)}[{offset(self.layout[n].strides, self.names)}];"
              for n in self.permuted),
            "    }",
            "}",
            "__syncthreads();",
            "#pragma unroll",
            "for (int step = row; step < TILE; step += ROWS) {",
            f"    const {self.index} i = i0 + column, j = j0 + step;",
            "    if (i < WIDE && j < TALL) {",
            *(f"        {line}" for line in self._compute()),
            "    }",
            "}",
        ]
        return (
            f'extern "C" __global__ void __launch_bounds__(THREADS) {self.name}(\n    '
            + ",\n    ".join(program.parameters("cuda"))
            + ") {\n" + "\n".join(f"    {line}" for line in lines) + "\n}"
        )

    def _pitch(self, name: str) -> str:
        """One bank (4 bytes) of padding per row: columns then lie in 32 different banks."""
        return f"(TILE + {max(1, 4 // self.layout[name].item_bytes)})"

    def _shared(self) -> list[str]:
        return [
            f"__shared__ {self.program.storage(n)} {identifier(n)}_tile"
            f"[TILE * {self._pitch(n)}];"
            for n in self.permuted
        ]

    def _tile_slot(self, name: str, row: str, column: str) -> str:
        return f"{identifier(name)}_tile[{row} * {self._pitch(name)} + {column}]"

    def _other_coordinates(self) -> list[str]:
        if not self.others:
            return []
        sizes = tuple(self.layout.sizes[d] for d in self.others)
        names = [self.names[d] for d in self.others]
        positions = self.program.positions.values()
        used = [d in positions or any(o.strides[d] for o in self.layout.operands)
                for d in self.others]
        return ["const int rest = tile / (TILES_WIDE * TILES_TALL);",
                *coordinates(sizes, "rest", names, self.index, used)]

    def _compute(self) -> list[str]:
        program = self.program
        lines: list[str] = []
        for name in program.inputs:
            if name in self.permuted:
                place = self._tile_slot(name, "column", "step")
            else:
                strides = self.layout[name].strides
                place = f"{program.pointer(name)}[{offset(strides, self.names)}]"
            code = program.load(place, name)
            self.helpers |= code.helpers
            kind = expressions.compute_type(program.values[name].dtype)
            lines.append(f"const {kind} {identifier(name)} = {code.text};")
        scope = {n: identifier(n) for n in program.inputs} | program.position_scope(self.names)
        written = program.body(scope, "cuda")
        self.helpers |= written.helpers
        lines += written.lines
        for name in program.outputs:
            code = program.store(written.scope[name], name)
            self.helpers |= code.helpers
            at = offset(self.layout[name].strides, self.names)
            lines.append(f"{program.pointer(name)}[{at}] = {code.text};")
        return lines
