"""Problems to train on, each with what a policy may know of it: captured once, then cached."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuda_agent.agents.planner import Planner
from cuda_agent.errors import CaptureError, ProblemError, SettingsError
from cuda_agent.policies import PlanSpace, Task
from cuda_agent.problems import dataset_problems, load_problem, materialize, suite_problems
from cuda_agent.records import Problem, content_hash
from cuda_agent.store import write_file
from cuda_agent.targets import DeviceFacts

_FORMAT = 1  # of the cached files


@dataclass(frozen=True)
class TrainingProblem:
    """A problem and its task: regions, plan space, device."""

    problem: Problem
    task: Task

    @property
    def space(self) -> PlanSpace:
        return self.task.space


def load_tasks(
    paths: Sequence[str], facts: DeviceFacts, *, cache: Path, space_limit: int = 0,
    limit: int = 0, device: str = "cpu",
) -> list[TrainingProblem]:
    """Problems with at least two plans, in the order of `paths`, equal ones once.

    A problem that torch.export cannot capture or that leaves no choice is skipped. The graph is
    captured at the first call and found in `cache` later. `space_limit`: see `narrow`.

    Raises: ProblemError for a path that holds no problem; SettingsError when nothing is left.
    """
    size = "gpu" if facts.target == "cuda" and device != "cpu" else "cpu"
    found: dict[str, TrainingProblem] = {}
    for problem in read_problems(paths, size):
        if limit and len(found) >= limit:
            break
        task = _task(problem, facts, cache, device)
        if task is None:
            continue
        if space_limit:
            space = narrow(task.space, space_limit, task.regions, problem.hash)
            task = dataclasses.replace(task, space=space)
        if len(task.space) > 1:
            found.setdefault(problem.hash, TrainingProblem(problem, task))
    if not found:
        raise SettingsError(f"no problem in {', '.join(paths)} leaves a policy any choice.")
    return list(found.values())


def narrow(
    space: PlanSpace, limit: int, regions: Mapping[str, Mapping[str, Any]], seed: str
) -> PlanSpace:
    """A product space inside `space` of at most `limit` plans (and at least the default), so that
    every plan of it can be measured and its best one is known.

    Options are admitted one at a time in a random order that `seed` settles, regions that move
    many bytes twice as often as others; those that would exceed the limit are left out. The order
    of what stays, and so the default, is kept.
    """
    if len(space) <= limit:
        return space
    rng = random.Random(f"narrow-{seed}")
    heavy = max((int(r["bytes_moved"]) for r in regions.values()), default=0)
    wanted: list[tuple[float, tuple[str, ...], int]] = []
    for path, options in _knobs(space):
        weight = 2.0 if path[0] and int(regions[path[0]]["bytes_moved"]) * 4 > heavy else 1.0
        wanted += [(rng.random() / weight, path, i) for i in range(1, len(options))]
    kept: dict[tuple[str, ...], set[int]] = {path: {0} for path, _ in _knobs(space)}
    current = _restrict(space, kept)
    for _, path, index in sorted(wanted):
        kept[path].add(index)
        larger = _restrict(space, kept)
        if len(larger) <= limit:
            current = larger
        else:
            kept[path].discard(index)
    return current


def _knobs(space: PlanSpace) -> Iterator[tuple[tuple[str, ...], Sequence[Any]]]:
    """("", choice), (region, ), and (region, skill, knob), each with its options."""
    for name, options in space.graph.items():
        yield ("", name), options
    for region, skills in space.regions.items():
        yield (region,), list(skills)
        for skill, knobs in skills.items():
            for name, options in knobs.items():
                yield (region, skill, name), options


def _restrict(space: PlanSpace, kept: Mapping[tuple[str, ...], set[int]]) -> PlanSpace:
    def some(path: tuple[str, ...], options: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(option for i, option in enumerate(options) if i in kept[path])

    return PlanSpace(
        {name: some(("", name), options) for name, options in space.graph.items()},
        {
            region: {
                skill: {n: some((region, skill, n), o) for n, o in skills[skill].items()}
                for skill in some((region,), list(skills))
            }
            for region, skills in space.regions.items()
        },
    )


def read_problems(paths: Sequence[str], size: str) -> Iterator[Problem]:
    """Those at `paths`, see config.Data; `size` as load_problem takes it. Raises ProblemError."""
    for text in paths:
        path = Path(text)
        if path.suffix == ".parquet":
            yield from dataset_problems(path)
        elif text == "ours" or path.is_dir():
            for file in suite_problems(text):
                yield load_problem(str(file), size=size)
        else:
            yield load_problem(text, size=size)


def _task(problem: Problem, facts: DeviceFacts, cache: Path, device: str) -> Task | None:
    """None where the problem cannot be captured, which is remembered as well."""
    key = content_hash(problem.hash, dataclasses.asdict(facts), _FORMAT)
    file = cache / "tasks" / f"{key}.json"
    if file.exists():
        data = json.loads(file.read_text(encoding="utf-8"))
        return None if data is None else Task.from_json(data)
    try:
        task: Task | None = _captured(problem, facts, device)
    except (CaptureError, ProblemError):
        task = None
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, json.dumps(None if task is None else task.to_json()).encode())
    return task


def _captured(problem: Problem, facts: DeviceFacts, device: str) -> Task:
    instance = materialize(problem, device)
    return Planner.make(instance, facts).task()
