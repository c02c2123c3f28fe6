"""The museum of cheats: what an exhibit is, the problems they cheat on, and texts they are made of.

An exhibit is a candidate that does what a public report says. Its id is that of the report, as in
docs/threat-model.md; the rooms are exhibits_a.py to exhibits_f.py.
"""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cuda_agent.records import Precision, Problem, Tier, Track

IDS = tuple(
    f"{letter}{i}"
    for letter, count in (("A", 18), ("B", 18), ("C", 17), ("D", 6), ("E", 9), ("F", 15))
    for i in range(1, count + 1)
)
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
BIAS = Problem(name="bias_relu", source=SOURCE, origin="bias_relu.py", dtype="float32")
LARGE = Problem(  # for a GPU: 0.02 ms are nothing there
    name="bias_relu_large", source=SOURCE.replace("64, 512", "4096, 512"),
    origin="bias_relu_large.py", dtype="float32",
)
RIGHT = "torch.relu(x + self.bias) + 0.5 * x"


@dataclass(frozen=True)
class Exhibit:
    """One cheat and what must become of it.

    status, rule: of the verdict; the rule is an id among its findings, "" where there is none (the
        cheat fails by itself, or the verdict is honest about what is not the candidate's own).
        "a|b" where a race decides which of two.
    unguarded: the status with the static rules switched off, where those come first: what is left
        when a text is written so that they do not see it. None: the static rules do not fire.
    external: what must be named in external_ops.
    at_most: the speed-up over eager that an honest verdict may show; the cheat gains nothing.
    """

    id: str
    name: str
    files: Mapping[str, str]
    status: str
    rule: str = ""
    unguarded: str | None = None
    says: str = ""
    external: tuple[str, ...] = ()
    at_most: float | None = None
    problem: Problem = BIAS
    target: Literal["cpu", "cuda"] = "cpu"
    track: Track = "library"
    precision: Precision = "strict"
    tier: Tier = "screen"

    @property
    def label(self) -> str:
        return f"{self.id}-{self.name}"


def on_gpu(
    id: str, name: str, files: Mapping[str, str], status: str, rule: str = "", **fields: Any
) -> Exhibit:
    """An exhibit that needs a GPU."""
    fields = {"problem": LARGE, "target": "cuda", **fields}
    return Exhibit(id, f"{name}_cuda", files, status, rule, **fields)


def problem(name: str, source: str, dtype: str = "float32") -> Problem:
    return Problem(name=name, source=source, origin=f"{name}.py", dtype=dtype)


# A cheat of machine code or of system calls by number is written for this one.
X86 = platform.machine() == "x86_64"

# --- texts --------------------------------------------------------------------------------------

CLASS = """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
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
LAUNCH = """
x = x.contiguous()
out = torch.empty_like(x)
kernels.fused(x, self.bias, out, x.shape[0], x.shape[1])
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
kernels.fused((x.numel() + 255) // 256, 256, x, self.bias, out, x.numel(), x.shape[1])
return out
"""


def python(forward: str, head: str = "", cls: str = CLASS, init: str = "") -> dict[str, str]:
    """A Python file. `forward`, `init`: lines of the method's body; `head`: of the module."""
    text = f"import torch\nfrom torch import nn\n{textwrap.dedent(head)}\n{cls}"
    return {"model_new.py": f"{text}{_lines(init)}\n    def forward(self, x):\n{_lines(forward)}"}


def native(
    kernel: str = KERNEL, forward: str = LAUNCH, head: str = "", init: str = "",
    suffix: str = "cpp",
) -> dict[str, str]:
    """model_new.py beside kernels/fused.cpp (or .cu)."""
    text = f"{PREAMBLE}{textwrap.dedent(head)}\n{CLASS}{_lines(init)}"
    return {
        "model_new.py": f"{text}\n    def forward(self, x):\n{_lines(forward)}",
        f"kernels/fused.{suffix}": kernel,
    }


def cuda(
    kernel: str = CUDA_KERNEL, forward: str = CUDA_LAUNCH, head: str = "", init: str = ""
) -> dict[str, str]:
    return native(kernel, forward, head, init, "cu")


def body(statements: str, includes: str = "") -> str:
    """A C++ source whose `fused` is `statements`; a macro HONEST does the work."""
    work = (
        "#define HONEST for (int64_t i = 0; i < rows; ++i) for (int64_t j = 0; j < n; ++j) {"
        " float v = x[i * n + j] + bias[j];"
        " y[i * n + j] = (v > 0 ? v : 0) + 0.5f * x[i * n + j]; }"
    )
    head = 'extern "C" void fused(const float* x, const float* bias, float* y'
    return (
        f"#include <cstdint>\n{textwrap.dedent(includes)}\n{work}\n"
        f"{head}, int64_t rows, int64_t n) {{\n{textwrap.dedent(statements)}\n}}\n"
    )


def _lines(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * 8) + "\n"
