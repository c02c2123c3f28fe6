"""C++ for products with a side of at most 16: the wide operand is read once, epilogue included."""

from __future__ import annotations

from cuda_agent.skills.emit import expressions
from cuda_agent.skills.emit.expressions import identifier
from cuda_agent.skills.emit.indexing import offset
from cuda_agent.skills.emit.types import load, storage_type
from cuda_agent.skills.gemm_epilogue.analysis import Skinny

BLOCK = 256


def write(form: Skinny, name: str, *, parallel: bool) -> tuple[str, list[str]]:
    """(source, arguments)"""
    epilogue = form.gemm.finish
    finish, helpers = epilogue.lines(form.position, "total", "cpp")
    kind = storage_type(form.wide.dtype)
    wptr, sptr = f"{identifier(form.wide.name)}_ptr", f"{identifier(form.narrow.name)}_ptr"
    w_at = offset(form.wide_stride, ("batch", "l", "k"))
    s_at = offset(form.narrow_stride, ("batch", "q", "k"))
    wide = load(f"{wptr}[{w_at}]", form.wide.dtype)
    narrow = load(f"{sptr}[{s_at}]", form.narrow.dtype)
    pragma = ["#pragma omp parallel for collapse(2) schedule(static)"] if parallel else []
    loops = _dots if form.along_k else _columns
    body = [
        f"constexpr int64_t BATCH = {form.gemm.batch}, LENGTH = {form.length}, K = {form.k};",
        f"constexpr int64_t COUNT = {form.count};  // rows of the narrow operand",
        *loops(wide.text, narrow.text, finish, pragma),
    ]
    parameters = [f"const {kind}* __restrict {wptr}", f"const {kind}* __restrict {sptr}",
                  *epilogue.parameters("cpp")]
    head = ",\n    ".join(parameters)
    lines = "\n".join(line if line.startswith("#") else f"    {line}" for line in body)
    m, n, k = form.gemm.sizes
    parts = [
        f"// ({m}, {k}) @ ({k}, {n}) and what follows. Bound by reading {form.wide.name} once.",
        "#include <cstdint>",
        expressions.preamble(helpers | wide.helpers | narrow.helpers, "cpp"),
        f'extern "C" void {name}(\n    {head}) {{\n{lines}\n}}',
    ]
    arguments = [form.wide.name, form.narrow.name, *epilogue.arguments()]
    return "\n\n".join(p for p in parts if p) + "\n", arguments


def _dots(wide: str, narrow: str, finish: list[str], pragma: list[str]) -> list[str]:
    """The wide operand lies along k: a vectorised dot product for each element."""
    return [
        *pragma,
        "for (int64_t batch = 0; batch < BATCH; ++batch)",
        "    for (int64_t l = 0; l < LENGTH; ++l)",
        "        for (int64_t q = 0; q < COUNT; ++q) {",
        "            float total = 0.0f;",
        "#pragma omp simd reduction(+ : total)",
        f"            for (int64_t k = 0; k < K; ++k) total += {wide} * {narrow};",
        *(f"            {line}" for line in finish),
        "        }",
    ]


def _columns(wide: str, narrow: str, finish: list[str], pragma: list[str]) -> list[str]:
    """It lies along its rows: sums for a block of them stay in cache while k goes by."""
    return [
        f"constexpr int64_t BLOCK = {BLOCK};  // wide rows whose sums stay in registers and L1",
        *pragma,
        "for (int64_t batch = 0; batch < BATCH; ++batch)",
        "    for (int64_t start = 0; start < LENGTH; start += BLOCK) {",
        "        const int64_t stop = start + BLOCK < LENGTH ? start + BLOCK : LENGTH;",
        "        float sum[COUNT][BLOCK] = {};",
        "        for (int64_t k = 0; k < K; ++k)",
        "            for (int64_t q = 0; q < COUNT; ++q) {",
        f"                const float factor = {narrow};",
        "#pragma omp simd",
        "                for (int64_t l = start; l < stop; ++l)",
        f"                    sum[q][l - start] += factor * {wide};",
        "            }",
        "        for (int64_t q = 0; q < COUNT; ++q)",
        "#pragma omp simd",
        "            for (int64_t l = start; l < stop; ++l) {",
        "                const float total = sum[q][l - start];",
        *(f"                {line}" for line in finish),
        "            }",
        "    }",
    ]
