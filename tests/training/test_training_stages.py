"""The four stages: on policy, resumable after kill -9, learning, and loud about what is wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import problems

from cuda_agent import rewards
from cuda_agent.errors import HarnessError, SettingsError
from cuda_agent.policies import Plan, Step, apply_plan
from cuda_agent.policies.base import SUBMIT
from cuda_agent.policies.builtin import Builtin, shipped
from cuda_agent.policies.builtin import Config as ModelConfig
from cuda_agent.records import Verdict
from cuda_agent.training import config as configs
from cuda_agent.training import episodes, page, ppo_stage, rejection, rollouts, simulated, update
from cuda_agent.training import run as running
from cuda_agent.training.checkpoints import Checkpoints
from cuda_agent.training.config import Config, Environment, Model, Ppo, PpoStage, Rejection, Value
from cuda_agent.training.learner import Learner
from cuda_agent.training.metrics import Metrics, read
from cuda_agent.training.rollouts import Rules, Trajectory, play
from cuda_agent.training.run import Silent, Training, train
from cuda_agent.training.simulated import SimulatedSource

TINY = Config(
    validate_every=2, micro_tokens=8192,
    environment=Environment(target="cuda", turns=3, audit_every=4),
    model=Model(layers=1, width=32, heads=2, device="cpu"),
    ppo=Ppo(actor_lr=2e-3, critic_lr=2e-3, entropy=0.01),
    warmup=PpoStage(3, 16, 16), agentic=PpoStage(3, 8, 4),
    rejection=Rejection(episodes=24, chunk=8, batch=8, lr=1e-3), value=Value(2, 1e-3, 8),
)


def model(seed: int = 0, critic: Any = "separate", layers: int = 1) -> Builtin:
    config = ModelConfig(len(shipped()), 64, 96, layers, 4, 2)
    return Builtin.untrained(seed, config, critic)


def training(tmp_path: Path, config: Config = TINY, source: Any = None) -> Training:
    made = problems(4)
    return Training(
        config, tmp_path, Learner(model(), config, torch.device("cpu")), made[:3], made[3:],
        source or SimulatedSource(), Metrics(tmp_path), Checkpoints(tmp_path), Silent(),
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of another order would differ in their last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- rollouts -----------------------------------------------------------------------------------


def test_play_marks_only_real_choices_and_pays_the_outcome() -> None:
    played, tally = play(
        model(), problems(4) * 2, SimulatedSource(), Rules(3, rewards.milestone, seed=1)
    )
    assert len(played) == 8 and tally.evaluations == sum(len(e.steps) for e in played)
    assert len({len(e.steps) for e in played}) > 1, "some submit earlier"
    for episode in played:
        assert all(len(a) > 1 for a in episode.allowed)
        assert all(episode.ids[p] in a for p, a in zip(episode.chosen, episode.allowed))
        paid = [rewards.milestone(s.verdict) for s in episode.steps if s.verdict]
        assert episode.reward == max(paid)
        assert rollouts.grade(episode.steps, rewards.milestone, "final") == paid[-1]
        told = rollouts.retold(model(), episode.problem, [
            *episode.steps, *([Step(SUBMIT, "")] if episode.submitted else [])
        ], episode.reward)
        assert (told.ids, told.chosen, told.allowed) == (
            episode.ids, episode.chosen, episode.allowed
        )


def test_play_is_settled_by_its_seed() -> None:
    def ids(seed: int) -> list[list[int]]:
        rules = Rules(2, rewards.milestone, seed=seed)
        return [e.ids for e in play(model(), problems(4), SimulatedSource(), rules)[0]]

    assert ids(5) == ids(5) != ids(6)


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-5), ("bfloat16", 1e-3)])
def test_importance_ratios_are_one_before_the_first_step(
    dtype: str, limit: float, critic: str
) -> None:
    config = dataclasses.replace(TINY, model=dataclasses.replace(TINY.model, dtype=dtype))
    learner = Learner(model(layers=2, critic=critic), config, torch.device("cpu"))
    rules = Rules(3, rewards.milestone, seed=3)
    played, _ = play(learner.builtin, problems(4) * 4, SimulatedSource(), rules)
    metrics = update.update(learner, played, minibatch=4, seed=0)
    assert 0 <= metrics["ratio_first"] - 1 < limit
    assert metrics["ratio_max"] > metrics["ratio_first"], "later minibatches are off policy"


def test_a_failure_of_the_harness_is_not_learnt_from() -> None:
    class Failing(SimulatedSource):
        def submit(self, problem: Any, plan: Plan, tier: str = "screen") -> Future[Verdict]:
            future: Future[Verdict] = Future()
            future.set_exception(HarnessError("the worker died"))
            return future

    learner = Learner(model(), TINY, torch.device("cpu"))
    rules = Rules(3, rewards.milestone)
    played, _ = play(learner.builtin, problems(2), Failing(), rules)
    assert all(e.broken and not e.teaches and len(e.steps) == 1 for e in played)
    before = [p.clone() for p in learner.model.parameters()]
    assert update.update(learner, played, 2, 0) == {}
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters()))
    assert ppo_stage.summary(played) == {"broken": 2.0}


def test_bfloat16_keeps_steps_that_are_too_small_for_it() -> None:
    """0.3% of a weight's last bit a step: lost one by one, not in the float32 copies."""
    config = dataclasses.replace(
        TINY, model=dataclasses.replace(TINY.model, dtype="bfloat16"), ppo=Ppo(actor_lr=1e-5)
    )
    learner = Learner(model(), config, torch.device("cpu"))
    learner.begin()
    weight = learner.model.model.norm.weight  # 1.0: the next bfloat16 below is 0.99609375
    for _ in range(400):
        weight.grad = torch.ones_like(weight)
        learner.actor.step()
    assert float(weight[0].detach()) == pytest.approx(1 - 400e-5, abs=0.004) and weight[0] < 1


# --- audits -------------------------------------------------------------------------------------


def test_an_audit_that_disagrees_is_an_alarm(tmp_path: Path) -> None:
    class Hole(SimulatedSource):
        """What the screen finds correct the audit refuses."""

        def submit(self, problem: Any, plan: Plan, tier: str = "screen") -> Future[Verdict]:
            future = super().submit(problem, plan, tier)
            if tier == "audit":
                refused = dataclasses.replace(
                    future.result(), status="cheating", timing=None, speedup={}
                )
                future = Future()
                future.set_result(refused)
            return future

    every = dataclasses.replace(TINY.environment, audit_every=1)
    config = dataclasses.replace(TINY, environment=every)
    honest = training(tmp_path / "a", config)
    rules = Rules(1, rewards.milestone)
    played, _ = play(honest.learner.builtin, list(problems(3)) * 4, honest.source, rules)
    found = ppo_stage.audits(honest, "warmup", 0, played)
    assert found["audits"] > 0 and found["audit_disagreements"] == 0
    found = ppo_stage.audits(training(tmp_path / "b", config, Hole()), "warmup", 0, played)
    assert found["audit_disagreements"] == found["audits"] > 0


# --- rejection ----------------------------------------------------------------------------------


def _told(*names: str, reward: float) -> Trajectory:
    problem = problems(1)[0]
    space = problem.space
    by_name = {"a": space.default(), "b": next(space.neighbours(space.default()))}
    steps = []
    for name in names:
        verdict = simulated.verdict(problem, by_name[name])
        steps.append(Step(apply_plan(by_name[name]), verdict.status, verdict, verdict.feedback))
    return rollouts.retold(model(), problem, steps, reward)


def test_rejection_drops_failures_and_loops() -> None:
    good, loop, bad = _told("a", "b", reward=1), _told("a", "a", reward=3), _told("b", reward=-1)
    kept, counts = rejection.select([good, loop, bad], 0.0)
    assert kept == [good]
    assert counts == {
        "episodes": 3.0, "kept": 1.0, "low_reward": 1.0, "loop": 1.0, "nothing_chosen": 0.0,
    }


def test_episode_files_come_back_as_they_were_and_say_what_is_wrong(tmp_path: Path) -> None:
    room = training(tmp_path)
    rules = ppo_stage.rules_of(room, 3, seed=1)
    played, _ = play(room.learner.builtin, room.problems, room.source, rules)
    path = tmp_path / "e.jsonl.gz"
    episodes.write(path, played)
    back = list(episodes.read(room, path))
    for a, b in zip(played, back, strict=True):
        assert (a.ids, a.chosen, a.allowed, a.reward) == (b.ids, b.chosen, b.allowed, b.reward)
    damaged = tmp_path / "d.jsonl"
    damaged.write_text('{"problem": "0", "steps": []}\n{"steps": []}\n')
    with pytest.raises(SettingsError, match=r"d.jsonl, line 2: expected an episode.*problem"):
        list(episodes.read(room, damaged))


# --- whole runs ---------------------------------------------------------------------------------

_RUN = """
import sys, torch
sys.path.insert(0, sys.argv[2])
from test_training_stages import TINY, whole
torch.set_num_threads(1)
whole(sys.argv[1])
"""


def whole(folder: str, config: Config = TINY) -> Path:
    """A run on made-up problems, in this process."""
    made = problems(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            running, "load_problems",
            lambda environment, paths, **_: made[3:] if "held" in paths else made,
        )
        data = configs.Data(problems=("made",), validation=("held",))
        return train(dataclasses.replace(config, data=data), folder, cache=Path(folder) / "cache")


def test_kill_9_at_any_moment_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed many times in every stage and continued: same weights, same metrics."""
    undisturbed = whole(str(tmp_path / "whole"))
    want = (undisturbed / "model.safetensors").read_bytes()
    folder = tmp_path / "killed"
    environment = {**os.environ, "CUDA_AGENT_TEST_SAVE": "0"}
    kills, wait = 0, 0.05
    while True:
        process = subprocess.Popen(
            [sys.executable, "-c", "from cuda_agent.training import run\n"
             f"run.SAVE_EVERY_S = 0.0{_RUN}", str(folder), str(Path(__file__).parent)],
            env=environment,
        )
        before = _lines(folder)
        deadline = time.monotonic() + 60
        while process.poll() is None and _lines(folder) < before + 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(wait)
        wait = (wait * 7) % 0.3
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        if process.wait() == 0:
            break
    assert kills >= 3
    assert (folder / "model" / "model.safetensors").read_bytes() == want
    timeless = [
        [{k: v for k, v in line.items() if not k.endswith(("_s", "seconds"))}
         for line in read(root / "metrics.jsonl")]
        for root in (tmp_path / "whole", folder)
    ]
    assert timeless[0] == timeless[1]


def _lines(folder: Path) -> int:
    """What there is of a run: metrics and episode files."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().count("\n") if path.exists() else 0
    return lines + len(list((folder / "episodes").glob("*.gz")))


def test_a_finished_run_is_left_alone_and_another_config_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    made = whole(str(folder))
    before = {p: p.stat().st_mtime_ns for p in folder.glob("checkpoints/*")}
    assert before and whole(str(folder)) == made
    assert before == {p: p.stat().st_mtime_ns for p in folder.glob("checkpoints/*")}
    with pytest.raises(SettingsError, match=r"another config \(seed differs\)"):
        whole(str(folder), dataclasses.replace(TINY, seed=1))
    assert Builtin.load(made).model.config.hidden_size == TINY.model.width


def test_stages_keep_their_order(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="value follows rejection, which is not finished"):
        training(tmp_path).start("value")
    alone = dataclasses.replace(TINY, stages=("warmup",))
    with pytest.raises(SettingsError, match="stage value is not among the config's stages"):
        train(alone, tmp_path, ["value"], cache=tmp_path)


def test_the_page_shows_curves_and_alarms(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY.to_json()))
    assert "No step is done yet" in page.render(tmp_path)
    metrics = Metrics(tmp_path)
    for step in (1, 2, 3):
        metrics.write("warmup", step, {
            "reward": step / 2, "explained_variance": math.nan, "seconds": 1.0,
            "audits": 1.0, "audit_disagreements": 1.0,
        })
    metrics.close()
    text = page.render(tmp_path)
    assert "warmup: 3 steps" in text and "3 audits disagreed" in text
    assert "Simulated" in text and text.count("<svg") == 1, "nothing is drawn of NaN alone"


def test_lines_of_metrics_behind_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    for step in (1, 2, 3):
        metrics.write("value", step, {"loss": 1.0})
    with open(metrics.path, "a") as file:
        file.write('{"stage": "val')  # cut by a kill
    metrics.resume("value", 1)
    assert [line["step"] for line in read(metrics.path)] == [1]
    metrics.write("value", 2, {"loss": math.inf})
    assert [line["loss"] for line in read(metrics.path)] == [1.0, None]
