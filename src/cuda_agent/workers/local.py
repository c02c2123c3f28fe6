"""A pool of processes on this machine, each with a judge of its own.

One thread for each process hands it candidates and waits. A process that dies takes nothing with
it: its candidate goes to a new process, once; dying again makes a `harness_error`. Verdicts are
timed, so more processes than idle cores (or one for each GPU) only help while they compile.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from cuda_agent.errors import HarnessError, ProblemError, SettingsError, TargetUnavailable
from cuda_agent.evaluation import Settings
from cuda_agent.records import Candidate, Problem, Verdict

_ATTEMPTS = 2
_USER_ERRORS = {e.__name__: e for e in (ProblemError, TargetUnavailable, SettingsError)}
_STARTING = threading.Lock()  # the environment is changed while a process starts
_Job = tuple[Candidate, "Future[Verdict]"]


class Child:
    """A process of ours behind a pipe, for one thread. It starts with the first question, and a new
    one takes the place of one that died.

    Args:
        work: function of a module, called in the process with its end of the pipe and `args`; it
            answers what it receives until the other end hangs up.
    """

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        self._work = work
        self._args = args
        self._pipe: Connection | None = None
        self.process: multiprocessing.process.BaseProcess | None = None

    def ask(self, question: Any) -> Any:
        """The answer. A process that dies over it takes nothing with it: a new one is asked, once;
        dying again raises HarnessError."""
        for attempt in range(_ATTEMPTS):
            try:
                pipe = self._pipe = self._pipe or self._spawn()
                pipe.send(question)
                return pipe.recv()
            except (EOFError, OSError) as error:
                self.close()
                if attempt == _ATTEMPTS - 1:
                    name = type(error).__name__
                    raise HarnessError(f"the worker died {_ATTEMPTS} times ({name})") from error
        raise AssertionError("unreachable")

    def _spawn(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=self._work, args=(theirs, *self._args), daemon=False
        )
        with _STARTING, _environment(OMP_WAIT_POLICY="passive"):
            process.start()
        theirs.close()
        self.process = process
        return ours

    def close(self) -> None:
        """Hang up; the process ends by itself when it reads the end, and is ended if not."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self.process is not None:
            self.process.join(30)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()
        self.process = None


def failure(answer: dict[str, Any]) -> Exception:
    """What a child's {"error": class name, "text": message} stands for: the user's errors as they
    were, everything else a HarnessError."""
    kind: type[Exception] = _USER_ERRORS.get(answer["error"], HarnessError)
    return kind(answer["text"])


class LocalPool:
    """`workers` judges of one problem. `submit` from any thread.

    Raises SettingsError for a live module, which no other process can hold.
    """

    def __init__(
        self, problem: Problem, settings: Settings, *,
        cache_dir: str | Path, workers: int = 2, seed: int = 0,
    ) -> None:
        if problem.kind == "live":
            raise SettingsError(
                f"{problem.name} is a live module and lives in one process only; use InlineWorker"
            )
        if workers < 1:
            raise SettingsError(f"a pool needs at least one worker, not {workers}")
        self._problem, self._settings = problem, settings
        data = (problem.to_json(), asdict(settings), str(cache_dir), seed)
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._closed = False
        self._children = [Child(_work, *data) for _ in range(workers)]
        self._threads = [
            threading.Thread(target=self._serve, args=(child,), daemon=True)
            for child in self._children
        ]
        for thread in self._threads:
            thread.start()

    @property
    def processes(self) -> list[multiprocessing.process.BaseProcess | None]:
        """Those that run, None where one has not started."""
        return [child.process for child in self._children]

    def evaluate(self, candidate: Candidate) -> Verdict:
        return self.submit(candidate).result()

    def submit(self, candidate: Candidate) -> Future[Verdict]:
        if self._closed:
            raise HarnessError("the pool is closed")
        future: Future[Verdict] = Future()
        self._jobs.put((candidate, future))
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the processes."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _serve(self, child: Child) -> None:
        while (job := self._jobs.get()) is not None:
            candidate, future = job
            if not future.set_running_or_notify_cancel():
                continue
            start = time.perf_counter()
            try:
                answer = child.ask(candidate.to_json())
            except HarnessError as error:
                seconds = time.perf_counter() - start
                future.set_result(
                    lost(self._problem, candidate.hash, self._settings, str(error), seconds)
                )
                continue
            if "verdict" in answer:
                future.set_result(Verdict.from_json(answer["verdict"]))
            else:
                future.set_exception(failure(answer))
        child.close()


def lost(
    problem: Problem, candidate_hash: str, settings: Settings, why: str, seconds: float = 0.0
) -> Verdict:
    """The verdict where none could be had: our failure, never charged to the candidate."""
    return Verdict(
        status="harness_error", problem=problem.name, problem_hash=problem.hash,
        candidate_hash=candidate_hash, target=settings.target, tier=settings.tier,
        track=settings.track, precision=settings.precision, dtype=problem.dtype,
        feedback=why, seconds={"total": seconds},
    )


@contextlib.contextmanager
def _environment(**values: str) -> Any:
    """Variables that a child reads before it imports torch; ours stay as they are."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({n: os.environ.get(n, v) for n, v in values.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


def _work(
    pipe: Connection, problem_json: dict[str, Any], settings_json: dict[str, Any],
    cache_dir: str, seed: int,
) -> None:
    """The worker's process: build the problem once, then judge until the other end hangs up."""
    from cuda_agent import targets
    from cuda_agent.evaluation import Judge
    from cuda_agent.problems import materialize

    problem = Problem.from_json(problem_json)
    settings = Settings(**settings_json)
    judge: Judge | None = None
    try:
        while True:
            try:
                candidate = Candidate.from_json(pipe.recv())
            except (EOFError, OSError):
                return
            try:
                if judge is None:
                    device = targets.resolve(settings.target).torch_device()
                    instance = materialize(problem, device, seed=seed)
                    judge = Judge(problem, instance, settings, cache_dir=cache_dir)
                answer: dict[str, Any] = {"verdict": judge.judge(candidate).to_json()}
            except Exception as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            with contextlib.suppress(OSError):  # nobody is left who asked; the next recv ends it
                pipe.send(answer)
    finally:
        if judge is not None:
            judge.close()
