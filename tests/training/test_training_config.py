"""A config file is taken as written or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.errors import SettingsError
from cuda_agent.training import config


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def test_published_values_are_the_defaults(tmp_path: Path) -> None:
    """arXiv 2602.24286, section 4.1."""
    got = config.load(written(tmp_path, ""))
    assert (got.ppo.gamma, got.ppo.lam) == (1.0, 0.95)
    assert (got.ppo.clip_low, got.ppo.clip_high) == (0.2, 0.28)
    assert (got.ppo.actor_lr, got.ppo.critic_lr) == (3e-6, 6e-6)
    assert (got.agentic.batch, got.agentic.minibatch, got.agentic.steps) == (1024, 1024, 150)
    assert got.environment.reward == "milestone"
    assert got.stages == ("warmup", "rejection", "value", "agentic")


def test_values_and_paths(tmp_path: Path) -> None:
    text = (
        'seed = 3\n[data]\nproblems = ["a/b.py", "ours"]\n[ppo]\nactor_lr = 1\n'
        '[environment]\nsource = "recorded"\ntable = "t.jsonl.gz"\n'
    )
    got = config.load(written(tmp_path, text))
    assert got.seed == 3 and got.ppo.actor_lr == 1.0 and isinstance(got.ppo.actor_lr, float)
    assert got.data.problems == (str(tmp_path.resolve() / "a/b.py"), "ours")
    assert got.environment.table == str(tmp_path.resolve() / "t.jsonl.gz")
    assert config.from_json(got.to_json()) == got


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[ppo]\nclip_hgih = 0.3", r"no key 'ppo.clip_hgih'; did you mean 'clip_high'\?"),
        ("seeed = 1", r"no key 'seeed'; did you mean 'seed'"),
        ("[ppo]\nclip_low = 'a'", "ppo.clip_low is 'a'; expected a number"),
        ("[warmup]\nsteps = 2.5", "warmup.steps is 2.5; expected a whole number"),
        ("[ppo]\nnormalize = 1", "ppo.normalize is 1; expected true or false"),
        ("seed = true", "seed is True; expected a whole number"),
        ("[warmup]\nbatch = 0", "warmup.batch is 0; it must be above 0"),
        ("[ppo]\nactor_lr = -1.0", "ppo.actor_lr is -1.0; it must be above 0"),
        ("[ppo]\nactor_lr = nan", "ppo.actor_lr is nan; it must be above 0"),
        ("[environment]\nsource = 'magic'", "environment.source is 'magic'; choose from 'simul"),
        ("data = 3", r"data is 3; expected a table \[data\]"),
        ("[data]\nproblems = 'x'", "data.problems is 'x'; expected a list of strings"),
        ("stages = ['warmup', 'cooldown']", "stages holds 'cooldown'; choose from warmup"),
        ("stages = ['value', 'warmup']", "stages must keep the order"),
        ("[ppo\nx = 1", "is not TOML: .*line 1"),
    ],
)
def test_what_cannot_be_is_refused_with_file_and_key(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError, match=expected) as caught:
        config.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none.toml cannot be read \(No such file"):
        config.load(tmp_path / "none.toml")
