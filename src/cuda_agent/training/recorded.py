"""Plays recorded verdicts again, with the noise that was measured. Needs no hardware."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from statistics import NormalDist
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.policies import Plan
from cuda_agent.records import Interval, Problem, Timing, Verdict
from cuda_agent.training.table import SPLITS, Entry, Measurement, Table
from cuda_agent.training.tasks import TrainingProblem, narrow, read_problems

_NORMAL = NormalDist()
_DEVIATIONS = 2 * _NORMAL.inv_cdf(0.975)  # in a 95% interval


class RecordedSource:
    """Answers at once, and always the same for the same candidate and `seed`: another seed stands
    for another day of measuring.

    The noise: a candidate's recorded interval, taken as that of a log-normal variable around the
    recorded value, gives one draw; its speed-ups over both baselines and its time move together. An
    audit gets the recorded values themselves. Both keep the tier that was recorded.
    """

    label = "recorded"

    def __init__(self, table: Table, seed: int = 0, name: str = "the table") -> None:
        self.table = table
        self.seed = seed
        self.name = name
        settings = table.about.get("settings", {})
        self._common: dict[str, Any] = {
            key: settings.get(key, usual)
            for key, usual in (("tier", "screen"), ("track", "library"), ("precision", "strict"))
        }

    def submit(self, problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Future[Verdict]:
        future: Future[Verdict] = Future()
        future.set_result(self.verdict(problem, plan, tier))
        return future

    def verdict(self, problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Verdict:
        """Raises SettingsError for a plan that is outside the space or was not recorded."""
        entry = self._entry(problem)
        found = entry.find(problem.space.complete(plan))
        if found is None:
            raise SettingsError(
                f"{self.name} holds {len(entry.plans)} of the {len(entry.task.space)} plans of "
                f"{problem.problem.name} and not this one; `cuda-agent record` adds it."
            )
        return self._answer(entry, found, tier == "audit")

    def best(self, problem: TrainingProblem) -> tuple[Plan, Verdict] | None:
        """The best plan known, without noise; None where nothing ran."""
        entry = self._entry(problem)
        found = entry.best()
        return None if found is None else (found[0], self._answer(entry, found[1], True))

    def close(self) -> None:
        pass

    def __enter__(self) -> RecordedSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _entry(self, problem: TrainingProblem) -> Entry:
        entry = self.table.entries.get(problem.problem.hash)
        if entry is None:
            raise SettingsError(f"{self.name} holds nothing of {problem.problem.name}.")
        return entry

    def _answer(self, entry: Entry, found: Measurement, exact: bool) -> Verdict:
        common: dict[str, Any] = {
            "problem": entry.problem.name, "problem_hash": entry.problem.hash,
            "candidate_hash": found.candidate_hash, "target": entry.task.device.target,
            "dtype": entry.problem.dtype, "environment": entry.environment, **self._common,
        }
        if found.status != "ok" or found.median_ms is None:
            return Verdict(status=found.status, feedback=found.feedback, **common)  # type: ignore[arg-type]
        spread = 0.0 if exact else _spread(found.eager or found.compile_default)
        factor = math.exp(spread * self._normal(found.candidate_hash))
        ms = found.median_ms / factor
        return Verdict(
            status="ok", timing=Timing(ms, ms, ms, (), "recorded"),
            speedup={
                "eager": _scaled(found.eager, factor),
                "compile_default": _scaled(found.compile_default, factor),
            },
            **common,
        )

    def _normal(self, candidate_hash: str) -> float:
        """A standard normal draw that seed and candidate settle."""
        digest = hashlib.sha256(f"{self.seed}|{candidate_hash}".encode()).digest()
        return _NORMAL.inv_cdf((int.from_bytes(digest[:6], "big") + 0.5) / 2**48)


def load_recorded(
    table: Table, file: Path, paths: Sequence[str], space_limit: int = 0, limit: int = 0
) -> list[TrainingProblem]:
    """Problems of a table whose whole space was measured, in the table's order.

    Args:
        file: where the table lies.
        paths: "TABLE" stands for all of its problems, "TABLE#train" and "TABLE#held-out" for a
            split; anything else names problems as for `load_tasks`, of which those in the table
            are taken.
    Raises: SettingsError when nothing is left; ProblemError for a path that holds no problem.
    """
    wanted = _wanted(table, file, paths)
    entries = [e for h, e in table.entries.items() if h in wanted and e.complete]
    made = [TrainingProblem(e.problem, e.task) for e in entries if len(e.task.space) > 1]
    if not made:
        held = f"{len(table.entries)} problems, {sum(e.complete for e in table.entries.values())}"
        raise SettingsError(
            f"{file} holds {held} of them measured wholly, but none of {', '.join(paths)}."
        )
    return [_narrowed(problem, space_limit) for problem in made[: limit or None]]


def _wanted(table: Table, file: Path, paths: Sequence[str]) -> set[str]:
    wanted: set[str] = set()
    for text in paths:
        name, _, split = text.partition("#")
        if Path(name).resolve() != file.resolve():
            wanted |= {problem.hash for problem in _problems(table, [text])}
        elif split and split not in SPLITS:
            raise SettingsError(f"{text}: there is no split {split!r}; use {', '.join(SPLITS)}.")
        else:
            wanted |= {h for h, e in table.entries.items() if split in ("", e.split)}
    return wanted


def _problems(table: Table, paths: Sequence[str]) -> list[Problem]:
    devices = {entry.task.device.target for entry in table.entries.values()}
    return list(read_problems(paths, "gpu" if "cuda" in devices else "cpu"))


def _narrowed(made: TrainingProblem, limit: int) -> TrainingProblem:
    if not limit or len(made.space) <= limit:
        return made
    space = narrow(made.space, limit, made.task.regions, made.problem.hash)
    return TrainingProblem(made.problem, dataclasses.replace(made.task, space=space))


def _spread(interval: Interval | None) -> float:
    """Standard deviation of the log; 0 where no interval is known."""
    if interval is None or interval.low <= 0:
        return 0.0
    return math.log(interval.high / interval.low) / _DEVIATIONS


def _scaled(interval: Interval | None, factor: float) -> Interval | None:
    if interval is None:
        return None
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)
