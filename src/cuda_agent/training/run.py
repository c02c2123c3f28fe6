"""A training run in its folder: what the stages share, and the order in which they run.

    DIR/config.json                 what it was started with; another config is refused
    DIR/metrics.jsonl, tensorboard/ see metrics.py
    DIR/checkpoints/                see checkpoints.py
    DIR/episodes/                   see episodes.py
    DIR/model/                      the trained model, when the last stage is done
    DIR/report.html                 learning curves, after every stage

A run that was killed continues with the same command, and ends with the same weights as one that
was not: each step draws from a seed of its own, and a step that was cut off is taken again.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.policies.builtin import Builtin, Critic, shipped
from cuda_agent.policies.builtin import Config as ModelConfig
from cuda_agent.records import content_hash
from cuda_agent.store import hold_file, write_file
from cuda_agent.training.checkpoints import Checkpoints, Position
from cuda_agent.training.config import STAGES, Config, from_json
from cuda_agent.training.learner import Learner
from cuda_agent.training.metrics import Metrics
from cuda_agent.training.sources import Source, load_problems, open_source
from cuda_agent.training.tasks import TrainingProblem

SAVE_EVERY_S = 20.0
"""Steps are saved when so long has passed since the last were; a kill costs no more."""


class Observer(Protocol):
    """Is told how far it is."""

    def say(self, text: str) -> None: ...

    def step(self, stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None: ...


class Silent:
    """Observer that says nothing."""

    def say(self, text: str) -> None:
        pass

    def step(self, stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        pass


@dataclass
class Training:
    """What a stage works with."""

    config: Config
    root: Path
    learner: Learner
    problems: Sequence[TrainingProblem]
    validation: Sequence[TrainingProblem]
    source: Source
    metrics: Metrics
    checkpoints: Checkpoints
    observer: Observer

    def seed(self, *parts: object) -> int:
        """For one purpose, from the run's seed."""
        return int(content_hash(self.config.seed, *parts), 16) % 2**63

    def draw(self, count: int, distinct: int, *parts: object) -> list[TrainingProblem]:
        """`count` problems at random, of at most `distinct` different ones (0: one for each)."""
        rng = random.Random(self.seed("problems", *parts))
        different = [rng.choice(self.problems) for _ in range(distinct or count)]
        return [different[i % len(different)] for i in range(count)]

    def start(self, stage: str) -> None:
        """The weights are those that the stage begins with. Raises SettingsError when the stage
        before it is not finished."""
        before = [s for s in self.config.stages if STAGES.index(s) < STAGES.index(stage)]
        if before:
            found = self.checkpoints.newest(before[-1], self.learner.device)
            if found is None or not found[0].finished:
                raise SettingsError(
                    f"stage {stage} follows {before[-1]}, which is not finished; run --stage "
                    f"{before[-1]} first, or --stage all."
                )
            self.learner.load_model(found[1])

    def advance(
        self, stage: str, total: int, step: Callable[[int], Mapping[str, float]], *,
        unit: int = 1, actor_lr: float | None = None, critic_lr: float | None = None,
    ) -> None:
        """Takes what is left of `total` steps. `step(i)` changes the weights and returns metrics;
        it may remember something of the steps before it within `unit` steps, no longer. The
        learning rates are those of the config's [ppo] unless given."""
        self.start(stage)
        self.learner.begin(actor_lr, critic_lr)
        done = 0
        if (own := self.checkpoints.newest(stage, self.learner.device)) is not None:
            self.learner.load(own[1])
            done = own[0].step
        self.metrics.resume(stage, done)
        saved = time.monotonic()
        for i in range(done, total):
            start = time.perf_counter()
            values = {**step(i), "seconds": 0.0}
            values["seconds"] = time.perf_counter() - start
            self.metrics.write(stage, i + 1, values)
            self.observer.step(stage, i + 1, total, values)
            late = time.monotonic() - saved > SAVE_EVERY_S
            if i + 1 < total and late and (i + 1) % unit == 0:
                self.checkpoints.save(Position(stage, i + 1, False), self.learner.state())
                saved = time.monotonic()
        self.checkpoints.save(Position(stage, total, True), self.learner.state())


def train(
    config: Config, root: str | Path, stages: Sequence[str] = (), *, cache: Path,
    observer: Observer | None = None,
) -> Path:
    """Runs `stages` (default: all of the config's) in `root`, or what is left of them.

    Returns the folder of the trained model. Raises SettingsError, ProblemError, TargetUnavailable,
    and OutputError when `root` cannot be written; what was done is kept then.
    """
    from cuda_agent.training import agentic, page, rejection, value, warmup

    run = {"warmup": warmup.run, "rejection": rejection.run, "value": value.run,
           "agentic": agentic.run}
    folder = Path(root)
    tell = observer or Silent()
    wanted = list(stages or config.stages)
    if missing := [stage for stage in wanted if stage not in config.stages]:
        raise SettingsError(f"stage {missing[0]} is not among the config's stages.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        raise OutputError(f"{folder} cannot be written ({error.strerror or error}).") from error
    with hold_file(folder / "lock", f"the run in {folder}"):
        _same_config(config, folder)
        tell.say("reading problems")
        with open_source(config.environment, cache=cache, seed=config.seed) as source:
            training = _open(config, folder, source, cache, tell)
            try:
                for stage in wanted:
                    if not training.checkpoints.finished(stage):
                        run[stage](training)
                        page.write(folder)
            finally:
                training.metrics.close()
            last = training.checkpoints.newest(config.stages[-1], training.learner.device)
            if last is not None and last[0].finished:
                training.learner.load_model(last[1])
                training.learner.builtin.save(folder / "model")
    return folder / "model"


def _open(
    config: Config, folder: Path, source: Source, cache: Path, observer: Observer
) -> Training:
    data, environment = config.data, config.environment
    problems = load_problems(environment, data.problems, cache=cache, limit=data.limit)
    validation: list[TrainingProblem] = []
    if data.validation:
        validation = load_problems(environment, data.validation, cache=cache)
        held = {p.problem.hash for p in validation}
        problems = [p for p in problems if p.problem.hash not in held]
        if not problems:
            raise SettingsError("every problem to train on is also one to validate on.")
    observer.say(f"{len(problems)} problems to train on, {len(validation)} to validate on")
    device = torch.device(_device(config.model.device))
    return Training(
        config, folder, Learner(_model(config), config, device), problems, validation, source,
        Metrics(folder), Checkpoints(folder), observer,
    )


def _model(config: Config) -> Builtin:
    settings = config.model
    critic: Critic = "separate" if settings.critic == "separate" else "shared"
    if settings.path:
        return Builtin.load(settings.path, critic, settings.lora_rank)
    heads = settings.heads
    return Builtin.untrained(
        config.seed,
        ModelConfig(
            vocab_size=len(shipped()), hidden_size=settings.width,
            intermediate_size=3 * settings.width, num_hidden_layers=settings.layers,
            num_attention_heads=heads, num_key_value_heads=max(1, heads // 2),
        ),
        critic=critic,
    )


def _device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise SettingsError(f"model.device is {name!r}, but torch finds no GPU; use 'cpu'.")
    return name


def _same_config(config: Config, folder: Path) -> None:
    path = folder / "config.json"
    if not path.exists():
        write_file(path, (json.dumps(config.to_json(), indent=1) + "\n").encode())
        return
    try:
        old = from_json(json.loads(path.read_text(encoding="utf-8")), str(path))
    except ValueError as error:
        raise SettingsError(f"{path} is damaged ({error}); choose another --out.") from error
    if old.hash == config.hash:
        return
    key = next(k for k, v in _flat(config.to_json()) if dict(_flat(old.to_json())).get(k) != v)
    raise SettingsError(
        f"{folder} holds a run with another config ({key} differs); choose another --out, or "
        "delete it."
    )


def _flat(data: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    for name, value in data.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}.")
        else:
            found.append((prefix + name, json.dumps(value)))
    return found
