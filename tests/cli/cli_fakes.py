"""A made-up judge for the command line: same fakes as tests/agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from agents_fakes import FakeWorker

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
        self, problem: Any, instance: Any, settings: Any, *, cache_dir: Path, pool: Any
    ) -> FakeWorker:
        self.made.append(FakeWorker(problem, settings.tier, **self.options[settings.tier]))
        return self.made[-1]

    @property
    def judged(self) -> list[tuple[str, str]]:
        return [(w.tier, h) for w in self.made for h in w.judged]
