"""Plans answered by the judge on real hardware, by processes that keep some problems open each.

Opening a problem (building it, capturing its graph, measuring its baselines the first time) costs
seconds, a verdict on an open one a fraction of that. So a process first serves what waits for its
open problems, then the problem that waits longest and is open nowhere, and helps others out only
where much waits. Every verdict is kept on disk: the same candidate is never measured twice under
the same settings on the same device, whatever plan leads to it and whichever run asks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cuda_agent import targets
from cuda_agent.agents.planner import Planner
from cuda_agent.errors import CandidateError, HarnessError, SettingsError
from cuda_agent.evaluation import Judge, Pool, Settings, contestant_pool, shares_contestants
from cuda_agent.policies import Plan, plan_key
from cuda_agent.problems import materialize
from cuda_agent.records import Candidate, Problem, Verdict, content_hash
from cuda_agent.training.tasks import TrainingProblem
from cuda_agent.workers.local import Child, failure, lost

OPEN_PROBLEMS = 3
"""Of one process. Each holds a judge, its inputs on the device, and two or three contestants."""

BASELINES = ("eager", "compile_default")  # what the rewards compare with
_HELP_FROM = 8  # waiting plans of a problem at which a second process opens it

# Of Target.environment(): what changes without the measurements becoming others.
_VOLATILE = {"sm_clock_mhz", "python", "system", "threads"}


@dataclass
class _Job:
    problem: Problem
    plan: Plan
    tier: str
    future: Future[Verdict]


class LiveSource:
    """`submit` from any thread; answers come from `workers` processes, in any order.

    A plan that its skill cannot write is a "compile_error" with an empty candidate hash. A problem
    that cannot be built raises ProblemError from the future. Asking for a plan again gives the same
    future, unless it ended in a failure of our own.

    Raises: TargetUnavailable, SettingsError.
    """

    label = "live"

    def __init__(
        self, settings: Settings, *, cache: Path, workers: int = 1,
        open_problems: int = OPEN_PROBLEMS, seed: int = 0,
    ) -> None:
        targets.resolve(settings.target)
        if workers < 1:
            raise SettingsError(f"live judging needs at least one worker, not {workers}.")
        self.settings = dataclasses.replace(settings, baselines=BASELINES)
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[_Job]] = {}
        self._opened: list[list[str]] = [[] for _ in range(workers)]
        self._open_problems = open_problems
        self._asked: dict[tuple[str, str, str], Future[Verdict]] = {}
        self._closed = False
        data = (asdict(self.settings), str(cache), open_problems, seed)
        self._threads = [
            threading.Thread(target=self._serve, args=(i, Child(_work, *data)), daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Future[Verdict]:
        full = problem.space.complete(plan)
        key = problem.problem.hash, tier, plan_key(full)
        with self._changed:
            if self._closed:
                raise HarnessError("the source of live verdicts is closed")
            held = self._asked.get(key)
            if held is not None and not _failed(held):
                return held
            future = self._asked[key] = Future()
            job = _Job(problem.problem, full, tier, future)
            self._waiting.setdefault(problem.problem.hash, deque()).append(job)
            self._changed.notify_all()
        return future

    def close(self) -> None:
        """Cancels what waits, and lets what is being judged come to its end."""
        with self._changed:
            self._closed = True
            for jobs in self._waiting.values():
                for job in jobs:
                    job.future.cancel()
                    job.future.set_running_or_notify_cancel()  # wakes who waits for it
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> LiveSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- one thread for each process ------------------------------------------------------------

    def _serve(self, index: int, child: Child) -> None:
        while (job := self._next(index)) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                answer = child.ask((job.problem.to_json(), job.plan, job.tier))
            except HarnessError as error:
                asked = dataclasses.replace(self.settings, tier=job.tier)  # type: ignore[arg-type]
                job.future.set_result(lost(job.problem, "", asked, str(error)))
                continue
            if "verdict" in answer:
                job.future.set_result(Verdict.from_json(answer["verdict"]))
            else:
                job.future.set_exception(failure(answer))
        child.close()

    def _next(self, index: int) -> _Job | None:
        """The job that this process takes next, waited for; None when all is over."""
        with self._changed:
            while not self._closed:
                problem = self._choose(index)
                if problem is not None:
                    jobs = self._waiting[problem]
                    job = jobs.popleft()
                    if not jobs:
                        del self._waiting[problem]
                    opened = [problem, *(p for p in self._opened[index] if p != problem)]
                    self._opened[index] = opened[: self._open_problems]
                    return job
                self._changed.wait()
        return None

    def _choose(self, index: int) -> str | None:
        def waits(problem: str) -> int:
            return len(self._waiting[problem])

        mine = [p for p in self._opened[index] if p in self._waiting]
        if mine:
            return max(mine, key=waits)
        elsewhere = {p for opened in self._opened for p in opened}
        for problem in self._waiting:  # in the order in which they came
            if problem not in elsewhere:
                return problem
        much = [p for p in self._waiting if waits(p) >= _HELP_FROM]
        return max(much, key=waits, default=None)


def _failed(future: Future[Verdict]) -> bool:
    if not future.done():
        return False
    return (
        future.cancelled() or future.exception() is not None
        or future.result().status == "harness_error"
    )


# --- in the process -------------------------------------------------------------------------------


def _work(
    pipe: Connection, settings_json: dict[str, Any], cache: str, open_problems: int, seed: int
) -> None:
    """Answers (problem, plan, tier) until the other end hangs up."""
    bench = _Bench(Settings(**settings_json), Path(cache), open_problems, seed)
    with contextlib.closing(bench):
        while True:
            try:
                problem_json, plan, tier = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                problem = Problem.from_json(problem_json)
                answer: dict[str, Any] = {"verdict": bench.verdict(problem, plan, tier).to_json()}
            except Exception as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            with contextlib.suppress(OSError):  # nobody is left who asked; the next recv ends it
                pipe.send(answer)


class _Bench:
    """The problems that this process has open, the least recently used one closed first. Their
    contestants come from one server: importing torch for each would take longer than capturing."""

    def __init__(self, settings: Settings, cache: Path, limit: int, seed: int) -> None:
        self.settings = settings
        self.cache = cache
        self.seed = seed
        self.target = targets.resolve(settings.target)
        self._limit = limit
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._pool: Pool | None = None

    def verdict(self, problem: Problem, plan: Plan, tier: str) -> Verdict:
        if problem.hash not in self._open:
            while len(self._open) >= self._limit:
                self._open.popitem(last=False)[1].close()
            self._open[problem.hash] = _Open(self, problem)
        self._open.move_to_end(problem.hash)
        return self._open[problem.hash].verdict(plan, tier)

    def pool(self, opened: _Open) -> Pool | None:
        if not shares_contestants(opened.planner.instance):
            return None
        self._pool = self._pool or contestant_pool(opened.planner.instance, self.settings)
        return self._pool

    def close(self) -> None:
        for opened in self._open.values():
            opened.close()
        self._open.clear()
        if self._pool is not None:
            self._pool.close()


class _Open:
    """One problem: its plans become candidates here, and each tier has a judge of its own."""

    def __init__(self, bench: _Bench, problem: Problem) -> None:
        self._bench = bench
        self._problem = problem
        instance = materialize(problem, bench.target.torch_device(), seed=bench.seed)
        self.planner = Planner.make(instance, bench.target.facts())
        self._judges: dict[str, Judge] = {}
        self._kept: dict[str, _Kept] = {}

    def verdict(self, plan: Plan, tier: str) -> Verdict:
        settings = dataclasses.replace(self._bench.settings, tier=tier)  # type: ignore[arg-type]
        try:
            candidate = self.planner.assemble(plan)
        except (SettingsError, CandidateError) as error:
            verdict = lost(self._problem, "", settings, str(error))
            return dataclasses.replace(verdict, status="compile_error")
        if tier not in self._kept:
            self._kept[tier] = _Kept(self._file(settings))
        kept = self._kept[tier]
        known = kept.get(candidate.hash)
        return known if known is not None else kept.put(self._judged(candidate, settings))

    def _judged(self, candidate: Candidate, settings: Settings) -> Verdict:
        if settings.tier not in self._judges:
            self._judges[settings.tier] = Judge(
                self._problem, self.planner.instance, settings, cache_dir=self._bench.cache,
                pool=self._bench.pool(self),
            )
        return _light(self._judges[settings.tier].judge(candidate))

    def _file(self, settings: Settings) -> Path:
        environment = self._bench.target.environment()
        device = {k: v for k, v in environment.items() if k not in _VOLATILE}
        folder = self._bench.cache / "verdicts" / content_hash(settings.key, device)
        return folder / f"{self._problem.hash}.jsonl"

    def close(self) -> None:
        for judge in self._judges.values():
            judge.close()


class _Kept:
    """Verdicts of one problem in a file of lines, by candidate. A kill tears the last line at
    most, which is then skipped. Failures of our own are not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, str] = {}
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    self._lines[json.loads(line)["candidate_hash"]] = line

    def get(self, candidate_hash: str) -> Verdict | None:
        line = self._lines.get(candidate_hash)
        return None if line is None else Verdict.from_json(json.loads(line))

    def put(self, verdict: Verdict) -> Verdict:
        if verdict.status != "harness_error":
            line = json.dumps(verdict.to_json(), separators=(",", ":"))
            self._lines[verdict.candidate_hash] = line
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(f"\n{line}\n")  # a torn line before it ends here
        return verdict


def _light(verdict: Verdict) -> Verdict:
    """Without raw samples: there will be thousands."""
    def bare(timing: Any) -> Any:
        return None if timing is None else dataclasses.replace(timing, samples_ms=())

    return dataclasses.replace(
        verdict, timing=bare(verdict.timing),
        baselines={name: bare(timing) for name, timing in verdict.baselines.items()},
    )
