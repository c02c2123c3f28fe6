"""The judge in the caller's own process and thread; the only worker for live modules."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.evaluation.apart import Compiled, Examined, compile_only, examine
from cuda_agent.problems import Instance
from cuda_agent.records import Candidate, Problem, Verdict


class InlineWorker:
    """Same arguments as Judge, which is at `.judge`. `submit` judges at once, in the caller."""

    def __init__(
        self, problem: Problem, instance: Instance, settings: Settings, *,
        cache_dir: str | Path, baseline_cache: str | Path | None = None, pool: Pool | None = None,
    ) -> None:
        self.judge = Judge(
            problem, instance, settings,
            cache_dir=cache_dir, baseline_cache=baseline_cache, pool=pool,
        )

    def evaluate(self, candidate: Candidate) -> Verdict:
        return self.judge.judge(candidate)

    def submit(self, candidate: Candidate) -> Future[Verdict]:
        future: Future[Verdict] = Future()
        try:
            future.set_result(self.evaluate(candidate))
        except Exception as error:
            future.set_exception(error)
        return future

    def compile_only(self, candidate: Candidate) -> Compiled:
        return compile_only(self.judge, candidate)

    def examine(self, candidate: Candidate, counters: bool, memory: bool) -> Examined:
        return examine(self.judge, candidate, counters, memory)

    def close(self) -> None:
        self.judge.close()

    def __enter__(self) -> InlineWorker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
