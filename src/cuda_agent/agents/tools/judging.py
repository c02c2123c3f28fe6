"""apply_plan, compile, verify, profile, submit: from the work folder to a verdict.

`verify` and `profile` show two sides of one verdict, so that a candidate is measured once. Jobs of
every shell that shares the judge are halted meanwhile, and episodes side by side take their turns
in the order in which they asked.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.agents.loop import Evaluator, Room
from cuda_agent.agents.tools import telling
from cuda_agent.agents.tools.base import Answer, Misuse, Tell, Tool
from cuda_agent.agents.tools.files import Files
from cuda_agent.agents.tools.folder import Folder
from cuda_agent.agents.tools.shell import Shell
from cuda_agent.errors import HarnessError, SettingsError
from cuda_agent.evaluation import forms
from cuda_agent.evaluation.apart import Compiled, Examined
from cuda_agent.policies import PlanSpace, cost
from cuda_agent.records import Candidate, Problem, Verdict

REFERENCE = "reference.py"
_PUBLISHED = ("binding.cpp", "binding_registry.h")
MAX_FILES = 200


class Examiner(Evaluator, Protocol):
    """What the tools need of a worker."""

    def compile_only(self, candidate: Candidate) -> Compiled: ...

    def examine(self, candidate: Candidate, counters: bool, memory: bool) -> Examined: ...


class Turnstile:
    """One at a time, in the order of asking."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: collections.deque[threading.Event] = collections.deque()
        self._busy = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            own = threading.Event()
            if not self._busy:
                self._busy = True
                own.set()
            else:
                self._waiting.append(own)
        try:
            own.wait()
            yield
        finally:
            with self._lock:
                if own in self._waiting:  # interrupted while it waited
                    self._waiting.remove(own)
                elif self._waiting:
                    self._waiting.popleft().set()
                else:
                    self._busy = False


@dataclass
class Bench:
    """The judge as episodes share it. `shells` are halted while it works."""

    problem: Problem
    room: Room
    worker: Examiner
    space: PlanSpace | None = None
    shells: list[Shell] = field(default_factory=list)
    turn: Turnstile = field(default_factory=Turnstile)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self.turn(), contextlib.ExitStack() as stack:
            for shell in [*self.shells]:
                stack.enter_context(shell.halted())
            yield

    def judge(self, candidate: Candidate) -> tuple[Verdict, bool]:
        """(verdict, whether it was known). Raises HarnessError."""
        with self.alone():
            return self.room.verdict(candidate)


def candidate_of(folder: Folder, problem: Problem, author: str) -> Candidate:
    """What the judge takes of a work folder: model_new.py, kernels/, and the published form's two
    files; everything else in it is the model's own business. Raises CandidateError."""
    names = [n for n in (forms.ENTRY, *_PUBLISHED) if folder.exists(n)]
    with contextlib.suppress(FileNotFoundError):
        names += [n for n in folder.walk("kernels") if n.endswith(forms.TEXT_SUFFIXES)]
    if forms.ENTRY not in names:
        raise Misuse(f"there is no {forms.ENTRY} yet; it must define class {forms.CLASS_NAME}")
    if len(names) > MAX_FILES:
        raise Misuse(f"kernels/ holds {len(names)} files; remove what is not used")
    files = {name: folder.text(name) for name in names}
    if problem.kind == "file":
        files[REFERENCE] = problem.source
    if forms.kernel_sources(files):
        files |= forms.own_runtime()
    return Candidate(problem.hash, files, author)


class Judging:
    """Of one episode. `ever_ok`: whether a correct candidate was seen in it."""

    def __init__(self, bench: Bench, folder: Folder, files: Files, author: str) -> None:
        self.bench, self.folder, self.files, self.author = bench, folder, files, author
        self.ever_ok = False
        self.best: Verdict | None = None

    def tools(self) -> list[Tool]:
        plan = Tool(
            "apply_plan",
            "Have our own skills write model_new.py and kernels/ by a plan (see plans.json; {} "
            "takes every default), then measure it. What is written may be edited further.",
            self.apply_plan, {"plan": {"type": "object"}},
        )
        flag = {"type": "boolean"}
        return [
            *([plan] if self.bench.space is not None else []),
            Tool("compile", "Compile model_new.py and kernels/; run nothing.", self.compile),
            Tool("verify", "Compile, and compare with the reference on many inputs.", self.verify),
            Tool(
                "profile", "Compile, verify and time against eager and torch.compile. With "
                "counters=true also hardware counters, with memory=true memory checkers.",
                self.profile, {"counters": flag, "memory": flag}, ("counters", "memory"),
            ),
            Tool(
                "submit", "End the work. The best correct candidate that was ever measured counts; "
                "what lies in the folder is measured first.",
                self.submit, {"give_up": flag}, ("give_up",),
            ),
        ]

    def apply_plan(self, plan: dict[str, Any], tell: Tell) -> Answer:
        try:
            candidate = self.bench.room.assemble(plan)
        except (SettingsError, KeyError, TypeError, AttributeError) as error:
            said = str(error) if isinstance(error, SettingsError) else "it has not the form of one"
            raise Misuse(f"no such plan: {said} (plans.json holds the choices)") from None
        with contextlib.suppress(FileNotFoundError):
            for old in self.folder.walk("kernels"):
                if old not in candidate.files:
                    self.folder.remove(old)
        for name, text in candidate.files.items():
            if name == forms.ENTRY or name.startswith("kernels/"):
                self.folder.write(name, text)
                self.files.take_note(name)
        return self._judged(candidate, telling.times)

    def compile(self, tell: Tell) -> Answer:
        candidate = self._candidate()
        with self.bench.alone():
            found = self.bench.worker.compile_only(candidate)
        return Answer(telling.compiled(found), "compile_error" if found.error else "ok")

    def verify(self, tell: Tell) -> Answer:
        return self._judged(self._candidate(), telling.correctness)

    def profile(self, tell: Tell, counters: bool = False, memory: bool = False) -> Answer:
        candidate = self._candidate()
        answer = self._judged(candidate, telling.times)
        if not (counters or memory) or answer.status in ("cheating", "compile_error", "error"):
            return answer
        with self.bench.alone():
            more = self.bench.worker.examine(candidate, counters, memory)
        return Answer(
            f"{answer.text}\n{telling.examined(more)}", answer.status, answer.candidate_hash,
            answer.verdict_hash,
        )

    def submit(self, tell: Tell, give_up: bool = False) -> Answer:
        if give_up:
            return Answer("the work has ended", final=True)
        answer = self._judged(self._candidate(), telling.times)
        if answer.status != "ok" and not self.ever_ok:
            return Answer(
                f"not submitted, because nothing correct was measured yet: {answer.text}\n"
                "Mend it, or submit with give_up=true.",
                answer.status, answer.candidate_hash, answer.verdict_hash,
            )
        return Answer(
            f"submitted; the best of all that was measured counts. The folder now: {answer.text}",
            answer.status, answer.candidate_hash, answer.verdict_hash, final=True,
        )

    def _candidate(self) -> Candidate:
        return candidate_of(self.folder, self.bench.problem, self.author)

    def _judged(self, candidate: Candidate, tell: Any) -> Answer:
        try:
            verdict, known = self.bench.judge(candidate)
        except HarnessError as error:
            return Answer(f"the judge itself failed, not you: {error}; try again", "harness_error")
        new, old = cost(verdict), cost(self.best)
        self.ever_ok |= verdict.ok
        if new is not None and (old is None or new < old):
            self.best = verdict
        note = "\n(the same files as before: this is their first measurement)" if known else ""
        return Answer(tell(verdict) + note, verdict.status, candidate.hash, verdict.hash)
