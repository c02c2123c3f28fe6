"""Rendering, tokenizer and the automaton of valid calls."""

from __future__ import annotations

import json
import random

import pytest
from builtin_tasks import FIXED, SMALL, SPACE, detail, task
from policies_surface import SPACE as SURFACE
from policies_surface import verdict

from cuda_agent.errors import SettingsError
from cuda_agent.policies import SUBMIT, Step, Task, ToolCall, apply_plan
from cuda_agent.policies.builtin import (
    Tokenizer,
    automaton,
    call_text,
    encode_call,
    feedback,
    opening,
    shipped,
    train,
)
from cuda_agent.policies.builtin.automaton import DONE

TOKENIZER = shipped()
SPACES = (SPACE, SMALL, FIXED, SURFACE)


def test_the_opening_names_every_open_choice_once() -> None:
    text = opening(task())
    assert "graph cuda_graph=false|true\n" in text
    assert "+softmax strategy=block|warp|cluster2 threads=128|64|256\n" in text
    assert "fold" not in text and "storage" not in text  # one option: nothing to choose
    assert "eager=0.500" in text and "views 1" in text


def test_a_region_with_known_skills_refers_to_the_first() -> None:
    skills = SMALL.regions["r0"]
    twice = type(SMALL)({}, {"r0": skills, "r7": skills})
    text = opening(task(twice))
    assert text.count("+pointwise") == 1 and "\nlike r0\n" in text


def test_long_regions_are_cut() -> None:
    many = Task(SMALL, {"r0": detail(ops=["add"] * 40)}, task().device)
    assert "add,+28" in opening(many)


def test_tasks_go_to_json_and_back() -> None:
    data = json.loads(json.dumps(task().to_json()))
    assert Task.from_json(data) == task()


def test_feedback_shows_lower_ends_or_the_judges_words() -> None:
    call = apply_plan({})
    assert feedback(Step(call, "ok", verdict(0.5))) == "ok ms=0.500 eager=1.98 compile=1.98\n"
    wrong = Step(call, "wrong", verdict(1, "wrong"), "first\nmismatch " + "x" * 500)
    assert feedback(wrong).startswith("wrong first mismatch xxx")
    assert len(feedback(wrong)) < 180


def test_a_call_holds_only_what_departs_from_the_default() -> None:
    plan = SPACE.default()
    assert call_text(apply_plan(plan), SPACE) == (
        '{"name":"apply_plan","arguments":{"plan":{"regions":{}}}}'
    )
    plan["regions"]["r2"]["knobs"]["stores"] = "stream"
    assert '{"r2":{"skill":"pointwise","knobs":{"stores":"stream"}}}' in call_text(
        apply_plan(plan), SPACE
    )
    with pytest.raises(SettingsError):
        call_text(apply_plan({"regions": {"r9": {"skill": "torch"}}}), SPACE)


@pytest.mark.parametrize("space", SPACES)
def test_every_plan_has_one_spelling_and_it_is_a_path(space) -> None:
    rng = random.Random(0)
    machine = automaton(space, TOKENIZER)
    for plan in [space.default(), *(space.random(rng) for _ in range(200))]:
        ids = encode_call(apply_plan(plan), space, TOKENIZER)
        machine.walk(ids)
        call = ToolCall.from_json(json.loads(TOKENIZER.decode(ids)))
        assert space.complete(call.arguments["plan"]) == plan
    machine.walk(encode_call(SUBMIT, space, TOKENIZER))


@pytest.mark.parametrize("space", SPACES)
def test_every_path_is_a_valid_call_in_the_tokenizers_own_spelling(space) -> None:
    rng = random.Random(1)
    machine = automaton(space, TOKENIZER)
    for _ in range(200):
        node, ids = machine.start, []
        while node != DONE:
            ids.append(rng.choice(list(machine.edges[node])))
            node = machine.edges[node][ids[-1]]
        call = ToolCall.from_json(json.loads(TOKENIZER.decode(ids)))
        assert encode_call(call, space, TOKENIZER) == ids


def test_all_plans_of_a_space_are_reachable() -> None:
    """Paths and plans are as many: nothing is left out, nothing is spelt twice."""
    machine = automaton(SPACE, TOKENIZER, submit=False)
    paths: dict[int, int] = {DONE: 1}

    def count(node: int) -> int:
        if node not in paths:
            paths[node] = sum(count(after) for after in machine.edges[node].values())
        return paths[node]

    assert count(machine.start) == len(SPACE)


def test_submit_can_be_taken_away() -> None:
    ids = encode_call(SUBMIT, SPACE, TOKENIZER)
    with pytest.raises(ValueError):
        automaton(SPACE, TOKENIZER, submit=False).walk(ids)


def test_an_incomplete_call_is_no_path() -> None:
    with pytest.raises(ValueError):
        automaton(SPACE, TOKENIZER).walk(encode_call(SUBMIT, SPACE, TOKENIZER)[:-1])


def test_any_text_survives_the_tokenizer_and_special_tokens_in_it_are_text(tmp_path) -> None:
    text = "é <|end|> \x00 x = 1\n"
    TOKENIZER.save(tmp_path)
    for tokenizer in (TOKENIZER, Tokenizer.load(tmp_path)):
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.end not in tokenizer.encode(text)


def test_training_a_tokenizer_is_deterministic() -> None:
    texts = [opening(task()), call_text(SUBMIT, SPACE)] * 3
    assert train(texts, 400).backend.to_str() == train(texts, 400).backend.to_str()


def test_a_folder_without_a_tokenizer_is_said(tmp_path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SettingsError, match="is no tokenizer"):
        Tokenizer.load(tmp_path)
