"""Recording: every plan once, resumed after an end at any moment, unsound problems left out."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from pathlib import Path

import pytest
import training_cases as cases

from cuda_agent.errors import OutputError, ProblemError, SettingsError
from cuda_agent.policies import Plan, plan_key
from cuda_agent.records import Finding, Verdict
from cuda_agent.training import simulated
from cuda_agent.training.recording import Progress, open_table, record
from cuda_agent.training.table import Table
from cuda_agent.training.tasks import TrainingProblem


class Counting(simulated.SimulatedSource):
    """Counts what it is asked; stops the recording at `stop`; spoils what is named in `spoil`."""

    def __init__(self, stop: int | None = None, spoil: dict[str, object] | None = None) -> None:
        self.asked: list[str] = []
        self.stop = stop
        self.spoil = spoil or {}

    def submit(self, problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Future[Verdict]:
        if len(self.asked) == self.stop:
            raise KeyboardInterrupt
        self.asked.append(problem.problem.name + plan_key(plan))
        future = super().submit(problem, plan, tier)
        spoilt = self.spoil.get(problem.problem.name)
        if isinstance(spoilt, Exception):
            future = Future()
            future.set_exception(spoilt)
        elif isinstance(spoilt, dict):
            answer = dataclasses.replace(future.result(), timing=None, speedup={}, **spoilt)
            future = Future()
            future.set_result(answer)
        return future


def test_every_plan_once_and_resumed(tmp_path: Path) -> None:
    problems, out = cases.problems(3), tmp_path / "t.jsonl.gz"
    with pytest.raises(KeyboardInterrupt):
        record(Counting(stop=330 - 10), problems, Table(), out)
    table = open_table(out, problems[0].task.device)
    assert 0 < table.rows < 330
    before, source, seen = table.rows, Counting(), []
    done = record(source, problems, table, out, on_problem=lambda p: seen.append(p.last))
    assert len(source.asked) == 330 - before == len(set(source.asked)) == done.measured
    assert done.done_plans == done.plans == 330 and done.done_problems == 3
    assert all(e is not None and e.complete for e in seen)
    assert Table.load(out).rows == 330
    again = Counting()
    assert record(again, problems, Table.load(out), out).measured == 0 and not again.asked


def test_what_cannot_be_judged(tmp_path: Path) -> None:
    problems, out = cases.problems(4), tmp_path / "t.jsonl.gz"
    source = Counting(spoil={
        "p0": {"status": "invalid_problem", "findings": (Finding("constant", "it is constant"),)},
        "p1": ProblemError("it cannot be built"),
        "p2": {"status": "harness_error", "candidate_hash": ""},
    })
    done = record(source, problems, Table(), out)
    assert done.skipped == {"p0": "it is constant", "p1": "it cannot be built"}
    assert done.done_plans == done.plans == 220
    table = Table.load(out)
    assert [e.problem.name for e in table.entries.values()] == ["p2", "p3"]
    assert {m.status for m in table.entries[problems[2].problem.hash].measurements} == {
        "harness_error"
    }
    assert sum(key.startswith("p2") for key in source.asked) == 3 * 110


def test_time_is_kept_and_a_full_disk_is_said(tmp_path: Path) -> None:
    problems, out = cases.problems(1), tmp_path / "t.jsonl.gz"

    class Never(simulated.SimulatedSource):
        def submit(
            self, problem: TrainingProblem, plan: Plan, tier: str = "screen"
        ) -> Future[Verdict]:
            return Future()

    done = record(Never(), problems, Table(), out, minutes=0.01)
    assert done.measured == 0 and done.left_s == float("inf") and Table.load(out).rows == 0
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        record(Counting(), problems, Table(), tmp_path / "file" / "t.jsonl.gz")


def test_another_device_is_refused(tmp_path: Path) -> None:
    problems, out = cases.problems(1), tmp_path / "t.jsonl.gz"
    record(Counting(), problems, Table(), out)
    with pytest.raises(SettingsError, match="was recorded on simulated GPU, but this is"):
        open_table(out, simulated.facts("null"))
    assert open_table(tmp_path / "none", simulated.facts("null")).rows == 0


def test_the_estimate() -> None:
    state = Progress(2, 100, done_plans=40, measured=20, seconds=10.0)
    assert state.left_s == 30.0
