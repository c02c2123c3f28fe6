"""Records go to JSON and back, hash their content, and refuse contradictions."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from cuda_agent.records import (
    BASELINES,
    Candidate,
    Episode,
    ErrorReport,
    Finding,
    Interval,
    Mismatch,
    Problem,
    Record,
    Run,
    Timing,
    Turn,
    Verdict,
    content_hash,
)

PROBLEM = Problem("softmax", "x = 1\n", "softmax.py")
CANDIDATE = Candidate(PROBLEM.hash, {"model_new.py": "y = 2\n"}, "me", {"graph": {}}, True)
TIMING = Timing(1.0, 0.9, 1.1, (0.9, 1.0, 1.1), "clock")
BASE: dict[str, Any] = {
    "problem": "softmax", "problem_hash": PROBLEM.hash, "candidate_hash": CANDIDATE.hash,
    "target": "cpu", "tier": "audit", "track": "library", "precision": "strict",
    "dtype": "float32",
}
VERDICT = Verdict(
    status="ok", **BASE, findings=(Finding("A1", "seen"),),
    error=ErrorReport(1e-7, 1e-6, "float64", 1e-7, 1e-5, 7),
    speedup={**dict.fromkeys(BASELINES), "eager": Interval(2.0, 1.9, 2.1)},
    timing=TIMING, baselines={**dict.fromkeys(BASELINES), "eager": TIMING},
    external_ops=("aten.mm",), seconds={"total": 1.5},
)
WRONG = Verdict(
    status="wrong", **BASE,
    error=ErrorReport(
        0.5, 2.0, "float64", mismatch=Mismatch("out", (0, 3), "nan", 1.0, 5, 32, "every 4th")
    ),
)
EPISODE = Episode(
    PROBLEM.hash, "search", 3, (Turn({"name": "submit"}, None, None, "ok", 0.1),), None, None
)
RUN = Run("run-1", "optimize", PROBLEM, {"budget": 4}, "2026-01-01", {"torch": "2"}, True)


@pytest.mark.parametrize("record", [PROBLEM, CANDIDATE, VERDICT, WRONG, EPISODE, RUN])
def test_json_and_back(record: Record) -> None:
    text = json.dumps(record.to_json())
    assert type(record).from_json(json.loads(text)) == record


def test_unknown_keys_are_refused_and_missing_ones_defaulted() -> None:
    with pytest.raises(ValueError, match=r"Problem: unknown keys \['colour'\]"):
        Problem.from_json({**PROBLEM.to_json(), "colour": "red"})
    assert Problem.from_json({"name": "a", "source": "b", "origin": "c"}).dtype == "float32"


def test_hashes_follow_content_and_nothing_else() -> None:
    assert PROBLEM.hash == dataclasses.replace(PROBLEM, name="other", origin="elsewhere").hash
    for change in ({"source": "x = 2\n"}, {"dtype": "bfloat16"}, {"fingerprint": "f"}):
        assert dataclasses.replace(PROBLEM, **change).hash != PROBLEM.hash
    assert dataclasses.replace(CANDIDATE, author="you").hash == CANDIDATE.hash
    assert dataclasses.replace(CANDIDATE, files={}).hash != CANDIDATE.hash
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert VERDICT.hash == Verdict.from_json(json.loads(json.dumps(VERDICT.to_json()))).hash


def test_a_timing_exists_only_on_ok() -> None:
    with pytest.raises(ValueError, match="a timing beside status 'wrong'"):
        dataclasses.replace(VERDICT, status="wrong")
    with pytest.raises(ValueError, match="a timing beside"):
        Verdict(status="timeout", **BASE, speedup={"eager": Interval(1.0, 1.0, 1.0)})
    with pytest.raises(ValueError, match="no such status 'fine'"):
        Verdict(status="fine", **BASE)  # type: ignore[arg-type]


def test_an_interval_holds_its_value() -> None:
    with pytest.raises(ValueError, match="does not hold"):
        Interval(3.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="does not hold"):
        Interval(float("nan"), 1.0, 2.0)


def test_records_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        PROBLEM.name = "other"  # type: ignore[misc]
