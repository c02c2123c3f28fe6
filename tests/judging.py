"""Judges that tests share: importing torch in a contestant takes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.problems import materialize
from cuda_agent.records import Problem


class Judges:
    """One judge for each problem and settings, one pool of contestants for each target; the eager
    baseline alone."""

    def __init__(self, cache: Path, threads: int = 1) -> None:
        self._cache = cache
        self._threads = threads
        self._pools: dict[str, Pool] = {}
        self._judges: dict[tuple[str, str], Judge] = {}

    def get(self, problem: Problem, target: str = "cpu", **settings: Any) -> Judge:
        asked = Settings(
            target=target, baselines=("eager",), threads=self._threads, time_limit_s=0.2, **settings
        )
        key = problem.hash, asked.key
        if key not in self._judges:
            if target not in self._pools:
                limit = 12 << 30 if target == "cpu" else None
                self._pools[target] = Pool(target, self._threads, limit)
            instance = materialize(problem, target)
            self._judges[key] = Judge(
                problem, instance, asked, cache_dir=self._cache, pool=self._pools[target]
            )
        return self._judges[key]

    def close(self) -> None:
        for made in self._judges.values():
            made.close()
        for pool in self._pools.values():
            pool.close()
