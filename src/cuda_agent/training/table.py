"""Recorded verdicts in one file, so that training, tuning and ablations need no hardware.

    line 1        what the table is: format, settings of the judge, command, date
    other lines   a problem each: its text, its task (with the space whose plans were measured), the
                  measured baselines, and

        measurements   [candidate hash, status, milliseconds, speed-up over eager, over
                       compile_default (value, low, high: 95% interval), feedback]
        plans          [numbers of the plans in the space, index of each one's measurement]

Plans that lead to the same sources share a measurement. The file is JSON lines under gzip: 50,000
rows take a few MB and load in about a second, without any library beside Python's own.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.policies import Plan, Task
from cuda_agent.records import Interval, Problem, Verdict, content_hash
from cuda_agent.store import write_file
from cuda_agent.training.tasks import TrainingProblem

FORMAT = "cuda-agent recorded verdicts 1"
HELD_OUT = 0.3
"""Share of operator combinations that are kept from training."""

SPLITS = ("train", "held-out")
_FEEDBACK = 200  # characters of the judge's text on a failure


@dataclass(frozen=True)
class Measurement:
    """Of one candidate. Times and speed-ups are None unless `status` is "ok"."""

    candidate_hash: str
    status: str
    median_ms: float | None = None
    eager: Interval | None = None
    compile_default: Interval | None = None
    feedback: str = ""

    @classmethod
    def of(cls, verdict: Verdict) -> Measurement:
        ok, timing = verdict.ok, verdict.timing
        return cls(
            verdict.candidate_hash, verdict.status, timing.median_ms if timing else None,
            verdict.speedup.get("eager"), verdict.speedup.get("compile_default"),
            "" if ok else " ".join(verdict.feedback.split())[:_FEEDBACK],
        )

    @property
    def cost(self) -> float:
        """Time over eager's, as policies minimise it; infinite for a failure."""
        if self.eager is not None and self.eager.value > 0:
            return 1 / self.eager.value
        return math.inf if self.median_ms is None else self.median_ms

    def to_json(self) -> list[Any]:
        return [
            self.candidate_hash, self.status, _short(self.median_ms), _triple(self.eager),
            _triple(self.compile_default), self.feedback,
        ]

    @classmethod
    def from_json(cls, data: list[Any]) -> Measurement:
        return cls(data[0], data[1], data[2], _interval(data[3]), _interval(data[4]), data[5])


@dataclass
class Entry:
    """A problem and what was measured of it. `plans` maps a plan's number to a measurement."""

    problem: Problem
    task: Task
    environment: dict[str, str] = field(default_factory=dict)
    baselines_ms: dict[str, float] = field(default_factory=dict)
    measurements: list[Measurement] = field(default_factory=list)
    plans: dict[int, int] = field(default_factory=dict)

    @property
    def split(self) -> str:
        """By the combination of operators: what is held out differs in kind, not only in size."""
        ops = sorted(
            {op for name in self.task.space.regions for op in self.task.regions[name]["ops"]}
        )
        held_out = int(content_hash("held-out", ops), 16) / 16**16 < HELD_OUT
        return SPLITS[held_out]

    @property
    def complete(self) -> bool:
        return len(self.plans) == len(self.task.space)

    def add(self, number: int, verdict: Verdict) -> None:
        known = {m.candidate_hash: i for i, m in enumerate(self.measurements) if m.candidate_hash}
        place = known.get(verdict.candidate_hash)
        if place is None:
            place = len(self.measurements)
            self.measurements.append(Measurement.of(verdict))
        self.plans[number] = place
        if not self.environment:
            self.environment = {
                k: v for k, v in verdict.environment.items() if not k.startswith("missing_")
            }
        for name, timing in verdict.baselines.items():
            if timing is not None:
                self.baselines_ms.setdefault(name, timing.median_ms)

    def find(self, plan: Plan) -> Measurement | None:
        """None where that plan was not measured. Raises SettingsError outside the space."""
        place = self.plans.get(self.task.space.index(plan))
        return None if place is None else self.measurements[place]

    def best(self) -> tuple[Plan, Measurement] | None:
        """The best plan known; None where nothing ran."""
        numbers = sorted(self.plans, key=lambda n: (self.measurements[self.plans[n]].cost, n))
        if not numbers or math.isinf(self.measurements[self.plans[numbers[0]]].cost):
            return None
        return self.task.space.at(numbers[0]), self.measurements[self.plans[numbers[0]]]

    def to_json(self) -> dict[str, Any]:
        numbers = sorted(self.plans)
        return {
            "problem": self.problem.to_json(), "task": self.task.to_json(), "split": self.split,
            "environment": self.environment,
            "baselines_ms": {n: _short(v) for n, v in self.baselines_ms.items()},
            "measurements": [m.to_json() for m in self.measurements],
            "plans": [numbers, [self.plans[n] for n in numbers]],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Entry:
        return cls(
            Problem.from_json(data["problem"]), Task.from_json(data["task"]),
            dict(data["environment"]), dict(data["baselines_ms"]),
            [Measurement.from_json(m) for m in data["measurements"]],
            dict(zip(*data["plans"], strict=True)),
        )


@dataclass
class Table:
    """Entries by problem hash. `about`: settings, command, date and whatever else is worth
    knowing, JSON-ready."""

    about: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(len(entry.plans) for entry in self.entries.values())

    def entry(self, made: TrainingProblem) -> Entry:
        """That of a problem; a new one where there is none, or where the problem has another space
        by now."""
        held = self.entries.get(made.problem.hash)
        if held is None or held.task.space != made.space:
            origin = Path(made.problem.origin).name  # its folder says something of one machine only
            problem = dataclasses.replace(made.problem, origin=origin)
            held = self.entries[made.problem.hash] = Entry(problem, made.task)
        return held

    def save(self, path: Path) -> None:
        """Whole or not at all. Raises OSError."""
        lines = [{"format": FORMAT, **self.about}, *(e.to_json() for e in self.entries.values())]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        write_file(path, gzip.compress(text.encode(), 6, mtime=0))

    @classmethod
    def load(cls, path: Path) -> Table:
        """Raises SettingsError: no such file, or not a table of this format."""
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                about = json.loads(next(file, "{}"))
                if about.pop("format", None) != FORMAT:
                    raise ValueError(f"it does not begin with {FORMAT!r}")
                found = [Entry.from_json(json.loads(line)) for line in file]
        except FileNotFoundError as error:
            raise SettingsError(
                f"there is no table {path}; make one with `cuda-agent record`."
            ) from error
        except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError) as error:
            raise SettingsError(f"{path} is not a table of recorded verdicts: {error}.") from error
        return cls(about, {entry.problem.hash: entry for entry in found})


def _short(value: float | None) -> float | None:
    """Five significant digits: no measurement here is better."""
    return None if value is None else float(f"{value:.5g}")


def _triple(interval: Interval | None) -> list[float | None] | None:
    if interval is None:
        return None
    return [_short(interval.value), _short(interval.low), _short(interval.high)]


def _interval(data: list[float] | None) -> Interval | None:
    return None if data is None else Interval(*data)
