"""CUDA for products with a side of at most 16: bound by reading the wide operand once.

`rows`: the wide operand lies along k. A warp takes a few of its rows, lanes run along k.
`columns`: it lies along its rows. Lanes run along the rows, warps and blocks share k.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.skills.emit import expressions
from cuda_agent.skills.emit.epilogue import Epilogue
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import offset
from cuda_agent.skills.emit.types import load, storage_type
from cuda_agent.skills.gemm_epilogue.analysis import Skinny

THREADS, WARPS = 256, 8

_LANES = """
// VECTOR neighbouring elements, loaded as words of up to 16 bytes.
template <typename T> struct alignas(sizeof(T) * VECTOR < 16 ? sizeof(T) * VECTOR : 16) Lanes {
    T lane[VECTOR];
};
template <typename T> __device__ __forceinline__ Lanes<T> load(const T* p) {
    return *reinterpret_cast<const Lanes<T>*>(p);
}
"""
_SUM = """
__device__ __forceinline__ float warp_sum(float x) {
    #pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}
"""


@dataclass(frozen=True)
class Launch:
    name: str
    grid: tuple[int, int]
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class SkinnySource:
    """`workspace`: float elements of the partial sums between two launches, 0 for none.
    `aligned`: bytes to which the start of an operand must align."""

    source: str
    launches: tuple[Launch, ...]
    workspace: int
    aligned: dict[str, int]


def vector_of(form: Skinny, *, narrow_too: bool) -> int:
    """The widest access up to 16 bytes that the strides and sizes allow."""
    item = 4 if form.wide.dtype == "float32" else 2
    fast = form.k if form.along_k else form.length
    steps = [form.wide_stride[0], form.wide_stride[1 if form.along_k else 2], fast]
    if narrow_too:
        steps += [form.narrow_stride[0], form.narrow_stride[1]]
    width = 16 // item
    while width > 1 and any(s % width for s in steps):
        width //= 2
    return width


class _Operands:
    """Names, offsets and conversions of the two operands, as both forms write them."""

    def __init__(self, form: Skinny) -> None:
        self.form = form
        self.kind = storage_type(form.wide.dtype)
        self.item = 4 if self.kind == "float" else 2
        self.wide = f"{identifier(form.wide.name)}_ptr"
        self.narrow = f"{identifier(form.narrow.name)}_ptr"
        self.parameters = [f"const {self.kind}* __restrict__ {self.wide}",
                           f"const {self.kind}* __restrict__ {self.narrow}"]
        self.names = (form.wide.name, form.narrow.name)

    def value(self, text: str) -> str:
        """An element of either operand as float."""
        return load(text, self.form.wide.dtype).text

    def helpers(self) -> frozenset[str]:
        return load("x", self.form.wide.dtype).helpers

    def narrow_at(self, k: str) -> str:
        return offset(self.form.narrow_stride, ("batch", "q", k))


def write_rows(form: Skinny, name: str, rows: int, split: int) -> SkinnySource:
    """Each group of `split` warps computes `rows` wide rows against all narrow rows."""
    vectored = form.narrow_stride[2] == 1
    vector = vector_of(form, narrow_too=vectored)
    operands, epilogue = _Operands(form), form.gemm.finish
    finish, helpers = epilogue.lines(form.position, "total", "cuda")
    body = [*_rows_head(form), *_rows_sums(operands, vectored), *_rows_finish(finish)]
    constants = [
        f"constexpr int THREADS = {THREADS}, WARPS = THREADS / 32;",
        f"constexpr int LENGTH = {form.length}, K = {form.k};",
        f"constexpr int COUNT = {form.count};  // rows of the narrow operand",
        f"constexpr int VECTOR = {vector};  // elements of k per lane and access",
        f"constexpr int ROWS = {rows};  // wide rows per warp: the narrow operand is read once "
        "for all",
        f"constexpr int SPLIT = {split}, GROUPS = WARPS / SPLIT;",
    ]
    parameters = [*operands.parameters, *epilogue.parameters("cuda")]
    source = _assemble(form, helpers | operands.helpers(), constants, [_LANES, _SUM],
                       [_function(name, parameters, body)])
    blocks = -(-form.length // (WARPS // split * rows))
    names = operands.names if vectored else operands.names[:1]
    launch = Launch(name, (blocks, form.gemm.batch), (*operands.names, *epilogue.arguments()))
    return SkinnySource(source, (launch,), 0, dict.fromkeys(names, vector * operands.item))


def _rows_head(form: Skinny) -> list[str]:
    batched = len(form.gemm.region.space) == 3
    return [
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
        "const int part = warp % SPLIT;  // warps of a group share the sum over k",
        "const int l0 = (blockIdx.x * GROUPS + warp / SPLIT) * ROWS;",
        *(["const int batch = blockIdx.y;"] if batched else []),
    ]


def _rows_sums(operands: _Operands, vectored: bool) -> list[str]:
    """`partial` in shared memory: every warp's sums over its part of k."""
    form, kind = operands.form, operands.kind
    wide_at = offset((form.wide_stride[0], form.wide_stride[1], 1), ("batch", "l", "k"))
    if vectored:
        fetch = [f"const Lanes<{kind}> narrow = load({operands.narrow} + "
                 f"{operands.narrow_at('k')});"]
    else:
        fetch = [f"Lanes<{kind}> narrow;", "#pragma unroll",
                 "for (int v = 0; v < VECTOR; ++v) narrow.lane[v] = "
                 f"{operands.narrow}[{operands.narrow_at('(k + v)')}];"]
    return [
        "float sum[ROWS][COUNT] = {};",
        "for (int k = (part * 32 + lane) * VECTOR; k < K; k += SPLIT * 32 * VECTOR) {",
        f"    Lanes<{kind}> wide[ROWS];",
        "    #pragma unroll",
        "    for (int r = 0; r < ROWS; ++r) {",
        "        const int l = l0 + r < LENGTH ? l0 + r : LENGTH - 1;  // past the end: not stored",
        f"        wide[r] = load({operands.wide} + {wide_at});",
        "    }",
        "    #pragma unroll",
        "    for (int q = 0; q < COUNT; ++q) {",
        *(f"        {line}" for line in fetch),
        "        #pragma unroll",
        "        for (int v = 0; v < VECTOR; ++v) {",
        f"            const float factor = {operands.value('narrow.lane[v]')};",
        "            #pragma unroll",
        "            for (int r = 0; r < ROWS; ++r)",
        f"                sum[r][q] += {operands.value('wide[r].lane[v]')} * factor;",
        "        }",
        "    }",
        "}",
        "__shared__ float partial[WARPS * ROWS * COUNT];",
        "#pragma unroll",
        "for (int r = 0; r < ROWS; ++r) {",
        "    #pragma unroll",
        "    for (int q = 0; q < COUNT; ++q) {",
        "        const float total = warp_sum(sum[r][q]);",
        "        if (lane == 0) partial[(warp * ROWS + r) * COUNT + q] = total;",
        "    }",
        "}",
        "__syncthreads();",
    ]


def _rows_finish(finish: list[str]) -> list[str]:
    return [
        "// One thread for each element: the group's parts, then the epilogue.",
        "for (int e = threadIdx.x; e < GROUPS * ROWS * COUNT; e += THREADS) {",
        "    const int group = e / (ROWS * COUNT), within = e % (ROWS * COUNT);",
        "    const int l = (blockIdx.x * GROUPS + group) * ROWS + within / COUNT;",
        "    const int q = within % COUNT;",
        "    if (l >= LENGTH) break;  // later elements lie further behind",
        "    float total = 0.0f;",
        "    #pragma unroll",
        "    for (int p = 0; p < SPLIT; ++p)",
        "        total += partial[(group * SPLIT + p) * ROWS * COUNT + within];",
        *(f"    {line}" for line in finish),
        "}",
    ]


def write_columns(form: Skinny, name: str, slices: int) -> SkinnySource:
    """Blocks of 32 * VECTOR wide rows; `slices` blocks share the sum over k, a second kernel adds
    their parts."""
    vector = min(vector_of(form, narrow_too=False), 4)
    while vector > 1 and form.length // vector < 32:
        vector //= 2
    batch = form.gemm.batch
    operands, epilogue = _Operands(form), form.gemm.finish
    finish, helpers = epilogue.lines(form.position, "total", "cuda")
    one = slices == 1
    last = finish if one else [
        "partial_ptr[((slice * BATCH + batch) * COUNT + q) * LENGTH + l] = total;"]
    constants = [
        f"constexpr int THREADS = {THREADS}, WARPS = THREADS / 32;",
        f"constexpr int LENGTH = {form.length}, K = {form.k}, BATCH = {batch};",
        f"constexpr int COUNT = {form.count};  // rows of the narrow operand",
        f"constexpr int VECTOR = {vector}, TILE = 32 * VECTOR;  // wide rows per lane, per block",
        f"constexpr int SLICES = {slices}, DEPTH = {-(-form.k // slices)};  // blocks that share k",
    ]
    parameters = operands.parameters + (
        epilogue.parameters("cuda") if one else ["float* __restrict__ partial_ptr"])
    functions = [_function(name, parameters, [*_columns_sums(operands), *_columns_join(last)])]
    grid = (-(-form.length // (32 * vector)), batch * slices)
    launches = [Launch(name, grid,
                       (*operands.names, *(epilogue.arguments() if one else ("partial",))))]
    elements = batch * form.count * form.length
    if not one:
        functions.append(_finish(name, epilogue, finish))
        launches.append(Launch(f"{name}_finish", (-(-elements // THREADS), 1),
                               ("partial", *epilogue.arguments())))
    source = _assemble(form, helpers | operands.helpers(), constants, [_LANES], functions)
    return SkinnySource(source, tuple(launches), 0 if one else slices * elements,
                        {form.wide.name: vector * operands.item})


def _columns_sums(operands: _Operands) -> list[str]:
    """`sum[q][v]`: a warp's part of k for the lane's wide rows and all narrow rows."""
    form = operands.form
    at = offset((form.wide_stride[0], 1, form.wide_stride[2]), ("batch", "l0", "k"))
    narrow = operands.value(f"{operands.narrow}[{operands.narrow_at('k')}]")
    return [
        "const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;",
        "const int l0 = blockIdx.x * TILE + lane * VECTOR;",
        "const int slice = blockIdx.y % SLICES, batch = blockIdx.y / SLICES;",
        "const int stop = (slice + 1) * DEPTH < K ? (slice + 1) * DEPTH : K;",
        "float sum[COUNT][VECTOR] = {};",
        "if (l0 < LENGTH) {",
        "    #pragma unroll 4",
        "    for (int k = slice * DEPTH + warp; k < stop; k += WARPS) {",
        f"        const Lanes<{operands.kind}> wide = load({operands.wide} + {at});",
        "        #pragma unroll",
        "        for (int q = 0; q < COUNT; ++q) {",
        f"            const float factor = {narrow};",
        "            #pragma unroll",
        "            for (int v = 0; v < VECTOR; ++v)",
        f"                sum[q][v] += factor * {operands.value('wide.lane[v]')};",
        "        }",
        "    }",
        "}",
    ]


def _columns_join(last: list[str]) -> list[str]:
    return [
        "// Warps add their parts in a fixed order, one narrow row at a time.",
        "__shared__ float part[WARPS * TILE];",
        "#pragma unroll",
        "for (int q = 0; q < COUNT; ++q) {",
        "    #pragma unroll",
        "    for (int v = 0; v < VECTOR; ++v)",
        "        part[warp * TILE + lane * VECTOR + v] = sum[q][v];",
        "    __syncthreads();",
        "    const int l = blockIdx.x * TILE + threadIdx.x;",
        "    if (threadIdx.x < TILE && l < LENGTH) {",
        "        float total = 0.0f;",
        "        #pragma unroll",
        "        for (int w = 0; w < WARPS; ++w) total += part[w * TILE + threadIdx.x];",
        *(f"        {line}" for line in last),
        "    }",
        "    __syncthreads();",
        "}",
    ]


def _finish(name: str, epilogue: Epilogue, finish: list[str]) -> str:
    """Adds the slices' parts of every element and applies the epilogue."""
    body = [
        "const int e = blockIdx.x * THREADS + threadIdx.x;",
        "if (e >= BATCH * COUNT * LENGTH) return;",
        "const int l = e % LENGTH, q = e / LENGTH % COUNT, batch = e / (LENGTH * COUNT);",
        "float total = 0.0f;",
        "#pragma unroll 8",
        "for (int slice = 0; slice < SLICES; ++slice)",
        "    total += partial_ptr[slice * (BATCH * COUNT * LENGTH) + e];",
        *finish,
    ]
    parameters = ["const float* __restrict__ partial_ptr", *epilogue.parameters("cuda")]
    return _function(f"{name}_finish", parameters, body)


def _function(name: str, parameters: list[str], body: list[str]) -> str:
    lines = "\n".join(f"    {line}" for line in body)
    head = ",\n    ".join(parameters)
    return (f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(\n    {head}) {{\n'
            f"{lines}\n}}")


def _assemble(
    form: Skinny, helpers: frozenset[str], constants: list[str], texts: list[str],
    functions: list[str],
) -> str:  # fmt: skip
    m, n, k = form.gemm.sizes
    batch = f"{form.gemm.batch} x " if form.gemm.batch > 1 else ""
    ops = ", ".join(op.name for op in form.gemm.epilogue)
    megabytes = form.gemm.batch * form.length * form.k * (
        4 if form.wide.dtype == "float32" else 2) / 1e6
    comment = (
        f"// {batch}({m}, {k}) @ ({k}, {n}){', then ' + ops if ops else ''}.\n"
        f"// Bound by reading {form.wide.name} ({megabytes:.4g} MB) once; {form.narrow.name} stays "
        "in cache."
    )
    parts = [comment, expressions.preamble(helpers, "cuda"), "\n".join(constants),
             *(t.strip("\n") for t in texts), *functions]
    return "\n\n".join(p for p in parts if p) + "\n"
