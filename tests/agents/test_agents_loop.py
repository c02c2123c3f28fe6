"""The loop: budget, resuming, nothing measured twice, bad plans, ranking."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from agents_fakes import PROBLEM, SPACE, FakePlanner, FakeWorker, slow

from cuda_agent.agents.loop import Limits, Room, evaluations, ranking, run_episode
from cuda_agent.errors import HarnessError
from cuda_agent.policies import RandomPolicy, ScriptedPolicy, SearchPolicy, ToolCall, apply_plan
from cuda_agent.records import Candidate, Episode, Verdict
from cuda_agent.store import Store


def room(tmp_path: Path, worker: Any) -> Room:
    return Room(
        Store(tmp_path), "run", "settings", PROBLEM.hash, FakePlanner().assemble, worker
    )


def play(policy: Any, place: Room, budget: int = 8, **options: Any) -> Episode:
    limits = options.pop("limits", Limits(budget))
    return run_episode(policy, place, SPACE, SPACE.default(), limits, **options)


def test_search_finds_a_faster_plan_and_everything_is_stored(tmp_path: Path) -> None:
    worker = FakeWorker()
    seen = []
    place = room(tmp_path, worker)
    episode = play(SearchPolicy(0), place, 12, on_turn=lambda n, step: seen.append((n, step)))
    assert [n for n, _ in seen] == list(range(1, len(seen) + 1)) and len(seen) <= 12
    assert episode == Store(tmp_path).episode("run")
    assert len(set(worker.judged)) == len(worker.judged) == evaluations(episode)
    (best, verdict), *others = ranking(episode, Store(tmp_path))
    assert verdict.hash == episode.best_verdict_hash
    assert best.hash == episode.best_candidate_hash == verdict.candidate_hash
    assert slow(best.plan or {}) < 0.5 and len(others) == len(worker.judged) - 1


def test_budget_counts_evaluations(tmp_path: Path) -> None:
    worker = FakeWorker()
    assert evaluations(play(RandomPolicy(0), room(tmp_path, worker), 5)) == 5
    assert len(worker.judged) == 5


def test_deadline_stops_before_the_next_turn(tmp_path: Path) -> None:
    worker = FakeWorker()
    limits = Limits(100, deadline=time.monotonic() - 1)
    assert play(RandomPolicy(0), room(tmp_path, worker), limits=limits).turns == ()


def test_an_interrupted_episode_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    whole = FakeWorker()
    expected = play(SearchPolicy(3), room(tmp_path / "whole", whole), 9)
    broken = FakeWorker(interrupt_at=4)
    with pytest.raises(KeyboardInterrupt):
        play(SearchPolicy(3), room(tmp_path / "cut", broken), 9)
    rest = FakeWorker()
    resumed = play(SearchPolicy(3), room(tmp_path / "cut", rest), 9)
    assert broken.judged + rest.judged == whole.judged
    assert [t.action for t in resumed.turns] == [t.action for t in expected.turns]
    again = FakeWorker()
    assert play(SearchPolicy(3), room(tmp_path / "cut", again), 9) == resumed
    assert again.judged == []


def test_a_verdict_stored_before_the_kill_is_not_measured_again(tmp_path: Path) -> None:
    """Killed between the verdict and its turn."""
    place = room(tmp_path, FakeWorker())
    step, candidate = place.answer(apply_plan(SPACE.default()))
    again = FakeWorker()
    episode = play(ScriptedPolicy([step.call]), room(tmp_path, again))
    assert again.judged == [] and evaluations(episode) == 1
    assert candidate is not None and episode.turns[0].candidate_hash == candidate.hash


def test_bad_plans_are_answered_and_cannot_go_on_for_ever(tmp_path: Path) -> None:
    class Stubborn:
        name = "stubborn"

        def act(self, conversation: Any) -> ToolCall:
            return apply_plan({"regions": {"r0": {"skill": "magic"}}})

    worker = FakeWorker()
    episode = play(Stubborn(), room(tmp_path, worker), 4)
    assert {t.status for t in episode.turns} == {"invalid_plan"} and len(episode.turns) == 12
    assert worker.judged == [] and episode.best_candidate_hash is None
    step, _ = room(tmp_path, worker).answer(ToolCall("dance"))
    assert step.status == "invalid_plan" and "no tool 'dance'" in step.detail


def test_equal_sources_are_measured_once(tmp_path: Path) -> None:
    calls = [apply_plan(SPACE.default()), apply_plan({})]
    worker = FakeWorker()
    episode = play(ScriptedPolicy(calls), room(tmp_path, worker))
    assert len(episode.turns) == 2 and len(worker.judged) == 1 == evaluations(episode)


def test_our_own_failures_are_not_the_candidates(tmp_path: Path) -> None:
    class Broken(FakeWorker):
        def evaluate(self, candidate: Candidate) -> Verdict:
            raise HarnessError("driver lost")

    episode = play(ScriptedPolicy([apply_plan({})]), room(tmp_path, Broken()))
    assert episode.turns[0].status == "harness_error" and episode.turns[0].verdict_hash is None
    assert evaluations(episode) == 0


def test_failures_are_ranked_nowhere(tmp_path: Path) -> None:
    worker = FakeWorker(failing=('"vector":2',))
    episode = play(RandomPolicy(1), room(tmp_path, worker), 15)
    ranked = ranking(episode, Store(tmp_path))
    assert 0 < len(ranked) < len(worker.judged)
    times = [v.timing.median_ms for _, v in ranked if v.timing]
    assert times == sorted(times) and len(times) == len(ranked)
