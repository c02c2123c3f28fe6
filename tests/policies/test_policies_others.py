"""The plan space, and the policies without a model."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from policies_surface import SPACE, Surface, verdict

from cuda_agent import policies
from cuda_agent.errors import SettingsError
from cuda_agent.policies import (
    Conversation,
    PlanSpace,
    RandomPolicy,
    RulesPolicy,
    ScriptedPolicy,
    Step,
    ToolCall,
    apply_plan,
    plan_key,
)
from cuda_agent.records import Episode, Turn


def test_rules_say_the_defaults_once() -> None:
    conversation = Conversation(SPACE, SPACE.default(), 16)
    call = RulesPolicy().act(conversation)
    assert call.arguments["plan"] == SPACE.default()
    assert RulesPolicy().act(conversation + Step(call, "ok", verdict(1.0))).name == "submit"


def test_random_is_uniform_over_a_region_and_exhausts_a_small_space() -> None:
    space = PlanSpace({}, {"r0": {"pointwise": {"vector": (4, 2, 1)}, "torch": {}}})
    drawn = Counter(plan_key(space.random(random.Random(i))) for i in range(2000))
    assert len(drawn) == 4 and min(drawn.values()) > 400
    assert len(Surface(0, space).play(RandomPolicy(0), 50)) == 4


def test_random_repeats_by_seed() -> None:
    surface = Surface(0)
    once = [s.plan for s in surface.play(RandomPolicy(5), 6)]
    assert once == [s.plan for s in surface.play(RandomPolicy(5), 6)]
    assert once != [s.plan for s in surface.play(RandomPolicy(6), 6)]


def test_scripted_replays_an_episode() -> None:
    call = apply_plan(SPACE.default())
    turn = Turn(call.to_json(), "c", "v", "ok", 0.1)
    policy = ScriptedPolicy.replay(Episode("p", "rules", 0, (turn,)))
    assert policy.act(Conversation(SPACE, {}, 4)) == call
    assert policy.act(Conversation(SPACE, {}, 4, (Step(call, "ok"),))) == ToolCall("submit")


def test_neighbours_differ_in_one_choice() -> None:
    plan = SPACE.default()
    near = list(SPACE.neighbours(plan))
    assert len({plan_key(p) for p in near}) == len(near) == 2 + 8 + 9 + 6
    for other in near:
        changed = [r for r in plan["regions"] if other["regions"][r] != plan["regions"][r]]
        assert len(changed) + (other["graph"] != plan["graph"]) == 1
        assert SPACE.complete(other) == other


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"graph": {"unknown": 1}}, "graph choice 'unknown'"),
        ({"graph": {"fold": 7}}, "fold=7"),
        ({"regions": {"r9": {"skill": "torch"}}}, "no region 'r9'"),
        ({"regions": {"r0": {"skill": "scan"}}}, "no skill 'scan' for region r0"),
        ({"regions": {"r0": {"skill": "pointwise", "knobs": {"block": 3}}}}, "block=3"),
    ],
)
def test_plans_outside_the_space_are_refused(plan: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        SPACE.complete(plan)


def test_get_by_name_and_by_dotted_path() -> None:
    assert policies.get("search", 3).name == "search"
    assert policies.get("cuda_agent.policies.rules:RulesPolicy").name == "rules"
    with pytest.raises(SettingsError, match="no policy 'genius'; choose from search"):
        policies.get("genius")
    with pytest.raises(SettingsError, match="cannot be imported"):
        policies.get("no.such.module:Policy")
