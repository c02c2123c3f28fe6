"""Cheats that need no kernel: in what is counted, against what, at which precision, how often.

The same public functions that make a report are given results that flatter. They must refuse them
or show what was done (A10, A18, E5, F8 of docs/threat-model.md, as a benchmarker would try them).
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from museum import BIAS

from cases import native
from cuda_agent.agents.loop import Room
from cuda_agent.agents.optimize import Options, is_faster
from cuda_agent.benchmark.report import headline, speedup_rows
from cuda_agent.errors import SettingsError
from cuda_agent.evaluation import Settings, stats
from cuda_agent.records import Candidate, Interval, Timing, Verdict
from cuda_agent.store import Store

ROOT = Path(__file__).parents[2]
CANDIDATE = Candidate(BIAS.hash, native(), "museum")


@pytest.fixture(scope="module")
def suite() -> ModuleType:
    """benchmarks/suite/run.py, which makes the published table."""
    spec = importlib.util.spec_from_file_location("suite_run", ROOT / "benchmarks/suite/run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timing(ms: float) -> Timing:
    return Timing(ms, ms, ms, (ms,) * 8, "two clocks")


def verdict(eager: float | None = 2.0, compiled: float | None = 1.5, **fields: Any) -> Verdict:
    """`ok`, with speed-ups over both baselines; None: it could not be measured."""
    def known(value: float | None) -> Interval | None:
        return None if value is None else Interval(value, 0.97 * value, 1.03 * value)

    base: dict[str, Any] = {
        "status": "ok", "problem": BIAS.name, "problem_hash": BIAS.hash,
        "candidate_hash": CANDIDATE.hash, "target": "cpu", "tier": "audit", "track": "library",
        "precision": "strict", "dtype": "float32", "timing": timing(1.0),
        "speedup": {"eager": known(eager), "compile_default": known(compiled)},
        "baselines": {"eager": timing(eager) if eager else None},
    }
    return Verdict(**{**base, **fields})


def failed(status: str = "wrong") -> Verdict:
    return verdict(status=status, timing=None, speedup={}, baselines={})


def line(name: str, made: Verdict | None) -> dict[str, Any]:
    if made is None:
        return {"problem": name, "failure": "overran its time"}
    return {"problem": name, "verdict": json.loads(json.dumps(made.to_json()))}


def cells(text: str, start: str) -> list[str]:
    (found,) = [row for row in text.splitlines() if row.startswith(f"| {start} |")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_losers_that_are_left_out_are_counted(suite: ModuleType) -> None:
    """The lines of two losing problems are deleted before the table is made."""
    names = [f"level1/{name}" for name in ("gelu", "softmax", "norm", "sum")]
    text = suite.table([line(names[0], verdict()), line(names[1], failed())], names)
    level = cells(text, "level1")
    assert level[1:4] == ["4", "1", "1 (25%)"]
    assert [cells(text, name)[1] for name in names] == ["ok", "wrong", "not run", "not run"]


def test_a_failure_counts_and_has_no_time(suite: ModuleType) -> None:
    text = suite.table([line("level1/a", verdict()), line("level1/b", None)])
    assert cells(text, "level1")[1:4] == ["2", "1", "1 (50%)"]
    assert cells(text, "level1/b")[2:7] == ["–"] * 5
    with pytest.raises(ValueError, match="timing beside status"):
        verdict(status="wrong")


def test_a_baseline_that_failed_is_missing_and_never_one(suite: ModuleType) -> None:
    made = verdict(compiled=None)
    text = suite.table([line("level1/a", made)])
    row = dict(zip(suite.COLUMNS, cells(text, "level1/a")))
    assert row["vs compile default"] == "–" and row["vs eager"].startswith("2.00")
    assert cells(text, "level1")[3] == "0 (0%)"  # faster than what was not measured: no
    assert "torch.compile" not in headline(made)
    assert [r["speedup"] for r in speedup_rows(made)][2] is None
    assert "no baseline" in headline(verdict(eager=None, compiled=None))
    assert not is_faster(verdict(eager=None, compiled=None))


def test_lowered_precision_and_quick_looks_are_said(suite: ModuleType) -> None:
    """F8: a table or a headline of `paper` figures that passes for a strict one."""
    loose, quick = verdict(precision="paper"), verdict(tier="screen")
    assert "at paper precision" in headline(loose) and "precision" not in headline(verdict())
    text = suite.table([line("level1/a", loose), line("level1/b", quick)])
    assert cells(text, "level1/a")[1] == "ok (paper)"
    assert cells(text, "level1/b")[1] == "ok (screen)"


def test_settings_that_flatter_are_other_settings() -> None:
    """Other baselines, precision, threads or sampling never pass for the same measurement."""
    usual = Settings(target="cpu", tier="audit")
    for change in (
        {"precision": "paper"}, {"baselines": ("eager",)}, {"threads": 1}, {"time_limit_s": 0.1},
        {"styles": ()}, {"random_sets": 1}, {"track": "kernels"},
    ):
        assert dataclasses.replace(usual, **change).key != usual.key
    with pytest.raises(SettingsError, match="no baseline"):
        Options(target="cpu", baselines=("slow_eager",))


def test_trying_again_until_it_is_fast_gives_the_first_answer(tmp_path: Path) -> None:
    """The best of many noisy runs: a candidate is measured once in a run."""
    class Noisy:
        calls = 0

        def evaluate(self, candidate: Candidate) -> Verdict:
            self.calls += 1
            return verdict(eager=1.0 + self.calls)

    noisy = Noisy()
    room = Room(Store(tmp_path), "run-1", "key", BIAS.hash, lambda _: CANDIDATE, noisy)
    answers = [room.verdict(CANDIDATE)[0] for _ in range(5)]
    assert noisy.calls == 1
    assert {a.speedup["eager"].value for a in answers if a.speedup["eager"]} == {2.0}


def test_one_lucky_sample_moves_nothing() -> None:
    """A10: a sample of about zero, which would carry a mean of ratios to any height."""
    eager, honest = [2.0] * 21, [1.0] * 20
    lucky = stats.ratio(eager, [*honest, 1e-9])
    assert lucky.value == 2.0 and lucky.high == 2.0
    assert stats.timing([*honest, 1e-9], "two clocks").median_ms == 1.0


def test_an_interval_that_reaches_one_is_no_win() -> None:
    near = Interval(1.2, 0.99, 1.4)
    made = verdict(speedup={"eager": near, "compile_default": Interval(1.1, 1.05, 1.2)})
    assert not is_faster(made) and is_faster(verdict())
