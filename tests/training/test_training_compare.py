"""benchmarks/policy/compare.py on a made-up table: order, oracle, failures, determinism."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import training_cases as cases

from cuda_agent.policies import RandomPolicy, RulesPolicy
from cuda_agent.policies.builtin import Builtin, Config, shipped
from cuda_agent.training import simulated
from cuda_agent.training.recorded import RecordedSource
from cuda_agent.training.table import Table

FILE = Path(__file__).parents[2] / "benchmarks" / "policy" / "compare.py"


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("policy_compare", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def recorded(count: int) -> Table:
    table = Table({"command": "made up"})
    for made in cases.problems(count):
        entry = table.entry(made)
        for number in range(len(made.space)):
            entry.add(number, simulated.verdict(made, made.space.at(number)))
    return table


def test_policies_on_a_table(compare: ModuleType, tmp_path: Path) -> None:
    path, out = tmp_path / "t.jsonl.gz", tmp_path / "out.json"
    recorded(6).save(path)
    sizes = Config(
        vocab_size=len(shipped()), hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1,
    )
    Builtin.untrained(0, sizes, "none").save(tmp_path)
    command = [
        "--table", str(path), "--problems", str(path), "--model", str(tmp_path),
        "--seeds", "2", "--out", str(out),
        "--policies", "random", "rules", "search", "untrained", "--k", "1", "16",
    ]
    assert compare.main(command) == 0
    first = json.loads(out.read_text())
    scores: dict[str, Any] = first["scores"]
    assert first["counted"] == 6 and first["table"] == {"command": "made up"}
    for by_k in scores.values():
        for low, high in zip(by_k["1"], by_k["16"]):
            # Choosing by a noisy measurement may lose a little where it has the better one.
            assert high["geomean"] >= low["geomean"] * 0.97 and high["of_oracle"] <= 1 + 1e-9
            assert low["passed"] == high["passed"] == 1
    assert scores["rules"]["1"] == scores["rules"]["16"]
    assert scores["search"]["16"][0]["of_oracle"] > 0.97 > scores["rules"]["16"][0]["of_oracle"]
    assert compare.main(command) == 0
    assert json.loads(out.read_text())["scores"] == scores


def test_what_fails_counts_as_the_module_as_it_is(compare: ModuleType) -> None:
    table = recorded(2)
    broken, fine = cases.problems(2)
    entry = table.entries[broken.problem.hash]
    wrong = dataclasses.replace(
        simulated.verdict(broken, {}), status="wrong", timing=None, speedup={}, candidate_hash="w"
    )
    entry.add(0, wrong)
    source = RecordedSource(table)
    made = compare.Comparison(source, [broken, fine], [1])
    made.run("rules", RulesPolicy())
    found, best, count = made.scores()
    (score,) = found["rules"][1]
    assert count == 2 and score.passed == 0.5
    known, other = source.best(broken), source.verdict(fine, {}, "audit")
    assert known is not None
    eager, compiled = (known[1].speedup[n] for n in ("eager", "compile_default"))
    reached = other.speedup["compile_default"]
    assert eager is not None and compiled is not None and reached is not None
    want = math.sqrt(compiled.value / eager.value * reached.value)
    assert score.geomean == pytest.approx(want) and score.of_oracle == pytest.approx(want / best)


def test_only_distinct_candidates_count(compare: ModuleType) -> None:
    """A table in which all plans share two candidates ends episodes by the number of turns."""
    (made,) = cases.problems(1)
    table = Table()
    verdicts = [simulated.verdict(made, made.space.at(i)) for i in (0, 1)]
    for number in range(len(made.space)):
        table.entry(made).add(number, verdicts[number % 2])
    (played,) = compare.play(RandomPolicy(0), [made], RecordedSource(table), 4)
    assert len(played.found) == 2 and len(played.conversation.steps) == 12


def test_user_errors(compare: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert compare.main(["--table", str(tmp_path / "none"), "--problems", "x"]) == 2
    assert capsys.readouterr().err.startswith("compare: there is no table")
