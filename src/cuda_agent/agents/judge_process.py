"""A judge in a process of its own, for callers that must stay responsive: it can be killed while it
judges, and takes the contestants with it. `python -m cuda_agent.agents.judge_process FD`.

The problem is loaded and captured there, candidates run in its contestants: the caller's process
runs neither.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cuda_agent
from cuda_agent import errors
from cuda_agent.errors import CaptureError, HarnessError, UserError
from cuda_agent.evaluation.apart import Compiled, Examined
from cuda_agent.evaluation.settings import Settings
from cuda_agent.policies import Plan, PlanSpace
from cuda_agent.records import Candidate, Problem, Verdict
from cuda_agent.targets import DeviceFacts

_CLOSE_S = 5.0


class Cancelled(HarnessError):
    """What was asked was cancelled; the process was killed, and the next question gets another."""


@dataclass(frozen=True)
class Described:
    """`space` is None where the graph cannot be captured."""

    facts: DeviceFacts
    space: PlanSpace | None
    regions: list[dict[str, Any]] = field(default_factory=list)


class JudgeProcess:
    """Asked by one thread at a time; `cancel` from any."""

    def __init__(self, problem: Problem, settings: Settings, cache: Path, seed: int = 0) -> None:
        self._opening = problem.to_json(), asdict(settings), str(cache), seed
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._cancelled = False

    def describe(self) -> Described:
        """Raises ProblemError for a problem that cannot be judged."""
        found: Described = self._ask("describe")
        return found

    def assemble(self, plan: Plan) -> Candidate:
        return Candidate.from_json(self._ask("assemble", plan))

    def evaluate(self, candidate: Candidate) -> Verdict:
        return Verdict.from_json(self._ask("evaluate", candidate.to_json()))

    def compile_only(self, candidate: Candidate) -> Compiled:
        return Compiled.from_json(self._ask("compile_only", candidate.to_json()))

    def examine(self, candidate: Candidate, counters: bool, memory: bool) -> Examined:
        return Examined.from_json(self._ask("examine", candidate.to_json(), counters, memory))

    def cancel(self) -> None:
        """End what is being asked, with the process that works on it."""
        with self._lock:
            self._cancelled = True
            self._kill()

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()  # it then ends by itself, and cleans up
                self._connection = None
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_CLOSE_S)
            self._kill()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def _ask(self, op: str, *arguments: Any) -> Any:
        with self._asking:
            with self._lock:
                self._cancelled = False
                connection = self._ensure()
            try:
                connection.send((op, arguments))
                kind, answer = connection.recv()
            except (EOFError, OSError) as error:
                with self._lock:
                    self._kill()
                if self._cancelled:
                    raise Cancelled("it was cancelled") from None
                raise HarnessError(f"the judge's process died ({type(error).__name__})") from None
        if kind == "ok":
            return answer
        known = getattr(errors, kind, None)
        if isinstance(known, type) and issubclass(known, (UserError, CaptureError)):
            raise known(answer)
        raise HarnessError(answer)

    def _ensure(self) -> Connection:
        if self._connection is not None and self._process is not None:
            if self._process.poll() is None:
                return self._connection
            self._kill()
        ours, theirs = socket.socketpair()
        path = [str(Path(cuda_agent.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "cuda_agent.agents.judge_process",
                 str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=2,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)),
                     "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive")},
            )  # fmt: skip
        self._connection = Connection(ours.detach())
        self._connection.send(self._opening)
        return self._connection

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()  # the fork server sees its socket close, and ends contestants
            self._process.wait()
            self._process = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None


# --- the process --------------------------------------------------------------------------------


def serve(fd: int, parent: int) -> None:
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    connection = Connection(fd)
    bench: _Bench | None = None
    try:
        opening = connection.recv()
        while True:
            op, arguments = connection.recv()
            try:
                bench = bench or _Bench(*opening)
                connection.send(("ok", getattr(bench, op)(*arguments)))
            except Exception as error:
                connection.send((type(error).__name__, str(error)))
    except (EOFError, OSError):
        pass  # nobody asks any more
    finally:
        if bench is not None:
            bench.close()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class _Bench:
    def __init__(
        self, problem: dict[str, Any], settings: dict[str, Any], cache: str, seed: int
    ) -> None:
        from cuda_agent import targets
        from cuda_agent.problems import materialize

        self.problem, self.settings, self.cache = Problem.from_json(problem), settings, cache
        self.target = targets.resolve(settings["target"])
        self.instance = materialize(self.problem, self.target.torch_device(), seed=seed)
        self._planner: Any = None
        self._worker: Any = None

    def _made(self) -> Any:
        from cuda_agent.workers import InlineWorker

        if self._worker is None:
            settings = Settings(**self.settings)
            self._worker = InlineWorker(
                self.problem, self.instance, settings, cache_dir=self.cache
            )
        return self._worker

    def planner(self) -> Any:
        from cuda_agent.agents.planner import Planner

        if self._planner is None:
            self._planner = Planner.make(self.instance, self.target.facts())
        return self._planner

    def describe(self) -> Described:
        from cuda_agent.agents.optimize import refuse_unsound

        refuse_unsound(self.instance)
        try:
            planner = self.planner()
        except CaptureError:
            return Described(self.target.facts(), None)
        return Described(self.target.facts(), planner.space, planner.regions())

    def assemble(self, plan: Plan) -> dict[str, Any]:
        made: dict[str, Any] = self.planner().assemble(plan).to_json()
        return made

    def evaluate(self, candidate: dict[str, Any]) -> dict[str, Any]:
        return self._call(lambda worker, c: worker.evaluate(c), candidate)

    def compile_only(self, candidate: dict[str, Any]) -> dict[str, Any]:
        return self._call(lambda worker, c: worker.compile_only(c), candidate)

    def examine(self, candidate: dict[str, Any], counters: bool, memory: bool) -> dict[str, Any]:
        return self._call(lambda worker, c: worker.examine(c, counters, memory), candidate)

    def _call(self, ask: Callable[[Any, Candidate], Any], data: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = ask(self._made(), Candidate.from_json(data)).to_json()
        return answer

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
