"""How a row program is laid over CUDA threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cuda_agent.skills.emit.rows.program import Operand, RowProgram, column_major, merge_axes

Strategy = Literal["warp", "block", "cluster", "split", "column", "column_split"]
Storage = Literal["register", "shared", "reread"]


@dataclass(frozen=True)
class Schedule:
    """Row layout (warp, block, cluster, split): `lanes` threads of a block share a row and each
    holds `vector` neighbouring columns. Column layout (column, column_split): `lanes` threads lie
    along rows, each holds `vector` neighbouring rows, and the block's other threads share the
    columns. `blocks` is how many blocks share a row (cluster size or split count), `unroll` how
    many vectors of each operand a thread has in flight.
    """

    strategy: Strategy
    threads: int
    vector: int
    lanes: int
    blocks: int = 1
    storage: Storage = "register"
    unroll: int = 4

    @property
    def column_layout(self) -> bool:
        return self.strategy.startswith("column")

    @property
    def split(self) -> bool:
        return self.strategy.endswith("split")

    @property
    def parts(self) -> int:
        """Threads (of all blocks) that share one row."""
        inner = self.threads // self.lanes if self.column_layout else self.lanes
        return inner * self.blocks

    @property
    def rows_per_block(self) -> int:
        """Row layout: rows that one block handles side by side."""
        return self.threads // self.lanes

    @property
    def step(self) -> int:
        """Columns that all threads of a row cover with one vector each."""
        return self.parts * (1 if self.column_layout else self.vector)

    def chunks(self, columns: int) -> int:
        """Vectors (or columns, in the column layout) that each thread handles."""
        return -(-columns // self.step)


def fits_vector(program: RowProgram, operand: Operand, vector: int, column: bool) -> bool:
    """Whether `vector` neighbours of an operand can be read as one aligned access."""
    if column:
        inner, outer = operand.row_strides[-1:], operand.row_strides[:-1] + operand.col_strides
        return (inner == (1,) and program.row_axes[-1] % vector == 0
                and all(s % vector == 0 for s in outer))
    sizes, (strides,) = merge_axes(list(program.col_axes), [list(operand.col_strides)])
    if not strides or strides[-1] != 1 or any(s % vector for s in strides[:-1]):
        return False
    if any(s % vector for s in operand.row_strides):
        return False
    return sizes[-1] % vector == 0 or takes_tail(program)


def takes_tail(program: RowProgram) -> bool:
    """A single flat row may end in a partial vector: no later row is put out of alignment."""
    return program.rows == 1 and len(program.col_axes) <= 1


def best_vector(program: RowProgram, limit_bytes: int = 16) -> int:
    """Elements per access so that the narrowest wide operand fills `limit_bytes`; 1 if unaligned.

    At most 8: wider dtypes then take several 16-byte accesses. Operands that cannot be read in
    vectors do not count as long as the main part of the traffic can be.
    """
    column = column_major(program)
    elem = [o for o in program.operands if o.level == "elem"]
    if not elem:
        return 1
    traffic = {o: program.elements(o) * o.element_bytes for o in elem}
    heavy = [o for o in elem if 8 * traffic[o] >= max(traffic.values())]
    narrowest = min(o.element_bytes for o in heavy)
    vector = max(1, min(8, limit_bytes // narrowest))
    inner = program.row_axes[-1:] if column else program.col_axes[-1:]
    while vector > 1:
        good = sum(traffic[o] for o in heavy if fits_vector(program, o, vector, column))
        whole = not inner or inner[0] % vector == 0 or (not column and takes_tail(program))
        if whole and 2 * good >= sum(traffic[o] for o in heavy):
            return vector
        vector //= 2
    return 1
