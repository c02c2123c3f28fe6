"""Problems with their plan spaces, and the analytic cost model."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import training_cases as cases

from cuda_agent.errors import ProblemError, SettingsError
from cuda_agent.policies import PlanSpace, plan_key
from cuda_agent.training import simulated, tasks

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2 + 1, dim=-1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return []
"""


def every(space: PlanSpace) -> list[dict]:
    graphs = [dict(zip(space.graph, v)) for v in itertools.product(*space.graph.values())]
    regions = []
    for region, skills in space.regions.items():
        regions.append([
            (region, {"skill": skill, "knobs": dict(zip(knobs, values))})
            for skill, knobs in skills.items()
            for values in itertools.product(*knobs.values())
        ])
    return [
        {"graph": graph, "regions": dict(chosen)}
        for graph in graphs for chosen in itertools.product(*regions)
    ]


def test_tasks_are_captured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "softmax.py"
    file.write_text(PROBLEM)
    facts = simulated.facts("cuda")
    first = tasks.load_tasks([str(file), str(file)], facts, cache=tmp_path)
    assert len(first) == 1 and len(first[0].space) > 1
    monkeypatch.setattr(tasks, "Planner", None)  # would fail if it were called
    assert tasks.load_tasks([str(file)], facts, cache=tmp_path) == first
    with pytest.raises(AttributeError):
        tasks.load_tasks([str(file)], simulated.facts("null"), cache=tmp_path)


def test_parquet_with_the_published_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `data`)")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "ops.parquet"
    rows = {"ops": ["[softmax]"], "data_source": ["torch#1"], "code": [PROBLEM]}
    parquet.write_table(pa.table(rows), file)
    (found,) = tasks.load_tasks([str(file)], simulated.facts("cuda"), cache=tmp_path)
    assert found.problem.name == "torch#1" and found.problem.source == PROBLEM
    parquet.write_table(pa.table({"text": ["x"]}), file)
    with pytest.raises(ProblemError, match="no column `code`"):
        tasks.load_tasks([str(file)], simulated.facts("cuda"), cache=tmp_path)


def test_nothing_to_choose_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "copy.py"
    file.write_text(PROBLEM.replace("torch.softmax(x * 2 + 1, dim=-1)", "x.t()"))
    with pytest.raises(SettingsError, match="leaves a policy any choice"):
        tasks.load_tasks([str(file)], simulated.facts("cuda"), cache=tmp_path)


@pytest.mark.parametrize("limit", [1, 2, 7, 30, 64, 1000])
def test_a_narrowed_space_is_a_part_with_the_same_default(limit: int) -> None:
    space, regions = cases.SPACE, cases.problems()[0].task.regions
    got = tasks.narrow(space, limit, regions, "a")
    assert 1 <= len(got) <= limit
    assert got == tasks.narrow(space, limit, regions, "a")
    assert got.default() == space.default()
    for plan in every(got):
        assert space.complete(plan) == plan
    if limit >= 7:
        assert len(got) > min(limit, len(space)) // 3
        assert got != tasks.narrow(space, limit, regions, "b") or len(got) == len(space)


def test_the_cost_model_knows_its_best_plan() -> None:
    for problem in cases.problems(2):
        times = []
        for plan in every(problem.space):
            verdict = simulated.verdict(problem, plan)
            if verdict.ok:
                times.append(simulated.plan_ms(problem, plan))
        assert min(times) == pytest.approx(simulated.best_ms(problem))
        assert simulated.verdict(problem, problem.space.default()).ok


def test_some_choices_fail_but_never_the_default() -> None:
    space = PlanSpace({}, {"r0": {"pointwise": {"threads": tuple(range(100))}}})
    (problem,) = cases.problems(1, space)
    statuses = [simulated.verdict(problem, plan).status for plan in every(space)]
    assert statuses[0] == "ok"
    assert 1 <= sum(status != "ok" for status in statuses) <= 25


def test_simulated_verdicts_say_so_and_repeat() -> None:
    problem = cases.problems()[0]
    plan = problem.space.random(random.Random(1))
    source = simulated.SimulatedSource()
    first = source.submit(problem, plan).result()
    assert first == source.submit(problem, plan).result()
    assert first.environment["simulated"] == "true" and first.target == "null"
    ratio = first.speedup["eager"]
    assert ratio is not None and ratio.low < ratio.value < ratio.high
    exact = simulated.eager_ms(problem) / simulated.plan_ms(problem, problem.space.complete(plan))
    assert ratio.value == pytest.approx(exact, rel=5 * simulated.NOISE)
    assert plan_key(plan)
