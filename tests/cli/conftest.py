"""The command line on a made-up judge: same fakes as tests/agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from agents_fakes import FakePlanner, FakeWorker

from cuda_agent.agents import optimize as optimize_module

PROBLEM_TEXT = """import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x):
        return torch.nn.functional.gelu(x * self.weight)


def get_inputs():
    return [torch.randn(4, 8)]
"""


class Workers:
    """Every fake worker that a command started; `options` go to the next ones by tier."""

    def __init__(self) -> None:
        self.made: list[FakeWorker] = []
        self.options: dict[str, dict[str, Any]] = {"screen": {}, "audit": {}}

    def __call__(
        self, problem: Any, instance: Any, settings: Any, *, cache_dir: Path
    ) -> FakeWorker:
        self.made.append(FakeWorker(problem, settings.tier, **self.options[settings.tier]))
        return self.made[-1]

    @property
    def judged(self) -> list[tuple[str, str]]:
        return [(w.tier, h) for w in self.made for h in w.judged]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workers:
    """A made-up planner and judge, in an empty current folder."""
    made = Workers()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("CUDA_AGENT_RUNS", raising=False)
    monkeypatch.setattr(optimize_module, "InlineWorker", made)
    monkeypatch.setattr(
        optimize_module.Planner, "make", lambda instance, facts: FakePlanner(instance.problem)
    )
    return made


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "scaled_gelu.py"
    path.write_text(PROBLEM_TEXT)
    return path
