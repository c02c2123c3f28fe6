"""All four stages as a user runs them: on the analytic cost model, on fixed seeds."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from cuda_agent.policies.builtin import Builtin
from cuda_agent.training import config as configs
from cuda_agent.training.config import STAGES
from cuda_agent.training.metrics import read
from cuda_agent.training.run import train

RECIPES = Path(__file__).parents[2] / "recipes"
RISE = 0.5
"""Of the mean reward, which lies between -1 and 3; an untrained model starts near 1.4."""


@pytest.mark.timeout(600)
def test_the_simulated_recipe_raises_the_reward(tmp_path: Path) -> None:
    config = configs.load(RECIPES / "simulated.toml")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the tests beside this one need the other cores
    try:
        model = train(config, tmp_path / "run", cache=tmp_path / "cache")
    finally:
        torch.set_num_threads(before)
    lines = list(read(tmp_path / "run" / "metrics.jsonl"))
    steps = {stage: [line for line in lines if line["stage"] == stage] for stage in STAGES}
    assert all(steps.values()), "every stage ran"

    def reward(stage: str, part: slice) -> float:
        found = [line["reward"] for line in steps[stage][part]]
        return sum(found) / len(found)

    start = reward("warmup", slice(0, 3))
    assert reward("warmup", slice(-3, None)) > start + RISE
    assert reward("agentic", slice(-5, None)) > start + RISE
    assert steps["value"][-1]["explained_variance"] > steps["value"][0]["explained_variance"]
    assert steps["rejection"][-1]["kept"] > 0
    ppo = steps["warmup"] + steps["agentic"]
    assert all(0 <= line["ratio_first"] - 1 < 1e-5 for line in ppo), "rollouts are on policy"
    assert Builtin.load(model).model.config.hidden_size == config.model.width
    assert "agentic: 10 steps" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_every_recipe_is_a_valid_config(recipe: Path) -> None:
    config = configs.load(recipe)
    assert dataclasses.replace(config, seed=1).hash != config.hash
