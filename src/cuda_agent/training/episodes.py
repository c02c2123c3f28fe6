"""Episodes in files: what the warmed-up model plays for rejection fine-tuning and for the critic,
and what other policies have played.

    DIR/episodes/00000.jsonl.gz     one episode a line:
    {"problem": HASH, "steps": [{"call": {...}, "status": "ok", "verdict": {...}, "detail": ""}],
     "submitted": false}
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.policies import Step, ToolCall
from cuda_agent.policies.base import SUBMIT
from cuda_agent.records import Verdict
from cuda_agent.store import write_file
from cuda_agent.training import ppo_stage, rollouts
from cuda_agent.training.rollouts import Trajectory
from cuda_agent.training.run import Training


def collect(training: Training) -> list[Trajectory]:
    """The run's own episodes: those in its files, and the rest played by the model as it is now."""
    settings = training.config.rejection
    turns = training.config.environment.turns
    folder = training.root / "episodes"
    made: list[Trajectory] = []
    for i, first in enumerate(range(0, settings.episodes, settings.chunk)):
        path = folder / f"{i:05d}.jsonl.gz"
        if path.exists():
            made += list(read(training, path))
            continue
        count = min(settings.chunk, settings.episodes - first)
        drawn = training.draw(count, 0, "episodes", i)
        rules = ppo_stage.rules_of(training, turns, seed=training.seed("episodes", i))
        played, _ = rollouts.play(training.learner.builtin, drawn, training.source, rules)
        write(path, played)
        made += played
        done = first + count
        training.observer.step(
            "sampling", done, settings.episodes, ppo_stage.summary(played)
        )
    return made


def foreign(training: Training) -> list[Trajectory]:
    """Those of the files in `rejection.extra`. Raises SettingsError for one that is none."""
    return [t for name in training.config.rejection.extra for t in read(training, Path(name))]


def write(path: Path, episodes: Sequence[Trajectory]) -> None:
    """Raises OutputError."""
    text = "".join(json.dumps(_line(episode), separators=(",", ":")) + "\n" for episode in episodes)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, gzip.compress(text.encode(), 6, mtime=0))
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error}).") from error


def read(training: Training, path: Path) -> Iterator[Trajectory]:
    """Episodes on problems that the run does not train on, or with a plan that is not in their
    problem's space, are left out. Raises SettingsError for a file that holds no episodes."""
    known = {p.problem.hash: p for p in training.problems}
    builtin = training.learner.builtin
    rules = ppo_stage.rules_of(training, turns=1, seed=0)
    line = 0
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            for text in file:
                line += 1
                data = json.loads(text)
                problem = known.get(data["problem"])
                if problem is None:
                    continue
                steps = [_step(step) for step in data["steps"]]
                reward = rollouts.grade(steps, rules.reward, rules.outcome)
                if data.get("submitted"):
                    steps.append(Step(SUBMIT, "submitted"))
                try:
                    yield rollouts.retold(builtin, problem, steps, reward)
                except (SettingsError, ValueError):  # not in the space or not the model's language
                    continue
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise SettingsError(
            f"{path}, line {line}: expected an episode as `cuda-agent episodes export` writes "
            f"it ({type(error).__name__}: {error})."
        ) from error


def _line(episode: Trajectory) -> dict[str, Any]:
    return {
        "problem": episode.problem.problem.hash,
        "steps": [
            {
                "call": step.call.to_json(), "status": step.status, "detail": step.detail,
                "verdict": None if step.verdict is None else step.verdict.to_json(),
            }
            for step in episode.steps
        ],
        "submitted": episode.submitted,
    }


def _step(data: dict[str, Any]) -> Step:
    verdict = data.get("verdict")
    return Step(
        ToolCall.from_json(data["call"]), data["status"],
        None if verdict is None else Verdict.from_json(verdict), data.get("detail", ""),
    )
