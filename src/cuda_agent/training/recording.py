"""Fills a table of recorded verdicts by live judging; called again, it goes on where it ended."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from cuda_agent.errors import CudaAgentError, OutputError, SettingsError
from cuda_agent.records import Verdict
from cuda_agent.targets import DeviceFacts
from cuda_agent.training.sources import Source
from cuda_agent.training.table import Entry, Table
from cuda_agent.training.tasks import TrainingProblem

SAVE_EVERY_S = 30.0
IN_FLIGHT = 256  # plans asked for at a time, at least those of one problem
_ATTEMPTS = 3  # at a plan whose verdict failed for reasons of our own


@dataclass
class Progress:
    """How far a recording is. `last` is the problem that was completed last."""

    problems: int
    plans: int
    done_problems: int = 0
    done_plans: int = 0
    measured: int = 0
    """Plans answered in this call."""
    seconds: float = 0.0
    last: Entry | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    """Problems that could not be judged, and why."""

    @property
    def left_s(self) -> float:
        """At the speed so far; infinite before the first verdict."""
        if not self.measured:
            return math.inf
        return (self.plans - self.done_plans) * self.seconds / self.measured


def open_table(path: Path, facts: DeviceFacts) -> Table:
    """The table to go on with, or an empty one. Raises SettingsError for one of another device."""
    if not path.exists():
        return Table()
    table = Table.load(path)
    for entry in table.entries.values():
        if entry.task.device.name != facts.name or entry.task.device.target != facts.target:
            raise SettingsError(
                f"{path} was recorded on {entry.task.device.name}, but this is {facts.name}; "
                "give another --out."
            )
    return table


def record(
    source: Source, problems: Sequence[TrainingProblem], table: Table, out: Path, *,
    minutes: float | None = None, on_problem: Callable[[Progress], None] | None = None,
) -> Progress:
    """Asks `source` for every plan that the table lacks and saves the table to `out` twice a
    minute, at the end, and on the way out of an interrupt.

    A problem that turns out to be unsound is left out and named in `Progress.skipped`. A plan that
    fails three times for reasons of our own is recorded as a harness_error.
    Raises OutputError when the table cannot be written.
    """
    recording = _Recording(source, problems, table, out)
    try:
        recording.run(math.inf if minutes is None else minutes * 60, on_problem)
    finally:
        recording.end()
    return recording.progress


class _Recording:
    def __init__(
        self, source: Source, problems: Sequence[TrainingProblem], table: Table, out: Path
    ) -> None:
        self.source = source
        self.table = table
        self.out = out
        self.todo: list[tuple[TrainingProblem, Entry]] = []
        self.progress = Progress(len(problems), sum(len(made.space) for made in problems))
        for made in problems:
            entry = table.entry(made)
            self.progress.done_plans += len(entry.plans)
            self.progress.done_problems += entry.complete
            if not entry.complete:
                self.todo.append((made, entry))
        self.todo.reverse()
        self._waiting: dict[Future[Verdict], tuple[TrainingProblem, Entry, int, int]] = {}
        self._start = self._saved = time.monotonic()

    def run(self, seconds: float, on_problem: Callable[[Progress], None] | None) -> None:
        while self.todo or self._waiting:
            left = self._start + seconds - time.monotonic()
            if left <= 0:
                break
            while self.todo and len(self._waiting) < IN_FLIGHT:
                made, entry = self.todo.pop()
                for number in range(len(made.space)):
                    if number not in entry.plans:
                        self._ask(made, entry, number, 1)
            done, _ = wait(self._waiting, min(left, 5.0), return_when=FIRST_COMPLETED)
            for future in done:
                completed = self._take(future)
                self.progress.seconds = time.monotonic() - self._start
                if completed is not None:
                    self.progress.last = completed
                    self.progress.done_problems += 1
                    if on_problem is not None:
                        on_problem(self.progress)
            if time.monotonic() - self._saved > SAVE_EVERY_S:
                self.save()

    def _ask(self, made: TrainingProblem, entry: Entry, number: int, attempt: int) -> None:
        future = self.source.submit(made, made.space.at(number))
        self._waiting[future] = made, entry, number, attempt

    def _take(self, future: Future[Verdict]) -> Entry | None:
        """Puts an answer into the table; its entry when that completes it."""
        made, entry, number, attempt = self._waiting.pop(future)
        name = made.problem.name
        if name in self.progress.skipped:
            return None
        try:
            verdict = future.result()
        except CudaAgentError as error:
            self._skip(made, str(error))
            return None
        if verdict.status == "invalid_problem":
            self._skip(made, "; ".join(f.detail for f in verdict.findings) or verdict.feedback)
            return None
        if verdict.status == "harness_error" and attempt < _ATTEMPTS:
            self._ask(made, entry, number, attempt + 1)
            return None
        entry.add(number, verdict)
        self.progress.measured += 1
        self.progress.done_plans += 1
        return entry if entry.complete else None

    def _skip(self, made: TrainingProblem, why: str) -> None:
        self.progress.skipped[made.problem.name] = why
        self.progress.plans -= len(made.space)
        self.progress.done_plans -= len(self.table.entries.pop(made.problem.hash).plans)
        for future, (other, *_) in self._waiting.items():
            if other is made:
                future.cancel()

    def end(self) -> None:
        """Takes what is answered already and saves."""
        for future in [future for future in self._waiting if future.done()]:
            if not future.cancelled():
                self._take(future)
        self.save()

    def save(self) -> None:
        self._saved = time.monotonic()
        whole = Table(self.table.about, {h: e for h, e in self.table.entries.items() if e.plans})
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            whole.save(self.out)
        except OSError as error:
            raise OutputError(
                f"{self.out} cannot be written ({error.strerror or error}); what stood there "
                "before is kept."
            ) from error
