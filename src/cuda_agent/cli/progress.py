"""Progress of `optimize` on standard error: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from cuda_agent.agents.engineer import Event
from cuda_agent.cli import lines
from cuda_agent.policies import Step, cost
from cuda_agent.records import Run, Verdict


class Reporter:
    """Observer of agents.optimize. The estimate is for evaluations that are left at most."""

    def __init__(
        self, console: Console, run: Run, budget: int, best: Verdict | None = None
    ) -> None:
        self._console = console
        self._start = time.monotonic()
        self._first: int | None = None
        self._last = 0
        self._best = best  # of the turns before a resumed run stopped
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), BarColumn(),
                MofNCompleteColumn(), TextColumn("{task.fields[note]}"), console=console,
            )
            self._task = self._bar.add_task("starting", total=budget, note="")
        target, seed = run.settings["target"], run.settings["seed"]
        self._say(f"{run.problem.name} on {target}, run {run.id}, seed {seed}")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=text, note="")
        else:
            self._say(text)

    def turn(self, evaluations: int, budget: int, step: Step) -> None:
        """`evaluations` done of at most `budget`; the estimate is from those of this call."""
        if self._first is None:
            self._first = evaluations - 1
        new, old = cost(step.verdict), cost(self._best)
        if new is not None and (old is None or new < old):
            self._best = step.verdict
        done = max(evaluations - self._first, 1)
        left = (time.monotonic() - self._start) / done * (budget - evaluations)
        note = f"best {speedup(self._best)}, at most {duration(left)} left"
        if self._bar is not None:
            self._bar.update(
                self._task, completed=evaluations, description="searching", note=note
            )
        else:
            result = speedup(step.verdict) if step.cost is not None else step.status
            again = ", same kernels as before" if evaluations == self._last else ""
            self._say(f"evaluation {evaluations}/{budget}: {result}{again}; {note}")
        self._last = evaluations

    def chat(self, event: Event) -> None:
        """One line a call, an answer and a turn; from several episodes at once."""
        if (shown := lines.of(event)) is not None:
            self._say(shown)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def speedup(verdict: Verdict | None) -> str:
    """E.g. "1.52x eager"."""
    if verdict is None:
        return "none yet"
    eager = verdict.speedup.get("eager")
    if eager is not None:
        return f"{eager.value:.2f}x eager"
    return f"{verdict.timing.median_ms:.3g} ms" if verdict.timing is not None else verdict.status


def duration(seconds: float) -> str:
    """"40 s", "3 min", "1.5 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
