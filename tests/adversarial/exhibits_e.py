"""E. Not writing the kernel. Under the library track others' work is listed and gains nothing;
under the kernels track it is refused."""

from __future__ import annotations

from typing import Any

from museum import Exhibit, body, on_gpu

from cases import CLASS, LAUNCH, PREAMBLE, REFERENCE, RIGHT, SOURCE, cuda, native, problem, python

RELU = ("aten.relu",)
NOTHING_GAINED = 1.6  # times eager's speed: a few launches less, or noise


def listed(id: str, name: str, files: dict[str, str], **fields: Any) -> Exhibit:
    """Right, not its own, and said to be so: `external` names the first operator."""
    fields = {"external": RELU, "at_most": NOTHING_GAINED, **fields}
    return Exhibit(id, f"{name}_listed", files, "ok", **fields)


def refused(
    id: str, name: str, files: dict[str, str], rule: str = "E1", unguarded: str | None = None,
    **fields: Any,
) -> Exhibit:
    """The same before a judge that wants own kernels."""
    return Exhibit(id, name, files, "cheating", rule, unguarded, track="kernels", **fields)


def both(id: str, name: str, files: dict[str, str]) -> list[Exhibit]:
    return [refused(id, name, files), listed(id, name, files)]


TORCH = python(f"return {RIGHT}")
NUMPY = python(
    "a, b = x.numpy(), self.bias.detach().numpy()\n"
    "return torch.from_numpy(np.maximum(a + b, 0) + np.multiply(a, 0.5, dtype=np.float32))",
    "import numpy as np",
)
# A recorder of operators belongs to one thread; the work is done in another one.
IN_A_THREAD = python(
    """
    out = torch.empty_like(x)
    def work():
        with torch.no_grad():
            torch.add(torch.relu(x + self.bias), x, alpha=0.5, out=out)
    self.pool.submit(work).result()
    return out
    """,
    "from concurrent.futures import ThreadPoolExecutor",
    init="self.pool = ThreadPoolExecutor(1)\nself.pool.submit(int).result()",
)
LOOKED_AT = f"""
if ASKED > 0:
{{}}
return {RIGHT}
""".format("\n".join(f"    {line}" for line in LAUNCH.strip().splitlines()))
SHIM = native(
    """
#include <torch/torch.h>
extern "C" void fused(at::Tensor* x, at::Tensor* bias, at::Tensor* y) {
    *y = at::relu(*x + *bias) + 0.5 * *x;
}
"""
)
# A vendor's library by name, as a launcher in C++ calls it.
VENDOR = native(
    body(
        """
        if (!cblas_saxpy) { HONEST return; }
        for (int64_t i = 0; i < rows; ++i)
            for (int64_t j = 0; j < n; ++j)
                y[i * n + j] = x[i * n + j] + bias[j] > 0 ? x[i * n + j] + bias[j] : 0;
        cblas_saxpy(int(rows * n), 0.5f, x, 1, y, 1);
        """,
        'extern "C" void cblas_saxpy(int, float, const float*, int, float*, int)'
        " __attribute__((weak));",
    )
)
FALLBACK = native(
    forward=f"""
    try:
        out = torch.empty_like(x)
        kernels.fused(x, self.bias, out, "rows", x.shape[1])
        return out
    except Exception:
        return {RIGHT}
    """
)
QUIET_FALLBACK = native(
    forward=f"""
    out = torch.empty_like(x)
    with contextlib.suppress(Exception):
        kernels.fused(x, self.bias, out, "rows", x.shape[1])
        return out
    return {RIGHT}
    """,
    head="import contextlib",
)
FLAGGED_FALLBACK = native(
    forward=f"""
    out = torch.empty_like(x)
    done = True
    try:
        kernels.fused(x, self.bias, out, "rows", x.shape[1])
    except Exception:
        done = False
    return out if done else {RIGHT}
    """
)
EMPTY = {"model_new.py": f"{REFERENCE}\nclass ModelNew(Model):\n    pass\n"}
RENAMED = {"model_new.py": f"{REFERENCE}\nModelNew = Model\n"}
MADE = {"model_new.py": f"{REFERENCE}\nModelNew = type('ModelNew', (Model,), {{}})\n"}
SUPER = {
    "model_new.py": f"{REFERENCE}\nclass ModelNew(Model):\n    def forward(self, x):\n"
    "        return super().forward(x)\n"
}
SUBMITTED = {"model_new.py": SOURCE.replace("class Model(", "class ModelNew(")}
# Compiled by torch once, when the file is imported.
SCRIPTED = """
def work(x, bias):
    return torch.relu(x + bias) + 0.5 * x
WORK = MAKE(work)
"""
PLAIN_SCRIPTED = python("return WORK(x, self.bias)", SCRIPTED.replace("MAKE", "torch.jit.script"))
HIDDEN_SCRIPTED = python(
    "return WORK(x, self.bias)", SCRIPTED.replace("MAKE", 'getattr(torch.jit, "scr" + "ipt")')
)
COMPILED = {
    "model_new.py": f"{REFERENCE}\n{CLASS}\n    def forward(self, x):\n"
    "        return torch.compile(Model.forward)(self, x)\n"
}
GHOST = native(
    forward=f"""
    if x.dim() == 7:
        kernels.fused(x, self.bias, x, 1, 1)
    return {RIGHT}
    """
)
HALF = """
#include <cstdint>
extern "C" void half(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) y[i] = 0.5f * x[i];
}
"""
FIG_LEAF = native(
    HALF,
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    kernels.half(x, out, x.numel())
    return torch.relu(x + self.bias) + out
    """,
)
TOPK = problem(
    "topk",
    """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.topk(x, 8, dim=-1).values

def get_inputs():
    return [torch.randn(64, 512)]
""",
)
SELECT = """
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>
extern "C" void top(const float* x, float* y, int64_t rows, int64_t n, int64_t k) {
    for (int64_t i = 0; i < rows; ++i) {
        std::vector<float> row(x + i * n, x + (i + 1) * n);
        std::partial_sort(row.begin(), row.begin() + k, row.end(), std::greater<float>());
        std::copy(row.begin(), row.begin() + k, y + i * k);
    }
}
"""
BUILT_IN = {
    "model_new.py": f"{PREAMBLE}\nclass ModelNew(nn.Module):\n    def forward(self, x):\n"
    "        x = x.contiguous()\n"
    "        out = torch.empty(x.shape[0], 8)\n"
    "        kernels.top(x, out, x.shape[0], x.shape[1], 8)\n"
    "        return out\n",
    "kernels/top.cpp": SELECT,
}
BY_TRITON = {
    "model_new.py": """
import torch
from torch import nn
try:
    import triton
    import triton.language as tl

    @triton.jit
    def top(x, y, n: tl.constexpr, k: tl.constexpr):
        row = tl.load(x + tl.program_id(0) * n + tl.arange(0, n))
        tl.store(y + tl.program_id(0) * k + tl.arange(0, k), tl.topk(row, k))
except ImportError:
    top = None

class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty(x.shape[0], 8, device=x.device)
        top[(x.shape[0],)](x, out, x.shape[1], 8)
        return out
"""
}

CPU = [
    *both("E1", "torch", TORCH),
    refused("E1", "in_a_thread", IN_A_THREAD),
    listed("E1", "in_a_thread", IN_A_THREAD),
    refused("E1", "shim", SHIM),
    refused("E1", "numpy", NUMPY),
    listed("E1", "numpy", NUMPY, external=("numpy.maximum",), at_most=None),
    refused("E1", "vendors_function", VENDOR),
    listed("E1", "vendors_function", VENDOR, external=("cblas_saxpy",), at_most=None),
    refused(
        "E1", "while_nobody_records",
        native(forward=LOOKED_AT.replace("ASKED", "torch._C._len_torch_dispatch_stack()")), "D3",
    ),
    Exhibit(
        "E2", "never_named", native(forward=f"return {RIGHT}"), "cheating", "E2", unguarded="ok"
    ),
    Exhibit("E3", "fallback", FALLBACK, "cheating", "E3", unguarded="ok"),
    *both("E3", "quiet_fallback", QUIET_FALLBACK),
    *both("E3", "flagged_fallback", FLAGGED_FALLBACK),
    Exhibit("E4", "empty_subclass", EMPTY, "cheating", "E4", unguarded="ok"),
    Exhibit("E4", "other_name", RENAMED, "cheating", "E4", unguarded="ok"),
    Exhibit("E4", "call_of_the_base", SUPER, "cheating", "E4", unguarded="ok"),
    *both("E4", "made_subclass", MADE),
    *both("E5", "submitted", SUBMITTED),
    refused("E6", "scripted", PLAIN_SCRIPTED, "E6", unguarded="cheating"),
    listed("E6", "scripted", PLAIN_SCRIPTED, external=("torch.jit.script", "aten.relu")),
    refused("E6", "hidden_scripted", HIDDEN_SCRIPTED),
    refused("E6", "compiled", COMPILED, "E6"),
    *both("E7", "ghost", GHOST),
    *both("E8", "fig_leaf", FIG_LEAF),
    refused("E9", "standard_library", BUILT_IN, "E9", problem=TOPK),
    listed(
        "E9", "standard_library", BUILT_IN, external=("std::partial_sort",), at_most=None,
        problem=TOPK,
    ),
    refused("E9", "built_in_of_triton", BY_TRITON, "E9", problem=TOPK),
]

# --- on a GPU -----------------------------------------------------------------------------------

# The work is captured while the model is built; the recorded forward only copies.
CAPTURED = """
self.x.copy_(x)
self.graph.replay()
return self.out.clone()
"""
CAPTURE = f"""
self.x = torch.zeros(4096, 512, device="cuda")
self.graph = torch.cuda.CUDAGraph()
with torch.no_grad():
    x = self.x
    for _ in range(3):
        {RIGHT}
    torch.cuda.synchronize()
    with torch.cuda.graph(self.graph):
        self.out = {RIGHT}
"""
CUDA_GHOST = f"""
if x.dim() == 7:
    kernels.fused(1, 256, x, self.bias, x, 1, 1)
return {RIGHT}
"""
CUDA_HALF = """
extern "C" __global__ void half_of(const float* x, float* y, long long total) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < total) y[i] = 0.5f * x[i];
}
"""
CUDA_FIG_LEAF = """
out = torch.empty_like(x)
kernels.half_of((x.numel() + 255) // 256, 256, x, out, x.numel())
return torch.relu(x + self.bias) + out
"""
GPU = [
    on_gpu(
        "E6", "graph_of_torch", python(CAPTURED, init=CAPTURE), "cheating|wrong", "E1|B18",
        track="kernels", tier="audit",
    ),
    on_gpu("E7", "ghost", cuda(forward=CUDA_GHOST), "cheating", "E2", tier="audit"),
    on_gpu("E8", "fig_leaf", cuda(CUDA_HALF, CUDA_FIG_LEAF), "cheating", "E1", track="kernels"),
]
EXHIBITS = CPU + GPU
