"""C++: output rows one after another; a tap adds a shifted input row to a row of sums in cache."""

from __future__ import annotations

from cuda_agent.skills.depthwise_conv.analysis import Stencil
from cuda_agent.skills.emit import elementwise, expressions
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.types import load, storage_type

BLOCK = 2048


def write(stencil: Stencil, name: str, *, parallel: bool) -> tuple[str, list[str]]:
    """(source, arguments)"""
    finish, helpers = stencil.finish.lines(stencil.at, "sum[column - start]", "cpp")
    helpers |= load("x", stencil.x.dtype).helpers
    parameters = [
        f"const {storage_type(t.dtype)}* __restrict {identifier(t.name)}_ptr"
        for t in stencil.operands
    ]
    head = ",\n    ".join([*parameters, *stencil.finish.parameters("cpp")])
    body = _body(stencil, finish, parallel)
    lines = "\n".join(line if line.startswith("#") else f"    {line}" for line in body)
    ops = elementwise.describe(stencil.finish.ops)
    height, width = stencil.taps
    parts = [
        f"// Depthwise {height}x{width} convolution{', then ' + ops if ops else ''}.",
        "#include <cstdint>",
        expressions.preamble(helpers, "cpp"),
        f'extern "C" void {name}(\n    {head}) {{\n{lines}\n}}',
    ]
    arguments = [*(t.name for t in stencil.operands), *stencil.finish.arguments()]
    return "\n\n".join(p for p in parts if p) + "\n", arguments


def _body(stencil: Stencil, finish: list[str], parallel: bool) -> list[str]:
    (height, width), (out_height, out_width) = stencil.size, stencil.out_size
    (kh, kw), (sh, sw) = stencil.taps, stencil.stride
    (ph, pw), (dh, dw) = stencil.padding, stencil.dilation
    x, weight = (f"{identifier(t.name)}_ptr" for t in stencil.operands[:2])
    kind = stencil.x.dtype
    channel = "c" if stencil.multiplier == 1 else f"c / {stencil.multiplier}"
    tap = load(f"{weight}[(c * {kh} + i) * {kw} + j]", stencil.weight.dtype).text
    begin = "0.0f"
    if stencil.bias:
        begin = load(f"{identifier(stencil.bias.name)}_ptr[c]", stencil.bias.dtype).text
    value = load(f"step[column * {sw}]" if sw != 1 else "step[column]", kind).text
    out_channels = stencil.channels * stencil.multiplier
    return [
        f"constexpr int64_t HEIGHT = {height}, WIDTH = {width};",
        f"constexpr int64_t OUT_HEIGHT = {out_height}, OUT_WIDTH = {out_width};",
        f"constexpr int64_t BLOCK = {min(out_width, BLOCK)};  // sums that stay in L1",
        *(["#pragma omp parallel for schedule(static)"] if parallel else []),
        f"for (int64_t plane = 0; plane < {stencil.planes}; ++plane) {{",
        f"    const int64_t c = plane % {out_channels}, batch = plane / {out_channels};",
        f"    const {storage_type(kind)}* image = {x} + (batch * {stencil.channels} + {channel}) * "
        "(HEIGHT * WIDTH);",
        "    for (int64_t row = 0; row < OUT_HEIGHT; ++row)",
        "    for (int64_t start = 0; start < OUT_WIDTH; start += BLOCK) {",
        "        const int64_t stop = start + BLOCK < OUT_WIDTH ? start + BLOCK : OUT_WIDTH;",
        "        float sum[BLOCK];",
        f"        const float before = {begin};",
        "        for (int64_t column = start; column < stop; ++column)",
        "            sum[column - start] = before;",
        f"        for (int64_t i = 0; i < {kh}; ++i) {{",
        f"            const int64_t y = row * {sh} - {ph} + i * {dh};",
        "            if (y < 0 || y >= HEIGHT) continue;",
        f"            for (int64_t j = 0; j < {kw}; ++j) {{",
        f"                const int64_t left = j * {dw} - {pw};  // of column 0; padding is zero",
        f"                int64_t first = left < 0 ? (-left + {sw - 1}) / {sw} : 0;",
        f"                int64_t end = left < WIDTH ? (WIDTH - left + {sw - 1}) / {sw} : 0;",
        "                if (first < start) first = start;",
        "                if (end > stop) end = stop;",
        f"                const float factor = {tap};",
        f"                const {storage_type(kind)}* step = image + y * WIDTH + left;",
        "#pragma omp simd",
        "                for (int64_t column = first; column < end; ++column)",
        f"                    sum[column - start] += factor * {value};",
        "            }",
        "        }",
        "#pragma omp simd",
        "        for (int64_t column = start; column < stop; ++column) {",
        *(f"            {line}" for line in finish),
        "        }",
        "    }",
        "}",
    ]
