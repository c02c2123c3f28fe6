"""`search` on a made-up surface: beats random, never repeats, learns from failures, stops."""

from __future__ import annotations

import math

import pytest
from policies_surface import SPACE, Surface, best, verdict

from cuda_agent.policies import (
    Conversation,
    PlanSpace,
    RandomPolicy,
    SearchPolicy,
    Step,
    apply_plan,
    plan_key,
)


@pytest.mark.parametrize("budget", [8, 16])
def test_beats_random_at_equal_evaluations(budget: int) -> None:
    gains = []
    for seed in range(12):
        surface = Surface(seed)
        found = best(surface.play(SearchPolicy(seed), budget))
        drawn = best(surface.play(RandomPolicy(seed), budget))
        gains.append(math.log(drawn / found))
    assert sum(g > 0 for g in gains) >= 9
    assert sum(gains) / len(gains) > 0.2


def test_first_plan_is_the_default_and_no_plan_repeats() -> None:
    surface = Surface(3)
    steps = surface.play(SearchPolicy(0), 40)
    plans = [plan_key(SPACE.complete(step.plan or {})) for step in steps]
    assert plans[0] == plan_key(SPACE.default())
    assert len(set(plans)) == len(plans)


def test_same_seed_same_plans_and_resuming_changes_nothing() -> None:
    surface = Surface(1)
    once = surface.play(SearchPolicy(7), 12)
    again = surface.play(SearchPolicy(7), 12)
    assert [s.plan for s in once] == [s.plan for s in again]
    resumed = SearchPolicy(7).act(Conversation(SPACE, SPACE.default(), 12, tuple(once[:8])))
    assert resumed.arguments["plan"] == once[8].plan
    other = surface.play(SearchPolicy(8), 12)
    assert [s.plan for s in once] != [s.plan for s in other]


def test_a_choice_that_alone_explains_a_failure_is_left_alone() -> None:
    surface = Surface(2)
    default = SPACE.default()
    broken = SPACE.complete(
        {"regions": {"r1": {"skill": "normalization", "knobs": {"strategy": "cluster"}}}}
    )
    steps = (
        Step(apply_plan(default), "ok", verdict(surface.ms(default))),
        Step(apply_plan(broken), "compile_error", verdict(0, "compile_error")),
    )
    conversation = Conversation(SPACE, default, 30, steps)
    for _ in range(20):
        plan = SearchPolicy(0, patience=99).act(conversation).arguments["plan"]
        assert not surface.fails(plan)
        conversation += Step(apply_plan(plan), "ok", verdict(surface.ms(plan)))


def test_goes_on_when_the_default_itself_fails() -> None:
    steps = (Step(apply_plan(SPACE.default()), "compile_error", verdict(0, "compile_error")),)
    call = SearchPolicy(0).act(Conversation(SPACE, SPACE.default(), 8, steps))
    assert call.name == "apply_plan" and call.arguments["plan"] != SPACE.default()


def test_submits_after_patience_without_gain() -> None:
    flat = Surface(0)
    flat.ms = lambda plan: 1.0  # type: ignore[method-assign]
    assert len(flat.play(SearchPolicy(0, patience=5), 60)) == 6


def test_submits_when_every_plan_was_tried() -> None:
    regions = {"r0": {"pointwise": {"vector": (4, 2)}, "torch": {}}}
    space = PlanSpace({"fold": (False, True)}, regions)
    surface = Surface(0, space)
    steps = surface.play(SearchPolicy(0, patience=99), 60)
    assert len(steps) == len(space) == 6


def test_a_large_space_is_still_quick() -> None:
    regions = {
        f"r{i}": {"pointwise": {"vector": (4, 2, 1), "block": (256, 128, 512)}, "torch": {}}
        for i in range(40)
    }
    space = PlanSpace({}, regions)
    surface = Surface(0, space)
    steps = surface.play(SearchPolicy(0), 6)
    assert len(steps) == 6
