"""Contestant processes are shared by the tests of this folder: importing torch takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import evaluation_simulated
import pytest

from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.evaluation.reference import CheckedSet, Reference
from cuda_agent.problems import materialize
from cuda_agent.records import Problem


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool("cpu", threads=1, memory_limit=12 << 30) as made:
        yield made


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def judge_for(pool: Pool, cache_dir: Path) -> Iterator[Callable[..., Judge]]:
    """judge_for(problem, **settings): a judge with the eager baseline only, on the CPU."""
    made: list[Judge] = []

    def make(problem: Problem, **changes: Any) -> Judge:
        fields = {"target": "cpu", "baselines": ("eager",), "threads": 1, "deadline_s": 8.0}
        settings = Settings(**{**fields, **changes})
        instance = materialize(problem, "cpu")
        made.append(Judge(problem, instance, settings, cache_dir=cache_dir, pool=pool))
        return made[-1]

    yield make
    for judge in made:
        judge.close()


@pytest.fixture(scope="session")
def reference() -> Reference:
    """Of the problem that the simulated entrants of a race solve."""
    return Reference(evaluation_simulated.INSTANCE, "strict")


@pytest.fixture(scope="session")
def sets(reference: Reference) -> list[CheckedSet]:
    made = [reference.draw() for _ in range(3)]
    return [m for m in made if m is not None]
