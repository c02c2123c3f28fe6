"""One door to all that can answer a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import SettingsError
from cuda_agent.training import simulated
from cuda_agent.training.config import Environment
from cuda_agent.training.sources import load_problems, open_source

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2 + 1, dim=-1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return []
"""


def test_simulated(tmp_path: Path) -> None:
    file = tmp_path / "softmax.py"
    file.write_text(PROBLEM)
    environment = Environment(space_limit=8)
    (problem,) = load_problems(environment, [str(file)], cache=tmp_path)
    assert 1 < len(problem.space) <= 8 and problem.task.device == simulated.facts("null")
    with open_source(environment, cache=tmp_path) as source:
        verdict = source.submit(problem, problem.space.default()).result()
        assert source.label == "simulated" and verdict.ok
        with pytest.raises(SettingsError, match="no region 'r9'"):
            source.submit(problem, {"regions": {"r9": {"skill": "torch"}}})
    assert verdict == simulated.verdict(problem, problem.space.default())
