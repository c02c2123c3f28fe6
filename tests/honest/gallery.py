"""Honest kernels that look suspicious: one record each, and the problems that they solve.

Beside the museum of cheats stands this gallery. Each kernel here does what a careful engineer
does, and trips somebody's rule of thumb: a try around a compile, a cache, a stream, a word. None
may be refused. The families lie in `gallery_*.py`, each with a tuple of records.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from cases import KERNEL, LAUNCH, RUNTIME
from cuda_agent.records import Candidate, Problem, Track


@dataclass(frozen=True)
class HonestKernel:
    """`looks`: what it might be taken for. `remarks`: ids of findings that accuse nobody.

    `slow`: builds for more than ten seconds. `needs`: modules without which it is skipped.
    """

    name: str
    looks: str
    files: Mapping[str, str] = field(repr=False)
    problem: str = "bias_relu"
    target: str = "cpu"
    track: Track = "library"
    remarks: frozenset[str] = frozenset()
    slow: bool = False
    needs: tuple[str, ...] = ()

    def candidate(self) -> Candidate:
        problem = PROBLEMS[self.problem, self.target]
        return Candidate(problem_hash=problem.hash, files=dict(self.files), author="gallery")


# --- problems -----------------------------------------------------------------------------------

_MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
{body}

def get_inputs():
    return [torch.randn({shape})]

def get_init_inputs():
    return [{init}]
"""
_BIAS = """
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu(x + self.bias) + 0.5 * x
"""
_LINEAR = """
    def __init__(self, columns, rows):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) / columns ** 0.5)
        self.bias = nn.Parameter(torch.randn(rows))

    def forward(self, x):
        return torch.relu(F.linear(x, self.weight, self.bias))
"""
_ROOT = """
    def __init__(self, bias):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([float(bias)]))

    def forward(self, x):
        return torch.nan_to_num(torch.sqrt(x), nan=-1.0) + self.bias
"""
_ROWS = """
    def __init__(self, scale):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([float(scale)]))

    def forward(self, x):
        return x * self.scale, (x * x).sum(-1)
"""
_CONV = """
    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 3, 3, 3) / 5)

    def forward(self, x):
        return F.conv2d(x, self.weight).relu()
"""
_SHAPES = {  # (body, inputs on a CPU, inputs on a GPU, arguments on each)
    "bias_relu": (_BIAS, "64, 512", "4096, 4096", "512", "4096"),
    "linear_relu": (_LINEAR, "32, 96", "512, 1024", "96, 64", "1024, 256"),
    "nan_root": (_ROOT, "48, 256", "2048, 4096", "0.25", "0.25"),
    "two_outputs": (_ROWS, "40, 384", "2048, 4096", "1.5", "1.5"),
    "conv_relu": (_CONV, "4, 3, 18, 18", "16, 3, 66, 66", "8", "32"),
}


def _problem(name: str, target: str) -> Problem:
    body, cpu, cuda, cpu_init, cuda_init = _SHAPES[name]
    shape, init = (cpu, cpu_init) if target == "cpu" else (cuda, cuda_init)
    source = _MODEL.format(body=body, shape=shape, init=init)
    return Problem(name=f"{name}_{target}", source=source, origin=f"{name}.py")


PROBLEMS = {
    (name, target): _problem(name, target) for name in _SHAPES for target in ("cpu", "cuda")
}

# --- parts that candidates are made of ----------------------------------------------------------

IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
# The same by ctypes, for candidates that build themselves.
CALL = """
x = x.contiguous()
out = torch.empty_like(x)
pointers = (ctypes.c_void_p(t.data_ptr()) for t in (x, self.bias, out))
library.fused(*pointers, *map(ctypes.c_int64, x.shape))
return out
"""
_INIT = {  # parameters of the reference's names, drawn in its order
    "bias_relu": ("features", "self.bias = nn.Parameter(torch.randn(features))"),
    "linear_relu": (
        "columns, rows",
        "self.weight = nn.Parameter(torch.randn(rows, columns) / columns ** 0.5)\n"
        "self.bias = nn.Parameter(torch.randn(rows))",
    ),
    "nan_root": ("bias", "self.bias = nn.Parameter(torch.tensor([float(bias)]))"),
    "two_outputs": ("scale", "self.scale = nn.Parameter(torch.tensor([float(scale)]))"),
    "conv_relu": (
        "channels", "self.weight = nn.Parameter(torch.randn(channels, 3, 3, 3) / 5)"
    ),
}


def model(
    forward: str, head: str = "", init: str = "", methods: str = "", problem: str = "bias_relu",
    base: str = "nn.Module",
) -> str:
    """Text of a module: lines of `forward`'s body, of `__init__`'s end, further methods."""
    arguments, parameters = _INIT[problem]
    return "\n".join([
        IMPORTS, head.strip("\n"), "", f"class ModelNew({base}):",
        f"    def __init__(self, {arguments}):", "        super().__init__()",
        *(textwrap.indent(text.strip("\n"), " " * 8) for text in (parameters, init) if text), "",
        "    def forward(self, x):", textwrap.indent(forward.strip("\n"), " " * 8), "",
        textwrap.indent(methods.strip("\n"), " " * 4),
    ])


def native(
    forward: str = LAUNCH, kernel: str = KERNEL, head: str = "", init: str = "", methods: str = "",
    problem: str = "bias_relu", suffix: str = "cpp", base: str = "nn.Module",
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """model_new.py and kernels/fused.cpp (or .cu), and `more` files."""
    return {
        "model_new.py": model(forward, RUNTIME + head, init, methods, problem, base),
        f"kernels/fused.{suffix}": kernel,
        **(more or {}),
    }


def single(
    forward: str = CALL, head: str = "", init: str = "", methods: str = "",
    problem: str = "bias_relu", base: str = "nn.Module",
) -> dict[str, str]:
    return {"model_new.py": model(forward, head, init, methods, problem, base)}
