"""C++ for skinny products whose large operand is contiguous along k: one pass over it.

Floor: the bytes of the large operand. Each row is multiplied with all COUNT rows of the small
operand while it is in registers; the epilogue runs on the sums. LANES partial sums per product
hide the latency of the additions and let g++ vectorise without reordering a sum by itself.
"""

from __future__ import annotations

from cuda_agent.skills.emit import expressions, types
from cuda_agent.skills.gemm_epilogue.product import Finish, Product, Sides

LANES = 32


def write(product: Product, sides: Sides, name: str, *, parallel: bool) -> str:
    """The source of `extern "C" void name(big, small, what the epilogue reads, outputs)`."""
    sides = sides.rearranged(product.k)
    finish = Finish(product)
    storage, kind = types.storage_type(product.dtype), types.compute_type(product.dtype)
    text, helpers = finish.lines("total", "cpp")
    row = types.load("row[start + lane]", product.dtype)
    x = types.load(f"small[s * {sides.small_strides[1]} + start + lane]", product.dtype)
    last_row = types.load("row[i]", product.dtype)
    last_x = types.load(f"small[s * {sides.small_strides[1]} + i]", product.dtype)
    helpers |= row.helpers | x.helpers
    out_row, out_column = sides.coordinates("at", "s")
    tasks = product.batch * sides.rows
    lines = [
        f"for (int64_t task = 0; task < {tasks}; ++task) {{",
        "    const int64_t out_batch = task / ROWS, at = task % ROWS;",
        f"    const {storage}* row = big_ptr + out_batch * {sides.big_strides[0]} + "
        f"at * {sides.big_strides[1]};",
        f"    const {storage}* small = small_ptr + out_batch * {sides.small_strides[0]};",
        f"    {kind} sums[COUNT][LANES] = {{}};",
        "    int64_t start = 0;",
        "    for (; start + LANES <= K; start += LANES)",
        "        for (int s = 0; s < COUNT; ++s)",
        "            #pragma omp simd",
        "            for (int lane = 0; lane < LANES; ++lane)",
        f"                sums[s][lane] += {row.text} * {x.text};",
        "    for (int s = 0; s < COUNT; ++s) {",
        f"        {kind} total = 0;",
        "        for (int lane = 0; lane < LANES; ++lane) total += sums[s][lane];",
        f"        for (int64_t i = start; i < K; ++i) total += {last_row.text} * {last_x.text};",
        f"        const int64_t out_row = {out_row}, out_column = {out_column};",
        *(f"        {line}" for line in text),
        "    }",
        "}",
    ]
    if parallel:
        lines.insert(0, "#pragma omp parallel for schedule(static)")
    parameters = [f"const {storage}* __restrict big_ptr", f"const {storage}* __restrict small_ptr",
                  *finish.parameters("cpp")]  # fmt: skip
    head = ",\n    ".join(parameters)
    body = "\n".join(f"    {line}" for line in lines)
    megabytes = product.operand_bytes / 1e6
    parts = [
        f"// {product.describe()}.\n// Bound by memory: at least {megabytes:.4g} MB are read.",
        "#include <cstdint>",
        expressions.preamble(helpers, "cpp"),
        f"constexpr int64_t ROWS = {sides.rows}, K = {product.k};  // of {sides.big.name}\n"
        f"constexpr int COUNT = {sides.count};  // rows of {sides.small.name}\n"
        f"constexpr int LANES = {LANES};  // partial sums of each product",
        f'extern "C" void {name}(\n    {head}) {{\n{body}\n}}',
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
