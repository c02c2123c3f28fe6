"""Modules with products end to end on the CPU: captured, written by the skill, loaded and run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rows_check import CPU
from skills_harness import compiler_missing
from torch import Tensor, nn

from cuda_agent.agents import solution, workspace
from cuda_agent.graph import capture
from cuda_agent.problems import live_instance

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(compiler_missing(), reason="no C++ compiler"),
]


class LinearThen(nn.Module):
    """`after(linear(x), x)`."""

    def __init__(self, width: int, out: int, after: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(width, out), after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.linear(x), x)


class Function(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


class Normalised(nn.Module):
    """A linear layer and an inference batch norm with statistics that are not the initial ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(40, 48), nn.BatchNorm1d(48)
        nn.init.normal_(self.norm.running_mean)  # type: ignore[arg-type]
        nn.init.uniform_(self.norm.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.linear(x)))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "linear_gelu": (lambda: LinearThen(64, 96, lambda y, x: F.gelu(y)), ((4, 10, 64),)),
    "linear_residual": (lambda: LinearThen(64, 64, lambda y, x: y + x), ((4, 10, 64),)),
    "one_token": (lambda: LinearThen(256, 128, lambda y, x: torch.sigmoid(y)), ((1, 256),)),
    "batch_norm": (Normalised, ((24, 40),)),
    "bias_relu": (lambda: Function(lambda a, b, c: F.relu(a @ b + c)), ((33, 20), (20, 48), (48,))),
    "bmm_scale": (lambda: Function(lambda a, b: torch.bmm(a, b) * 0.5), ((3, 18, 24), (3, 24, 20))),
    "vecmat_tanh": (lambda: Function(lambda a, b: torch.tanh(a @ b)), ((1, 300), (300, 70))),
    "attention_scores": (lambda: Function(lambda q, k: q @ k.transpose(-1, -2) / 8),
                         ((2, 3, 20, 64), (2, 3, 20, 64))),
}  # fmt: skip


def _solution(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"solution_{folder.name}",
                                                  folder / "model_new.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", CASES)
def test_module_end_to_end(name: str, tmp_path: Path) -> None:
    make, shapes = CASES[name]
    torch.manual_seed(2)
    model, inputs = make().eval(), tuple(torch.randn(s) for s in shapes)
    problem, instance = live_instance(model, inputs)
    graph = capture(instance.model, inputs)
    candidate = workspace.assemble(problem, graph, {}, CPU)
    assert candidate.plan is not None
    chosen = [candidate.plan["regions"][r.id]["skill"] for r in graph.regions if r.kind == "gemm"]
    assert chosen == ["gemm_epilogue"]
    solution.write_files(tmp_path / name, solution.solution_files(problem, candidate))
    new = _solution(tmp_path / name).ModelNew.adopt(model)
    with torch.no_grad():
        got, want = new(*inputs), model(*inputs)
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=2e-5)
