"""Recorded verdicts: kept whole, played again with their noise, refused where there are none."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import statistics
import time
from pathlib import Path

import pytest
import training_cases as cases

from cuda_agent.errors import SettingsError
from cuda_agent.policies import PlanSpace
from cuda_agent.records import Verdict
from cuda_agent.training import simulated
from cuda_agent.training.config import Environment
from cuda_agent.training.recorded import RecordedSource, load_recorded
from cuda_agent.training.sources import load_problems, open_source
from cuda_agent.training.table import Table
from cuda_agent.training.tasks import TrainingProblem

EVERY = range(len(cases.SPACE))


def recorded(problems: list[TrainingProblem]) -> Table:
    table = Table({"command": "made up"})
    for made in problems:
        entry = table.entry(made)
        for number in range(len(made.space)):
            entry.add(number, simulated.verdict(made, made.space.at(number)))
    return table


def test_plans_are_numbered() -> None:
    space = cases.SPACE
    plans = [space.at(i) for i in EVERY]
    assert plans[0] == space.default() and len({json.dumps(p) for p in plans}) == len(space) == 110
    assert [space.index(plan) for plan in plans] == list(EVERY)
    assert space.index(space.difference(plans[77])) == 77
    two = PlanSpace(space.graph, {**space.regions, "r1": space.regions["r0"]})
    rng = random.Random(0)
    for plan in (two.random(rng) for _ in range(200)):
        assert two.at(two.index(plan)) == plan
    with pytest.raises(IndexError):
        space.at(len(space))


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    problems = cases.problems(3)
    table = recorded(problems)
    table.save(tmp_path / "t.jsonl.gz")
    again = Table.load(tmp_path / "t.jsonl.gz")
    assert again.about == table.about and again.rows == 3 * len(cases.SPACE)
    again.save(tmp_path / "u.jsonl.gz")
    assert (tmp_path / "t.jsonl.gz").read_bytes() == (tmp_path / "u.jsonl.gz").read_bytes()
    entry, want = again.entries[problems[1].problem.hash], simulated.verdict(problems[1], {})
    assert entry.problem == problems[1].problem and entry.task == problems[1].task
    found = entry.find({})
    assert found is not None and found.eager is not None and want.timing is not None
    assert found.median_ms == pytest.approx(want.timing.median_ms, rel=1e-4)


def test_equal_candidates_share_a_measurement() -> None:
    (made,) = cases.problems(1)
    entry = Table().entry(made)
    for number in (0, 1, 2):
        verdict = simulated.verdict(made, {})
        entry.add(number, verdict)
    entry.add(3, simulated.verdict(made, made.space.at(3)))
    assert len(entry.measurements) == 2 and len(entry.plans) == 4 and not entry.complete


def test_a_table_of_fifty_thousand_rows_would_be_small_and_quick(tmp_path: Path) -> None:
    """Here with a fifth of them. On one idle core 50,600 rows took 1.8 MB and 1.3 s."""
    table = recorded(cases.problems(100))
    path = tmp_path / "t.jsonl.gz"
    table.save(path)
    assert path.stat().st_size < 100 * table.rows
    start = time.process_time()
    assert Table.load(path).rows == 11_000
    assert time.process_time() - start < 1e-4 * table.rows


def test_the_noise_is_that_of_the_intervals() -> None:
    problems = cases.problems(40)
    table = recorded(problems)
    deviations = []
    for made in problems:
        exact = RecordedSource(table).verdict(made, {}, "audit")
        first = RecordedSource(table, seed=1).verdict(made, {})
        assert first == RecordedSource(table, seed=1).verdict(made, {}) != exact
        for seed in range(10):
            got = RecordedSource(table, seed).verdict(made, {})
            assert got.timing and exact.timing
            deviations.append(math.log(got.timing.median_ms / exact.timing.median_ms))
            for name in ("eager", "compile_default"):
                one, other = got.speedup[name], exact.speedup[name]
                assert one is not None and other is not None
                assert math.log(other.value / one.value) == pytest.approx(deviations[-1])
                assert one.low < one.value < one.high
    # 95% of ±2 noises: a deviation of 2 / 1.96 of the model's.
    assert statistics.stdev(deviations) == pytest.approx(simulated.NOISE * 2 / 1.96, rel=0.15)
    assert abs(statistics.mean(deviations)) < simulated.NOISE / 4


def test_failures_stay_failures() -> None:
    (made,) = cases.problems(1)
    table = recorded([made])
    wrong = dataclasses.replace(
        simulated.verdict(made, {}), status="wrong", timing=None, speedup={}, candidate_hash="w",
        feedback="element [3]:\n got 1, expected 2" + 500 * "!",
    )
    table.entry(made).add(9, wrong)
    got = RecordedSource(table).verdict(made, made.space.at(9))
    assert got.status == "wrong" and got.timing is None and got.candidate_hash == "w"
    assert got.feedback.startswith("element [3]: got 1, expected 2!") and len(got.feedback) == 200


def test_the_best_plan_is_known() -> None:
    (made,) = cases.problems(1)
    source = RecordedSource(recorded([made]))
    found = source.best(made)
    assert found is not None
    best = max(
        (v for i in EVERY if (v := simulated.verdict(made, made.space.at(i))).ok),
        key=lambda v: v.speedup["eager"].value,  # type: ignore[union-attr]
    )
    assert found[1].candidate_hash == best.candidate_hash


def test_what_was_not_recorded_is_refused(tmp_path: Path) -> None:
    made, other = cases.problems(2)
    table = Table()
    table.entry(made).add(0, simulated.verdict(made, {}))
    source = RecordedSource(table, name="t.jsonl.gz")
    with pytest.raises(SettingsError, match=r"holds 1 of the 110 plans of p0 and not this one"):
        source.submit(made, made.space.at(5))
    with pytest.raises(SettingsError, match="holds nothing of p1"):
        source.submit(other, {})
    with pytest.raises(SettingsError, match="no region 'r7'"):
        source.submit(made, {"regions": {"r7": {"skill": "torch"}}})
    with pytest.raises(SettingsError, match=r"1 problems, 0 of them measured wholly"):
        load_recorded(table, tmp_path / "t", [str(tmp_path / "t")])


@pytest.mark.parametrize("text", [b"", b"plain text", b"\x1f\x8b broken"])
def test_a_file_that_is_no_table(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    with pytest.raises(SettingsError, match=r"there is no table .*cuda-agent record"):
        Table.load(path)
    path.write_bytes(text)
    with pytest.raises(SettingsError, match="is not a table of recorded verdicts"):
        Table.load(path)


def test_splits_go_by_operators_and_sources_open(tmp_path: Path) -> None:
    problems = []
    for i, made in enumerate(cases.problems(40)):
        regions = {"r0": cases.detail(1 << 14, ["mul", f"op{i // 2}"])}
        task = dataclasses.replace(made.task, regions=regions)
        problems.append(TrainingProblem(made.problem, task))
    table = recorded(problems)
    path = tmp_path / "t.jsonl.gz"
    table.save(path)
    splits = [table.entries[made.problem.hash].split for made in problems]
    assert splits[::2] == splits[1::2] and 4 <= splits.count("held-out") <= 20
    environment = Environment(source="recorded", table=str(path), space_limit=12)
    train = load_problems(environment, [f"{path}#train"], cache=tmp_path)
    held_out = load_problems(environment, [f"{path}#held-out"], cache=tmp_path)
    assert len(train) + len(held_out) == 40 and len(held_out) == splits.count("held-out")
    assert all(len(made.space) <= 12 for made in train)
    assert len(load_problems(environment, [str(path)], cache=tmp_path, limit=7)) == 7
    with pytest.raises(SettingsError, match="no split 'test'; use train, held-out"):
        load_problems(environment, [f"{path}#test"], cache=tmp_path)
    with open_source(environment, cache=tmp_path, seed=3) as source:
        for made in held_out:
            for number in range(len(made.space)):
                got: Verdict = source.submit(made, made.space.at(number)).result()
                assert got.problem_hash == made.problem.hash
    with pytest.raises(SettingsError, match=r"needs environment\.table"):
        open_source(Environment(source="recorded"), cache=tmp_path)
