"""A small problem and candidates for it, as text: what the tests of the judge are made of."""

from __future__ import annotations

import textwrap

from cuda_agent.records import Candidate, Problem

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(x + self.bias) + 0.5 * x

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return [512]
"""
REFERENCE = SOURCE.partition("def get_inputs")[0]
RIGHT = "torch.relu(x + self.bias) + 0.5 * x"
CLASS = """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
"""
RUNTIME = """
import importlib.util, pathlib
_file = pathlib.Path(__file__).with_name("runtime.py")
_spec = importlib.util.spec_from_file_location(f"runtime_{__name__}", _file)
runtime = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runtime)
kernels = runtime.load(__file__)
"""
PREAMBLE = f"import torch\nfrom torch import nn\n{RUNTIME}"

SIGNATURE = "void fused(const float* x, const float* bias, float* y, int64_t rows, int64_t n)"
LOOP = """
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float v = x[i * n + j] + bias[j];
            y[i * n + j] = (v > 0 ? v : 0) + 0.5f * x[i * n + j];
        }
"""
KERNEL = f'\n#include <cstdint>\nextern "C" {SIGNATURE} {{{LOOP}}}\n'
LAUNCH = """
x = x.contiguous()
out = torch.empty_like(x)
kernels.fused(x, self.bias, out, *x.shape)
return out
"""
CUDA_KERNEL = """
extern "C" __global__ void fused(const float* x, const float* bias, float* y,
                                 long long total, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    y[i] = fmaxf(x[i] + bias[i % n], 0.0f) + 0.5f * x[i];
}
"""
CUDA_LAUNCH = """
x = x.contiguous()
out = torch.empty_like(x)
kernels.fused((x.numel() + 255) // 256, 256, x, self.bias, out, x.numel(), x.shape[-1])
return out
"""


def problem(name: str = "bias_relu", source: str = SOURCE, dtype: str = "float32") -> Problem:
    return Problem(name=name, source=source, origin=f"{name}.py", dtype=dtype)


def candidate(files: dict[str, str], made_for: Problem, trusted: bool = False) -> Candidate:
    return Candidate(problem_hash=made_for.hash, files=files, author="test", trusted=trusted)


def python(forward: str, head: str = "", cls: str = CLASS, init: str = "") -> dict[str, str]:
    """A Python file. `forward`, `init`: lines of the method's body; `head`: of the module."""
    start = f"import torch\nfrom torch import nn\n{textwrap.dedent(head)}\n{cls}"
    return _files(start, forward, init)


def native(
    kernel: str = KERNEL, forward: str = LAUNCH, head: str = "", init: str = "",
    suffix: str = "cpp", cls: str = CLASS,
) -> dict[str, str]:
    """model_new.py beside kernels/fused.cpp (or .cu)."""
    made = _files(f"{PREAMBLE}{textwrap.dedent(head)}\n{cls}", forward, init)
    return {**made, f"kernels/fused.{suffix}": kernel}


def cuda(
    kernel: str = CUDA_KERNEL, forward: str = CUDA_LAUNCH, head: str = "", init: str = ""
) -> dict[str, str]:
    return native(kernel, forward, head, init, "cu")


def _files(text: str, forward: str, init: str) -> dict[str, str]:
    made = f"{text}{_lines(init)}\n    def forward(self, x):\n{_lines(forward)}"
    return {"model_new.py": made}


def _lines(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * 8) + "\n"
