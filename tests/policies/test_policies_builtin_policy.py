"""The builtin policy: the model first, then search; the same answer to the same conversation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builtin_tasks import SPACE, small_config, task

from cuda_agent import policies
from cuda_agent.errors import SettingsError
from cuda_agent.policies import Conversation, Plan, SearchPolicy, Step, plan_key
from cuda_agent.policies.base import SUBMIT
from cuda_agent.policies.builtin import Builtin, encode_call
from cuda_agent.policies.builtin import policy as module
from cuda_agent.policies.builtin.policy import BuiltinPolicy
from cuda_agent.records import Interval, Timing, Verdict


@pytest.fixture(scope="module")
def builtin() -> Builtin:
    return Builtin.untrained(3, small_config())


def ok(call: policies.ToolCall, speedup: float = 1.5) -> Step:
    verdict = Verdict(
        "ok", "p", "p", "c", "null", "screen", "library", "strict", "float32",
        timing=Timing(1.0, 1.0, 1.0, (), "made up"),
        speedup={"eager": Interval(speedup, speedup * 0.99, speedup * 1.01)},
    )
    return Step(call, "ok", verdict)


def begun(budget: int = 16) -> Conversation:
    return Conversation(SPACE, SPACE.default(), budget, task=task())


def play(
    policy: policies.Policy, conversation: Conversation, turns: int,
    speedup: Callable[[Plan], float] = lambda plan: 1.5,
) -> Conversation:
    for _ in range(turns):
        call = policy.act(conversation)
        if call == SUBMIT:
            break
        conversation += ok(call, speedup(call.arguments["plan"]))
    return conversation


def test_the_model_proposes_without_repeats_then_search_goes_on(builtin: Builtin) -> None:
    policy = BuiltinPolicy(0, builtin)
    played = play(policy, begun(), 8)
    keys = [plan_key(step.plan or {}) for step in played.steps]
    assert len(set(keys)) == 8
    # The first is what the model likes best: forced to start there, no other seed differs.
    assert play(BuiltinPolicy(9, builtin), begun(), 1).steps == played.steps[:1]
    assert play(BuiltinPolicy(9, builtin), begun(), 8).steps != played.steps
    # Behind the share of the budget it is search that acts, on all that was measured.
    assert policy.act(played) == SearchPolicy(0).act(played)
    early = Conversation(SPACE, SPACE.default(), 16, played.steps[:7], task())
    assert policy.act(early) != SearchPolicy(0).act(early)


def test_same_conversation_same_action(builtin: Builtin) -> None:
    played = play(BuiltinPolicy(5, builtin), begun(), 6)
    for turn in (0, 1, 5):
        part = Conversation(SPACE, SPACE.default(), 16, played.steps[:turn], task())
        assert BuiltinPolicy(5, builtin).act(part) == played.steps[turn].call


def test_the_model_reads_what_was_measured(
    builtin: Builtin, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[int]] = []
    plain = module.sample

    def spy(b: Builtin, streams: list[list[int]], *args: object, **options: object) -> object:
        seen.append(list(streams[0]))
        return plain(b, streams, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "sample", spy)
    bad = Step(policies.apply_plan({"regions": {"r9": {"skill": "x"}}}), "invalid_plan")
    worse = Step(policies.ToolCall("read", {"path": "x"}), "invalid_plan")
    conversation = begun() + bad + ok(policies.apply_plan(SPACE.default()), 7.25) + worse
    BuiltinPolicy(0, builtin).act(conversation)
    text = builtin.tokenizer.decode(seen[0])
    assert "eager=7.18" in text and "r9" not in text
    called = encode_call(policies.apply_plan(SPACE.default()), SPACE, builtin.tokenizer)
    assert any(seen[0][i : i + len(called)] == called for i in range(len(seen[0])))


def test_an_episode_beyond_the_context_is_left_to_search(
    builtin: Builtin, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = play(BuiltinPolicy(0, builtin), begun(), 2)
    room = len(builtin.stream(task(), SPACE, played.steps)) + 5
    limit = builtin.model.config.__class__(
        **{**vars(builtin.model.config), "max_position_embeddings": room}
    )
    monkeypatch.setattr(builtin.model, "config", limit)
    assert BuiltinPolicy(0, builtin).act(played) == SearchPolicy(0).act(played)


def test_a_share_of_one_is_the_model_alone(builtin: Builtin) -> None:
    played = play(BuiltinPolicy(0, builtin, share=1.0), begun(4), 9)
    assert 1 <= len(played.steps) <= 4
    assert BuiltinPolicy(0, builtin, share=1.0).act(played) == SUBMIT


def test_weights_from_a_folder_or_one_clear_sentence(
    builtin: Builtin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builtin.save(tmp_path)
    got = policies.get("builtin", 2, str(tmp_path))
    assert got.act(begun()) == BuiltinPolicy(2, builtin).act(begun())
    monkeypatch.setattr(module, "WEIGHTS", tmp_path / "none")
    with pytest.raises(SettingsError, match="holds no trained weights; give --model"):
        policies.get("builtin")
    with pytest.raises(SettingsError, match=r"config\.json does not exist"):
        policies.get("builtin", 0, str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="policy search reads no model"):
        policies.get("search", 0, str(tmp_path))
    with pytest.raises(SettingsError, match="holds the task"):
        got.act(Conversation(SPACE, SPACE.default(), 4))
