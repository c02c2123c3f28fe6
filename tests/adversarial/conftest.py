"""Judges are shared by all exhibits of one kind: importing torch in a contestant takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from museum import Exhibit

from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.problems import materialize

Curator = Callable[[Exhibit], Judge]


@pytest.fixture(scope="session")
def judge_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Curator]:
    """judge_of(exhibit): a judge of its problem, with the eager baseline only."""
    cache: Path = tmp_path_factory.mktemp("museum")
    pools: dict[str, Pool] = {}
    judges: dict[tuple[object, ...], Judge] = {}

    def judge(exhibit: Exhibit) -> Judge:
        target, problem = exhibit.target, exhibit.problem
        key = target, problem.hash, exhibit.track, exhibit.precision, exhibit.tier
        if key not in judges:
            if target not in pools:
                limit = 12 << 30 if target == "cpu" else None
                pools[target] = Pool(target, threads=1, memory_limit=limit)
            settings = Settings(
                target=target, track=exhibit.track, precision=exhibit.precision, tier=exhibit.tier,
                baselines=("eager",), threads=1, deadline_s=5.0, compile_deadline_s=20.0,
                time_limit_s=0.2,
            )
            judges[key] = Judge(
                problem, materialize(problem, target), settings, cache_dir=cache,
                pool=pools[target],
            )
        return judges[key]

    yield judge
    for made in judges.values():
        made.close()
    for pool in pools.values():
        pool.close()
