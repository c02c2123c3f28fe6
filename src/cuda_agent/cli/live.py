"""Chat models at work, live in a terminal: a line for each episode, and what was said last."""

from __future__ import annotations

import collections
import re
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cuda_agent.agents.engineer import Event
from cuda_agent.cli.progress import duration
from cuda_agent.policies import Step
from cuda_agent.records import Run

_LAST = 10  # lines of what was said
_WIDTH = 160
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass
class _Row:
    turn: int = 0
    doing: str = "starting"
    best: float | None = None
    totals: str = ""


class LiveView:
    """Observer of agents.optimize for a terminal; events may come from several threads."""

    def __init__(self, console: Console, run: Run, turns: int) -> None:
        self._start, self._turns = time.monotonic(), turns
        self._title = f"{run.problem.name} on {run.settings['target']}, run {run.id}"
        self._rows: dict[int, _Row] = {}
        self._said: collections.deque[str] = collections.deque(maxlen=_LAST)
        self._open = ""
        self._stage, self._cost = "starting", 0.0
        self._lock = threading.Lock()
        self._live = Live(console=console, get_renderable=self.view, refresh_per_second=4)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def stage(self, text: str) -> None:
        with self._lock:
            self._stage = text

    def turn(self, evaluations: int, budget: int, step: Step) -> None:
        """Of policies that do not speak; there are none here."""

    def chat(self, event: Event) -> None:
        with self._lock:
            row = self._rows.setdefault(event.sample, _Row())
            row.turn = max(row.turn, event.turn)
            row.best = event.speedup if event.speedup is not None else row.best
            self._cost = max(self._cost, event.cost_usd)
            text = _CONTROL.sub("", event.text)
            if event.kind in ("text", "output"):
                row.doing = "speaks" if event.kind == "text" else row.doing
                self._hear(text)
                return
            if event.kind in ("call", "end", "note"):
                row.doing = text.replace("\n", " ")[:60]
            if event.kind == "turn":
                row.doing, row.totals = "waits for the model", text
            if event.kind in ("answer", "note"):
                self._hear(f"\n{text}\n")

    def _hear(self, text: str) -> None:
        *whole, self._open = (self._open + text).split("\n")
        self._said.extend(line[:_WIDTH] for line in whole if line.strip())
        self._open = self._open[-_WIDTH:]

    def view(self) -> Group:
        with self._lock:
            table = Table("episode", "turn", "does", "best", "last turn", title=self._title,
                          title_justify="left")  # fmt: skip
            for sample, row in sorted(self._rows.items()):
                best = "none yet" if row.best is None else f"{row.best:.2f}x eager"
                table.add_row(
                    str(sample), f"{row.turn}/{self._turns}", Text(row.doing), best, row.totals
                )
            cost = f", ${self._cost:.4f}" if self._cost else ""
            foot = f"{self._stage}, {duration(time.monotonic() - self._start)}{cost}"
            lines = [*self._said, *([self._open] if self._open.strip() else [])][-_LAST:]
            return Group(table, Text("\n".join(lines), style="dim"), Text(foot))
