"""CUDA for skinny products: the large operand streams once, the epilogue runs on its sums.

Floor: the bytes of the large operand over the memory's speed; at most SKINNY_LIMIT products per
element keep the arithmetic below that. Two forms, by where neighbours in memory lie:

- `along_k`: a row is contiguous. A warp takes TILE rows, its lanes vectors of them, and every
  vector of the small operand that it loads serves all TILE rows. Lanes then merge by folding:
  each shuffle step halves the number of sums, so 32 sums cost 31 shuffles and not 160.
- otherwise a column is contiguous. A lane takes WIDTH neighbouring rows and walks along k.

Where rows are few, warps of a block and blocks (`split`) share k; partial sums of blocks meet in a
second kernel in a fixed order, so that results repeat bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.graph.ir import DTYPE_BYTES
from cuda_agent.skills.emit import expressions, types
from cuda_agent.skills.emit.elementwise import realigned
from cuda_agent.skills.gemm_epilogue.product import Finish, Product, Sides

THREADS = 256
WARPS = THREADS // 32
WORD_BYTES = 16
_FOLD = """
// Sums each of COUNT values (a power of two) over the lanes of a warp, halving their number at
// every step. Lane l gets the sum of value l / (32 / COUNT).
template <int COUNT, typename T> __device__ __forceinline__ T fold(T* value, int lane) {
    #pragma unroll
    for (int half = COUNT / 2, bit = 16; half > 0; half /= 2, bit /= 2) {
        const bool upper = lane & bit;
        #pragma unroll
        for (int i = 0; i < half; ++i) {
            const T sent = upper ? value[i] : value[i + half];
            const T kept = upper ? value[i + half] : value[i];
            value[i] = kept + __shfl_xor_sync(0xffffffffu, sent, bit);
        }
    }
    #pragma unroll
    for (int bit = 16 / COUNT; bit > 0; bit /= 2)
        value[0] += __shfl_xor_sync(0xffffffffu, value[0], bit);
    return value[0];
}
"""
_WORD = """
struct alignas({bytes}) Word {{  // one access
    {storage} lane[WIDTH];
}};
__device__ __forceinline__ Word load(const {storage}* p) {{
    return *reinterpret_cast<const Word*>(p);
}}
"""


@dataclass(frozen=True)
class Schedule:
    """`tile` rows of a warp at once (along_k); `k_warps` warps of a block and `split` blocks share
    k; `unroll` steps of loads are in flight."""

    tile: int = 4
    k_warps: int = 1
    split: int = 1
    unroll: int = 2


@dataclass(frozen=True)
class Shape:
    """How a skinny product is cut, from its sides and a schedule."""

    width: int
    rows_per_block: int
    row_blocks: int
    steps: int  # of k: vectors (along_k) or single elements
    slice: int  # steps of one warp
    grid: int


def width(product: Product, sides: Sides) -> int:
    """Elements per access of the large operand: whole words that start at aligned addresses."""
    big, small = sides.big_strides, sides.rearranged(product.k).small_strides
    count = WORD_BYTES // product.item_bytes
    if not sides.along_k and count * sides.count > 64:
        count //= 2  # the sums have to stay in registers
    strides = [*big[:2], *small[:2]] if sides.along_k else [big[0], big[2]]
    extent = product.k if sides.along_k else sides.rows
    while count > 1 and any(x % count for x in (extent, *strides)):
        count //= 2
    return count


def shape(product: Product, sides: Sides, schedule: Schedule) -> Shape:
    lanes = width(product, sides)
    row_warps = WARPS // schedule.k_warps
    rows = row_warps * (schedule.tile if sides.along_k else 32 * lanes)
    steps = product.k // lanes if sides.along_k else product.k
    blocks = -(-sides.rows // rows)
    slices = schedule.split * schedule.k_warps
    return Shape(lanes, rows, blocks, steps, -(-steps // slices),
                 blocks * schedule.split * product.batch)  # fmt: skip


class Skinny:
    """Source and launches of one skinny product."""

    def __init__(self, product: Product, sides: Sides, schedule: Schedule, name: str) -> None:
        self.product, self.schedule, self.name = product, schedule, name
        self.sides = sides.rearranged(product.k)
        self.shape = shape(product, sides, schedule)
        self.finish = Finish(product)
        self.sum_type = types.compute_type(product.dtype)
        self.storage = types.storage_type(product.dtype)
        self.index = "long long" if self.finish.wide else "int"
        self.split = schedule.split > 1
        self.helpers: set[str] = set()
        values = schedule.tile * self.sides.count
        self.fold = min(32, 1 << (values - 1).bit_length())
        self.groups = -(-values // self.fold)

    def source(self) -> str:
        body = self._along_k() if self.sides.along_k else self._along_rows()
        kernels = [self._kernel(self._start() + body)]
        if self.split:
            kernels.append(self._second_pass())
        fold = _FOLD.strip() if self.sides.along_k else ""
        word = _WORD.format(bytes=self.shape.width * self.product.item_bytes, storage=self.storage)
        preamble = expressions.preamble(self.helpers, "cuda")
        parts = [self._comment(), preamble, self._constants(), word.strip(), fold, *kernels]
        return "\n\n".join(part for part in parts if part) + "\n"

    # --- parts of the text --------------------------------------------------------------------

    def _comment(self) -> str:
        megabytes = (self.product.batch * self.sides.rows * self.product.k
                     * self.product.item_bytes / 1e6)  # fmt: skip
        return (f"// {self.product.describe()}.\n// Bound by memory: {self.sides.big.name} has "
                f"{megabytes:.4g} MB, which are read once.")

    def _constants(self) -> str:
        cut, schedule = self.shape, self.schedule
        what = "vectors of k" if self.sides.along_k else "k"
        lines = [
            f"constexpr int THREADS = {THREADS};",
            f"constexpr int WIDTH = {cut.width};  // elements per access",
            f"constexpr int ROWS = {self.sides.rows}, COUNT = {self.sides.count};"
            f"  // of {self.sides.big.name}, of {self.sides.small.name}",
            f"constexpr int ROW_BLOCKS = {cut.row_blocks}, SPLIT = {schedule.split};"
            "  // blocks along rows, along k",
            f"constexpr int K_WARPS = {schedule.k_warps}, ROW_WARPS = {WARPS} / K_WARPS;",
            f"constexpr int STEPS = {cut.steps}, SLICE = {cut.slice};  // {what}: all, of a warp",
            f"constexpr int UNROLL = {schedule.unroll};  // steps whose loads are in flight",
        ]
        if self.sides.along_k:
            lines += [
                f"constexpr int TILE = {schedule.tile};  // rows of a warp",
                f"constexpr int FOLD = {self.fold}, GROUPS = {self.groups};"
                "  // sums merged at once, and how often",
            ]
        return "\n".join(lines)

    def _kernel(self, body: list[str]) -> str:
        parameters = [f"const {self.storage}* __restrict__ big_ptr",
                      f"const {self.storage}* __restrict__ small_ptr"]  # fmt: skip
        if self.split:
            parameters.append(f"{self.sum_type}* __restrict__ partial_ptr")
        else:
            parameters += self.finish.parameters("cuda")
        return _function(self.name, parameters, body)

    def _start(self) -> list[str]:
        """Which rows and which part of k this warp has."""
        big, small = self.sides.big_strides, self.sides.small_strides
        lines = [
            "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
            "const int row_block = blockIdx.x % ROW_BLOCKS;",
            "const int part = blockIdx.x / ROW_BLOCKS % SPLIT;",
            "const int out_batch = blockIdx.x / (ROW_BLOCKS * SPLIT);",
            "const int start = (part * K_WARPS + warp % K_WARPS) * SLICE;",
            "const int stop = start + SLICE < STEPS ? start + SLICE : STEPS;",
        ]
        for name, step in (("big", big[0]), ("small", small[0])):
            moved = f" + (long long)out_batch * {step}" if self.product.batch > 1 and step else ""
            lines.append(f"const {self.storage}* const {name} = {name}_ptr{moved};")
        return lines

    def _along_k(self) -> list[str]:
        row_step, index_step = self.sides.big_strides[1], self.sides.small_strides[1]
        rows_before = "(row_block * ROW_WARPS + warp / K_WARPS) * TILE"
        multiply = [
            "#pragma unroll",
            "for (int s = 0; s < COUNT; ++s) {",
            f"    const Word x = load(small + s * {index_step}LL + (step + u * 32) * WIDTH);",
            "    #pragma unroll",
            "    for (int r = 0; r < TILE; ++r)",
            "        #pragma unroll",
            "        for (int w = 0; w < WIDTH; ++w)",
            f"            sums[r * COUNT + s] += {self._value('row[u][r].lane[w]')} * "
            f"{self._value('x.lane[w]')};",
            "}",
        ]
        return [
            f"const {self.storage}* rows[TILE];",
            "#pragma unroll",
            "for (int r = 0; r < TILE; ++r) {  // past the end: the last row again",
            f"    const int at = {rows_before} + r;",
            f"    rows[r] = big + (long long)(at < ROWS ? at : ROWS - 1) * {row_step};",
            "}",
            f"{self.sum_type} sums[FOLD * GROUPS] = {{}};",
            "for (int step = start + lane; step < stop; step += 32 * UNROLL) {",
            "    Word row[UNROLL][TILE];",
            *_indented(_each("if (step + u * 32 < stop) {",
                             ["#pragma unroll", "for (int r = 0; r < TILE; ++r)",
                              "    row[u][r] = load(rows[r] + (step + u * 32) * WIDTH);"])),
            *_indented(_each("if (step + u * 32 < stop) {", multiply)),
            "}",
            f"__shared__ {self.sum_type} parts[{WARPS * self.fold * self.groups}];",
            "#pragma unroll",
            "for (int g = 0; g < GROUPS; ++g) {",
            f"    const {self.sum_type} sum = fold<FOLD>(sums + g * FOLD, lane);",
            "    if (lane % (32 / FOLD) == 0)",
            "        parts[(warp * GROUPS + g) * FOLD + lane / (32 / FOLD)] = sum;",
            "}",
            "__syncthreads();",
            "for (int i = threadIdx.x; i < ROW_WARPS * TILE * COUNT; i += THREADS) {",
            "    const int own = i / (TILE * COUNT), value = i % (TILE * COUNT);",
            "    const int at = (row_block * ROW_WARPS + own) * TILE + value / COUNT;",
            "    if (at >= ROWS) continue;",
            f"    {self.sum_type} total = 0;",
            "    for (int w = 0; w < K_WARPS; ++w)",
            "        total += parts[(own * K_WARPS + w) * FOLD * GROUPS + value];",
            *_indented(self._result("at", "value % COUNT", "total")),
            "}",
        ]

    def _along_rows(self) -> list[str]:
        big, small = self.sides.big_strides, self.sides.small_strides
        at_small = f"small[s * {small[1]}LL + (step + u) * {small[2]}LL]"
        multiply = [
            "#pragma unroll",
            "for (int s = 0; s < COUNT; ++s) {",
            f"    const {self.sum_type} x = {self._value(at_small)};",
            "    #pragma unroll",
            "    for (int w = 0; w < WIDTH; ++w)",
            f"        sums[s][w] += {self._value('column[u].lane[w]')} * x;",
            "}",
        ]
        return [
            "const int row = ((row_block * ROW_WARPS + warp / K_WARPS) * 32 + lane) * WIDTH;",
            f"{self.sum_type} sums[COUNT][WIDTH] = {{}};",
            "for (int step = start; step < stop && row < ROWS; step += UNROLL) {",
            "    Word column[UNROLL];",
            *_indented(_each("if (step + u < stop)",
                             [f"column[u] = load(big + (step + u) * {big[2]}LL + row);"])),
            *_indented(_each("if (step + u < stop) {", multiply)),
            "}",
            f"__shared__ {self.sum_type} parts[{THREADS * self.shape.width}];",
            "#pragma unroll",
            "for (int s = 0; s < COUNT; ++s) {",
            "    if (s > 0) __syncthreads();  // the last sums have been read",
            "    #pragma unroll",
            "    for (int w = 0; w < WIDTH; ++w)",
            "        parts[threadIdx.x * WIDTH + w] = sums[s][w];",
            "    __syncthreads();",
            "    for (int i = threadIdx.x; i < ROW_WARPS * 32 * WIDTH; i += THREADS) {",
            "        const int own = i / (32 * WIDTH), value = i % (32 * WIDTH);",
            "        const int at = row_block * ROW_WARPS * 32 * WIDTH + i;",
            "        if (at >= ROWS) continue;",
            f"        {self.sum_type} total = 0;",
            "        for (int w = 0; w < K_WARPS; ++w)",
            "            total += parts[(own * K_WARPS + w) * 32 * WIDTH + value];",
            *_indented(self._result("at", "s", "total"), 2),
            "    }",
            "}",
        ]

    def _value(self, text: str) -> str:
        """An element as it was loaded, as a number to compute with."""
        code = types.load(text, self.product.dtype)
        self.helpers |= code.helpers
        return code.text

    def _result(self, row: str, index: str, total: str) -> list[str]:
        """What becomes of a finished sum: the epilogue, or a place among the partial ones."""
        out_row, out_column = self.sides.coordinates(row, index)
        lines = [f"const {self.index} out_row = {out_row}, out_column = {out_column};"]
        if not self.split:
            text, needed = self.finish.lines(total, "cuda")
            self.helpers |= needed
            return lines + text
        m, n, batch = self.product.m, self.product.n, self.product.batch
        at = f"(((long long)part * {batch} + out_batch) * {m} + out_row) * {n} + out_column"
        return [*lines, f"partial_ptr[{at}] = {total};"]

    def _second_pass(self) -> str:
        count, m, n = self.product.count, self.product.m, self.product.n
        text, needed = self.finish.lines("total", "cuda")
        self.helpers |= needed
        body = [
            f"const {self.index} element = ({self.index})blockIdx.x * THREADS + threadIdx.x;",
            f"if (element >= {count}) return;",
            f"{self.sum_type} total = 0;",
            "#pragma unroll 8",
            "for (int part = 0; part < SPLIT; ++part)",
            f"    total += partial_ptr[(long long)part * {count} + element];",
            f"const {self.index} out_batch = element / {m * n};",
            f"const {self.index} out_row = element / {n} % {m}, out_column = element % {n};",
            *text,
        ]
        parameters = [f"const {self.sum_type}* __restrict__ partial_ptr",
                      *self.finish.parameters("cuda")]  # fmt: skip
        return _function(f"{self.name}_finish", parameters, body)

    # --- Python -------------------------------------------------------------------------------

    def launches(self) -> list[str]:
        """Python that lays out, aligns and launches; outputs exist already."""
        lines: list[str] = []
        names = [self.sides.big.name, self.sides.small.name]
        if self.sides.copied_from is not None:
            names[1] = f"{names[1]}_rows"
            lines.append(f"{names[1]} = {self.sides.copied_from}.contiguous()")
        bytes_ = self.shape.width * DTYPE_BYTES[self.product.dtype]
        for position, name in enumerate(names):
            if self.shape.width > 1 and (position == 0 or self.sides.along_k):
                lines.append(realigned(name, bytes_))
        outputs = self.finish.arguments()
        if not self.split:
            return [*lines, _launch(self.name, self.shape.grid, [*names, *outputs])]
        partial = f"{self.product.name}_partial"
        dtype = "float64" if self.sum_type == "double" else "float32"
        count = self.product.count
        return [
            *lines,
            f"{partial} = torch.empty(({self.schedule.split}, {count}), dtype=torch.{dtype}, "
            f"device={names[0]}.device)",
            _launch(self.name, self.shape.grid, [*names, partial]),
            _launch(f"{self.name}_finish", -(-count // THREADS), [partial, *outputs]),
        ]


def _function(name: str, parameters: list[str], body: list[str]) -> str:
    head = ",\n    ".join(parameters)
    text = "\n".join(f"    {line}" for line in body)
    return (f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(\n    {head}) {{\n'
            f"{text}\n}}")


def _launch(name: str, grid: int, arguments: list[str]) -> str:
    return f"kernels.{name}({grid}, {THREADS}, {', '.join(arguments)})"


def _each(head: str, body: list[str]) -> list[str]:
    """`body` for each of UNROLL steps `u` for which `head` holds."""
    closing = ["    }"] if head.endswith("{") else []
    return ["#pragma unroll", "for (int u = 0; u < UNROLL; ++u) {", f"    {head}",
            *_indented(body, 2), *closing, "}"]


def _indented(lines: list[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]
