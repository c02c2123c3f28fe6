"""CUDA: a thread owns one column of a strip of output rows and walks down the input rows.

Each input row is loaded once and added to every output row that it reaches, so that a row of the
image is read from memory once and its neighbours from cache. Threads of a warp lie side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.skills.depthwise_conv.analysis import Stencil
from cuda_agent.skills.emit import elementwise, expressions
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.types import load, storage_type


@dataclass(frozen=True)
class Kernel:
    source: str
    grid: int
    arguments: tuple[str, ...]


def write(stencil: Stencil, name: str, rows: int, threads: int) -> Kernel:
    """`rows`: output rows of a thread."""
    finish, helpers = stencil.finish.lines(stencil.at, "sum[r]", "cuda")
    helpers |= load("x", stencil.x.dtype).helpers
    rows = min(rows, stencil.out_size[0])
    strips = -(-stencil.out_size[0] // rows)
    total = stencil.planes * strips * stencil.out_size[1]
    parameters = [
        f"const {storage_type(t.dtype)}* __restrict__ {identifier(t.name)}_ptr"
        for t in stencil.operands
    ]
    head = ",\n    ".join([*parameters, *stencil.finish.parameters("cuda")])
    body = "\n".join(f"    {line}" for line in [*_start(stencil), *_walk(stencil), *_end(finish)])
    function = f'extern "C" __global__ void __launch_bounds__(THREADS) {name}(\n    {head}) {{'
    parts = [
        _comment(stencil),
        expressions.preamble(helpers, "cuda"),
        _constants(stencil, rows, strips, threads, total),
        f"{function}\n{body}\n}}",
    ]
    source = "\n\n".join(p for p in parts if p) + "\n"
    arguments = (*(t.name for t in stencil.operands), *stencil.finish.arguments())
    return Kernel(source, -(-total // threads), arguments)


def _comment(stencil: Stencil) -> str:
    ops = elementwise.describe(stencil.finish.ops)
    height, width = stencil.taps
    megabytes = stencil.traffic_bytes / 1e6
    return (
        f"// Depthwise {height}x{width} convolution{', then ' + ops if ops else ''}.\n"
        f"// Bound by memory: {megabytes:.4g} MB, every operand once."
    )


def _constants(stencil: Stencil, rows: int, strips: int, threads: int, total: int) -> str:
    (height, width), (out_height, out_width) = stencil.size, stencil.out_size
    (kh, kw), (sh, sw) = stencil.taps, stencil.stride
    (ph, pw), (dh, dw) = stencil.padding, stencil.dilation
    lines = [
        f"THREADS = {threads}, ROWS = {rows}, STRIPS = {strips}",
        f"CHANNELS = {stencil.channels}, HEIGHT = {height}, WIDTH = {width}",
        f"OUT_CHANNELS = {stencil.channels * stencil.multiplier}, OUT_HEIGHT = {out_height}, "
        f"OUT_WIDTH = {out_width}",
        f"TAPS_Y = {kh}, TAPS_X = {kw}, STRIDE_Y = {sh}, STRIDE_X = {sw}",
        f"PADDING_Y = {ph}, PADDING_X = {pw}, DILATION_Y = {dh}, DILATION_X = {dw}",
        "SPAN = (ROWS - 1) * STRIDE_Y + (TAPS_Y - 1) * DILATION_Y + 1",
    ]
    text = "".join(f"constexpr int {line};\n" for line in lines)
    return text + f"constexpr long long TOTAL = {total};  // threads with work"


def _start(stencil: Stencil) -> list[str]:
    """Coordinates, weights, and sums that begin with the bias."""
    x, weight = (f"{identifier(t.name)}_ptr" for t in stencil.operands[:2])
    channel = "c" if stencil.multiplier == 1 else f"c / {stencil.multiplier}"
    tap = load(f"{weight}[(c * TAPS_Y + i) * TAPS_X + j]", stencil.weight.dtype).text
    begin = "0.0f"
    if stencil.bias:
        begin = load(f"{identifier(stencil.bias.name)}_ptr[c]", stencil.bias.dtype).text
    return [
        "const long long e = (long long)blockIdx.x * THREADS + threadIdx.x;",
        "if (e >= TOTAL) return;",
        "const int column = e % OUT_WIDTH, strip = e / OUT_WIDTH % STRIPS;",
        "const int plane = e / (OUT_WIDTH * STRIPS);",
        "const int c = plane % OUT_CHANNELS, batch = plane / OUT_CHANNELS;",
        f"const {storage_type(stencil.x.dtype)}* image = {x} + "
        f"(long long)(batch * CHANNELS + {channel}) * (HEIGHT * WIDTH);",
        "float taps[TAPS_Y][TAPS_X];",
        "#pragma unroll",
        "for (int i = 0; i < TAPS_Y; ++i)",
        "    #pragma unroll",
        f"    for (int j = 0; j < TAPS_X; ++j) taps[i][j] = {tap};",
        "float sum[ROWS];",
        "#pragma unroll",
        f"for (int r = 0; r < ROWS; ++r) sum[r] = {begin};",
    ]


def _walk(stencil: Stencil) -> list[str]:
    value = load("image[y * WIDTH + at]", stencil.x.dtype).text
    return [
        "const int top = strip * ROWS * STRIDE_Y - PADDING_Y;",
        "const int left = column * STRIDE_X - PADDING_X;",
        "#pragma unroll",
        "for (int q = 0; q < SPAN; ++q) {  // one input row",
        "    const int y = top + q;",
        "    float v[TAPS_X];",
        "    #pragma unroll",
        "    for (int j = 0; j < TAPS_X; ++j) {",
        "        const int at = left + j * DILATION_X;",
        "        const bool inside = y >= 0 && y < HEIGHT && at >= 0 && at < WIDTH;",
        f"        v[j] = inside ? {value} : 0.0f;",
        "    }",
        "    #pragma unroll",
        "    for (int i = 0; i < TAPS_Y; ++i) {",
        "        const int down = q - i * DILATION_Y;  // known to the compiler, as all of this",
        "        if (down < 0 || down % STRIDE_Y != 0 || down / STRIDE_Y >= ROWS) continue;",
        "        #pragma unroll",
        "        for (int j = 0; j < TAPS_X; ++j) sum[down / STRIDE_Y] += taps[i][j] * v[j];",
        "    }",
        "}",
    ]


def _end(finish: list[str]) -> list[str]:
    return [
        "#pragma unroll",
        "for (int r = 0; r < ROWS; ++r) {",
        "    const int row = strip * ROWS + r;",
        "    if (row >= OUT_HEIGHT) break;",
        *(f"    {line}" for line in finish),
        "}",
    ]
