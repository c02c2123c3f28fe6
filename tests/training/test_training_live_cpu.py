"""All four stages on this machine's CPU, judged for real."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent.training import config as configs
from cuda_agent.training.config import STAGES
from cuda_agent.training.metrics import read
from cuda_agent.training.run import train

RECIPE = Path(__file__).parents[2] / "recipes" / "live-cpu.toml"
RISE = 0.1
"""Of the mean log speed-up: 0.27 when the recipe was written (two shared cores, 2026-12-07)."""


@pytest.mark.compiler
@pytest.mark.timeout(600)
def test_the_live_recipe_raises_the_reward(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the judge's processes need the other cores
    try:
        train(configs.load(RECIPE), tmp_path / "run", cache=tmp_path / "cache")
    finally:
        torch.set_num_threads(before)
    lines = list(read(tmp_path / "run" / "metrics.jsonl"))
    assert {line["stage"] for line in lines} == set(STAGES)
    warmup = [line["reward"] for line in lines if line["stage"] == "warmup"]
    assert sum(warmup[-3:]) / 3 > warmup[0] + RISE
    assert sum(line["broken"] for line in lines if "broken" in line) == 0
    assert any(line.get("audits") for line in lines), "some top candidates were audited"
