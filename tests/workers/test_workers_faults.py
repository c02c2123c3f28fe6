"""Nothing lost: a short run of fault_injection.py, and judge_all on a made-up worker."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import fault_injection as faults
import pytest

from cuda_agent.errors import HarnessError
from cuda_agent.records import Candidate, Verdict
from cuda_agent.store import Store
from cuda_agent.workers.batch import judge_all


def test_a_disturbed_run_ends_like_an_undisturbed_one() -> None:
    with faults.small_disk() as (folder, may_fill):
        found = faults.run(folder, 30, workers=2, pause_s=3.0, seed=1, may_fill=may_fill)
    assert faults.passed(found), found
    assert found["killed"], "nothing was disturbed"


def test_the_comparison_sees_what_is_lost_doubled_or_different() -> None:
    made = faults.candidates(4)
    right = [_verdict(c, faults.KINDS[faults._kind(c)]) for c in made]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults, "_undisturbed", lambda: {k: (s, ()) for k, s in faults.KINDS.items()})
        assert faults.passed(faults.compare(4, right))
        assert faults.compare(4, right[1:])["lost"] == 1
        assert faults.compare(4, [*right, right[0]])["duplicated"] == 1
        other = _verdict(made[0], "harness_error")
        assert len(faults.compare(4, [other, *right[1:]])["different"]) == 1  # type: ignore[arg-type]


class Flaky:
    """Fails `failures` times for each candidate before it answers."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.asked: list[str] = []

    def submit(self, candidate: Candidate) -> Future[Verdict]:
        self.asked.append(candidate.hash)
        future: Future[Verdict] = Future()
        if (number := self.asked.count(candidate.hash)) > self.failures:
            future.set_result(_verdict(candidate, "ok"))
        elif number % 2:
            future.set_exception(HarnessError("gone"))
        else:
            future.set_result(_verdict(candidate, "harness_error"))
        return future

    evaluate = close = None


def test_failures_of_our_own_are_judged_again_and_what_is_known_is_not(tmp_path: Path) -> None:
    store, made = Store(tmp_path), faults.candidates(5)
    worker = Flaky(3)
    judge_all([*made, *made], worker, store, "run", "key")  # type: ignore[arg-type]
    assert [v.status for v in store.verdicts("run")] == ["ok"] * 5
    assert len(worker.asked) == 20
    judge_all(made, worker, store, "run", "key")  # type: ignore[arg-type]
    assert len(worker.asked) == 20 and len(store.verdicts("run")) == 5
    judge_all(made, worker, store, "run", "other key")  # type: ignore[arg-type]
    assert len(store.verdicts("run")) == 10


def test_what_fails_five_times_is_said(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(HarnessError, match="gone"):
        judge_all(faults.candidates(1), Flaky(99), store, "run", "key")  # type: ignore[arg-type]


def _verdict(candidate: Candidate, status: str) -> Verdict:
    return Verdict(
        status=status,  # type: ignore[arg-type]
        problem="softmax", problem_hash=faults.PROBLEM.hash, candidate_hash=candidate.hash,
        target="cpu", tier="screen", track="library", precision="strict", dtype="float32",
    )
