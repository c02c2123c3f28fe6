"""A small problem, honest candidates and cheats, as text."""

from __future__ import annotations

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

PREAMBLE = """
import importlib.util, pathlib
import torch
from torch import nn
_file = pathlib.Path(__file__).with_name("runtime.py")
_spec = importlib.util.spec_from_file_location(f"runtime_{__name__}", _file)
runtime = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runtime)
kernels = runtime.load(__file__)
"""

CLASS = """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
"""

KERNEL = """
#include <cstdint>
extern "C" void fused(const float* x, const float* bias, float* y, int64_t rows, int64_t n) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < n; ++j) {
            float v = x[i * n + j] + bias[j];
            y[i * n + j] = (v > 0 ? v : 0) + 0.5f * x[i * n + j];
        }
}
"""

FORWARD = """
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels.fused(x, self.bias, out, x.shape[0], x.shape[1])
        return out
"""

COMPUTE = "torch.relu(x + self.bias) + 0.5 * x"


def problem(source: str = SOURCE, name: str = "bias_relu", dtype: str = "float32") -> Problem:
    return Problem(name=name, source=source, origin=f"{name}.py", dtype=dtype)


def native(forward: str = FORWARD, kernel: str = KERNEL, head: str = "") -> dict[str, str]:
    return {"model_new.py": PREAMBLE + head + CLASS + forward, "kernels/fused.cpp": kernel}


def single(forward: str, head: str = "", cls: str = CLASS) -> dict[str, str]:
    """A Python file whose forward is `forward`, lines of a method body."""
    body = "\n".join(f"        {line}" for line in forward.strip("\n").splitlines())
    text = f"import torch\nfrom torch import nn\n{head}\n{cls}\n    def forward(self, x):\n{body}\n"
    return {"model_new.py": text}


def candidate(files: dict[str, str], made_for: Problem, trusted: bool = False) -> Candidate:
    return Candidate(problem_hash=made_for.hash, files=files, author="test", trusted=trusted)
