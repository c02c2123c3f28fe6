"""Search and audit as one: the best by audit wins, failures of the audit, resuming, interrupts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from agents_fakes import PROBLEM, FakePlanner, FakeWorker, verdict

from cuda_agent import policies
from cuda_agent.agents import optimize as module
from cuda_agent.agents.optimize import Options, is_faster, optimize_instance
from cuda_agent.errors import SettingsError
from cuda_agent.policies import Conversation, RulesPolicy, ToolCall
from cuda_agent.records import Candidate, Verdict
from cuda_agent.store import Store


class FakeInstance:
    problem = PROBLEM


class Makers:
    """Hands out a fake worker for each tier, and keeps them."""

    def __init__(self, **audit: Any) -> None:
        self.screen = FakeWorker()
        self.audit = FakeWorker(tier="audit", **audit)

    def __call__(self, instance: Any, settings: Any, cache: Path) -> FakeWorker:
        return self.screen if settings.tier == "screen" else self.audit


@pytest.fixture(autouse=True)
def planner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Planner, "make", lambda instance, facts: FakePlanner())


def run(store: Store, makers: Any, **options: Any) -> module.Outcome:
    return optimize_instance(
        cast(Any, FakeInstance()), cast(Any, None), Options("cpu", **{"budget": 10, **options}),
        store, "run", make_worker=makers,
    )


def test_best_two_are_audited_and_the_best_by_audit_wins(tmp_path: Path) -> None:
    class Reversed(FakeWorker):
        """The audit sees it the other way round."""

        def evaluate(self, candidate: Candidate) -> Verdict:
            self.judged.append(candidate.hash)
            return verdict(1 / len(self.judged), "ok", candidate.hash, tier="audit")

    makers = Makers()
    makers.audit = Reversed(tier="audit")
    outcome = run(Store(tmp_path), makers)
    assert len(makers.audit.judged) == 2
    assert outcome.candidate is not None and outcome.candidate.hash == makers.audit.judged[1]
    assert outcome.verdict is not None and outcome.verdict.tier == "audit"
    assert outcome.faster and outcome.evaluations == len(makers.screen.judged)
    assert makers.screen.closed and makers.audit.closed


def test_a_candidate_that_fails_its_audit_makes_room_for_the_next(tmp_path: Path) -> None:
    class Strict(FakeWorker):
        """Finds the first two wrong."""

        def evaluate(self, candidate: Candidate) -> Verdict:
            self.judged.append(candidate.hash)
            status = "wrong" if len(self.judged) <= 2 else "ok"
            return verdict(0.5, status, candidate.hash, tier="audit")

    makers = Makers()
    makers.audit = Strict(tier="audit")
    outcome = run(Store(tmp_path), makers)
    assert len(makers.audit.judged) == 4
    assert outcome.candidate is not None and outcome.candidate.hash == makers.audit.judged[2]


def test_no_correct_candidate(tmp_path: Path) -> None:
    makers = Makers()
    makers.screen.failing = ("vector", "torch")
    outcome = run(Store(tmp_path), makers, budget=3)
    assert outcome.candidate is None and not outcome.faster
    assert outcome.verdict is not None and outcome.verdict.status == "wrong"
    assert makers.audit.judged == []


def test_all_audits_failing_is_no_solution(tmp_path: Path) -> None:
    outcome = run(Store(tmp_path), Makers(failing=("vector", "torch")))
    assert outcome.candidate is None
    assert outcome.verdict is not None and outcome.verdict.tier == "audit"


def test_the_same_run_again_measures_nothing(tmp_path: Path) -> None:
    first = run(Store(tmp_path), Makers())

    def refuse(*_: Any) -> FakeWorker:
        raise AssertionError("a worker was started")

    again = run(Store(tmp_path), refuse)
    assert again == first
    more = Makers()
    run(Store(tmp_path), more, budget=12)
    assert len(more.screen.judged) <= 2


@pytest.mark.parametrize("tier", ["screen", "audit"])
def test_ctrl_c_keeps_the_best_so_far(tmp_path: Path, tier: str) -> None:
    makers = Makers()
    worker = makers.screen if tier == "screen" else makers.audit
    worker.interrupt_at = 3 if tier == "screen" else 1
    outcome = run(Store(tmp_path), makers)
    assert outcome.interrupted and worker.closed
    assert outcome.verdict is not None and outcome.verdict.tier == tier
    resumed = run(Store(tmp_path), Makers())
    whole = run(Store(tmp_path / "whole"), Makers())
    assert resumed.verdict == whole.verdict and not resumed.interrupted


def test_ctrl_c_before_anything_was_measured(tmp_path: Path) -> None:
    makers = Makers()
    makers.screen.interrupt_at = 0
    outcome = run(Store(tmp_path), makers)
    assert outcome.interrupted and outcome.candidate is None and outcome.verdict is None


def test_faster_means_the_lower_ends_over_both_baselines() -> None:
    assert is_faster(verdict(0.8))
    assert not is_faster(verdict(0.89))  # 1.01 over torch.compile, but its lower end is below 1
    assert not is_faster(verdict(0.95)) and not is_faster(verdict(0.5, "wrong"))


def test_options_are_checked() -> None:
    with pytest.raises(SettingsError, match="at least 1"):
        Options("cpu", budget=0)
    with pytest.raises(SettingsError, match="above 0"):
        Options("cpu", minutes=-1)
    with pytest.raises(SettingsError, match="precision"):
        _ = Options("cpu", precision=cast(Any, "loose")).settings


def test_out_of_time_one_audit_is_enough_and_there_is_always_one(tmp_path: Path) -> None:
    makers = Makers()
    outcome = run(Store(tmp_path), makers, budget=4, minutes=0.02)
    assert len(makers.screen.judged) == 4 and len(makers.audit.judged) == 2
    late = Makers()
    outcome = run(Store(tmp_path), late, budget=99, minutes=1e-9)
    assert outcome.candidate is not None and late.screen.judged == []


def test_a_policy_that_reads_gets_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Conversation] = []

    class Reader(RulesPolicy):
        def act(self, conversation: Conversation) -> ToolCall:
            seen.append(conversation)
            return super().act(conversation)

    monkeypatch.setitem(policies.POLICIES, "rules", Reader)
    run(Store(tmp_path), Makers(), policy="rules", precision="matched")
    task = seen[0].task
    assert task is not None and (task.space, task.precision) == (seen[0].space, "matched")
    assert set(task.regions) == set(task.space.regions) and not task.baselines_ms


def test_the_builtin_policy_is_told_what_it_was_taught_with() -> None:
    assert Options("cpu", policy="builtin").settings.baselines == ("eager", "compile_default")
    assert Options("cpu").settings.baselines == ("eager",)
