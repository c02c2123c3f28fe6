"""Worker processes for the execution filters: a crash or hang costs one candidate, not the run."""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cuda_agent.errors import HarnessError
from cuda_agent.records import Problem
from cuda_agent.synthesis.filters import Outcome

DEADLINE_S = 120.0  # of one candidate; compiling a large reduction on a busy CPU takes 20
_START_S = 180.0
_JOBS_OF_ONE = 400  # then a fresh process: compiled code is never unloaded


@dataclass(frozen=True)
class Place:
    """Where candidates run. `folder` holds the locks, logs and compilers' caches of this crew."""

    device: str
    window_ms: tuple[float, float]
    threads: int
    folder: Path


class Crew:
    """`workers` processes that share the device: `give` candidates, take their `outcomes`."""

    def __init__(self, place: Place, workers: int, deadline_s: float = DEADLINE_S) -> None:
        self._place, self._deadline_s = place, deadline_s
        self._workers = [_Worker(place, i) for i in range(workers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.kill(patience_s=0.0 if worker.job is not None else 5.0)

    @property
    def idle(self) -> int:
        return sum(worker.job is None for worker in self._workers)

    def give(self, index: int, problem: Problem) -> None:
        """To a worker that is idle."""
        worker = next(w for w in self._workers if w.job is None)
        worker.start(index, problem, self._deadline_s)

    def outcomes(self, timeout_s: float = math.inf) -> Iterator[tuple[int, Outcome]]:
        """(index, outcome) of those that end first; none after the timeout, or if all are idle."""
        busy = {w.connection: w for w in self._workers if w.job is not None}
        if not busy:
            return
        first = min(w.deadline for w in busy.values())
        ready = wait(list(busy), max(0.0, min(timeout_s, first - time.monotonic())))
        for connection, worker in busy.items():
            if connection in ready:
                yield worker.finish()
            elif time.monotonic() >= worker.deadline:
                yield worker.give_up("hang", f"no answer in {self._deadline_s:g} s")


class _Worker:
    def __init__(self, place: Place, number: int) -> None:
        self._place, self._number = place, number
        self._process: BaseProcess | None = None
        self._jobs = 0
        self._idle_deaths = 0
        self.connection: Connection
        self.job: int | None = None
        self.deadline = 0.0

    def start(self, index: int, problem: Problem, deadline_s: float) -> None:
        fresh = self._process is None or self._jobs >= _JOBS_OF_ONE
        if fresh:
            self._spawn()
        self.job, self._jobs = index, self._jobs + 1
        self.deadline = time.monotonic() + deadline_s + (_START_S if fresh else 0.0)
        with suppress(BrokenPipeError):  # finish() sees the end of the file
            self.connection.send(problem.to_json())

    def finish(self) -> tuple[int, Outcome]:
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            process = self._process
            assert process is not None
            process.join(5)
            if self._jobs == 1:  # has this process ever answered?
                self._idle_deaths += 1
                if self._idle_deaths == 5:
                    raise HarnessError(
                        f"worker processes die at once (exit code {process.exitcode}); see "
                        f"{self._log}"
                    ) from None
            return self.give_up("crash", f"exit code {process.exitcode}")
        index, self.job, self._idle_deaths = self.job, None, 0
        assert index is not None
        return index, Outcome(**answer)

    def give_up(self, name: str, detail: str) -> tuple[int, Outcome]:
        index, self.job = self.job, None
        assert index is not None
        self.kill()
        return index, Outcome(name, detail)

    def hang_up(self) -> None:
        """An idle process ends by itself then."""
        if self._process is not None:
            self.connection.close()

    def kill(self, patience_s: float = 0.0) -> None:
        if self._process is not None:
            self.hang_up()
            self._process.join(patience_s)
            self._process.kill()
            self._process.join()
        self._process, self._jobs = None, 0

    @property
    def _log(self) -> Path:
        return self._place.folder / f"worker-{self._number}.log"

    def _spawn(self) -> None:
        self.kill()
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, self._place, self._log))
        self._process.start()
        theirs.close()


def _work(connection: Connection, place: Place, log: Path) -> None:
    """A worker's life: problems in, outcomes out, until the other end is closed."""
    file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(place.folder / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(place.folder / "triton")
    run = _prepare(place)
    while True:
        try:
            data = connection.recv()
        except EOFError:
            return
        connection.send(run(Problem.from_json(data)).to_json())


def _prepare(place: Place) -> Any:
    import torch
    from torch._inductor import config

    from cuda_agent.synthesis.filters import execute_filters
    from cuda_agent.synthesis.turns import Turns

    torch.set_num_threads(place.threads)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    config.compile_threads = 1  # in this process: no pool of its own for each of us
    config.fx_graph_cache = False  # no two graphs are the same
    turns = Turns(place.folder)

    def run(problem: Problem) -> Outcome:
        outcome = execute_filters(problem, place.device, place.window_ms, turns)
        if place.device != "cpu":
            torch.cuda.empty_cache()
        return outcome

    return run
