"""Sampling: valid, as likely as it says, and with the log-probabilities of training."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch
from builtin_tasks import FIXED, SMALL, SPACE, small_config, task
from test_policies_builtin_model import sharp

from cuda_agent.errors import SettingsError
from cuda_agent.policies import SUBMIT, Step, apply_plan, plan_key
from cuda_agent.policies.builtin import (
    Builtin,
    Config,
    automaton,
    constrained_logprobs,
    encode_call,
    fits,
    sample,
)

SPACES = (SPACE, SMALL, FIXED)


def untrained(dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Builtin:
    made = Builtin.untrained(0, small_config())
    sharp(made.model)
    with torch.no_grad():
        made.model.model.embed_tokens.weight.mul_(scale)
    made.model.to(dtype)
    return made


def draw(builtin: Builtin, spaces=SPACES, seed: int = 0, **options):
    streams = [builtin.begin(task(space)) for space in spaces]
    generator = torch.Generator().manual_seed(seed)
    return streams, sample(builtin, streams, spaces, generator=generator, **options)


def batch(streams, made):
    """ids, allowed and logprobs of whole streams, as training lays them out."""
    whole = [[*stream, *g.ids] for stream, g in zip(streams, made)]
    width = max(map(len, whole))
    most = max(len(a) for g in made for a in g.allowed)
    ids = torch.zeros(len(whole), width, dtype=torch.int64)
    allowed = torch.full((len(whole), width, most), -1)
    old = torch.zeros(len(whole), width)
    for row, (stream, g) in enumerate(zip(streams, made)):
        ids[row, :len(whole[row])] = torch.tensor(whole[row])
        for t, (tokens, logprob) in enumerate(zip(g.allowed, g.logprobs), len(stream)):
            allowed[row, t, :len(tokens)] = torch.tensor(tokens)
            old[row, t] = logprob
    return ids, allowed, old


def test_every_sample_is_valid() -> None:
    builtin = untrained()
    spaces = SPACES * 20
    _, made = draw(builtin, spaces)
    assert {g.call.name for g in made} == {"apply_plan", "submit"}
    for space, g in zip(spaces, made):
        if g.call != SUBMIT:
            space.complete(g.call.arguments["plan"])
        assert encode_call(g.call, space, builtin.tokenizer) == list(g.ids)
        assert automaton(space, builtin.tokenizer).walk(g.ids) == list(g.allowed)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-3)])
def test_importance_ratios_are_one_before_the_first_step(dtype, bound) -> None:
    builtin = untrained(dtype)
    streams, made = draw(builtin, SPACES * 24, submit=False)
    ids, allowed, old = batch(streams, made)
    with torch.no_grad():
        logits, _ = builtin.model(ids)
    new, entropy = constrained_logprobs(logits[:, :-1], allowed[:, 1:], ids[:, 1:])
    choices = (allowed >= 0).sum(-1)[:, 1:] > 1
    assert choices.sum() > 50 and (old[:, 1:][choices] < -0.01).any()
    assert (new - old[:, 1:]).exp().sub(1).abs().max() < bound
    assert not new[~choices].any() and not entropy[~choices].any()
    assert (entropy[choices] > 0).all()


def test_temperature_scales_what_is_recorded() -> None:
    builtin = untrained()
    streams, made = draw(builtin, SPACES * 4, temperature=2.0)
    ids, allowed, old = batch(streams, made)
    with torch.no_grad():
        logits, _ = builtin.model(ids)
    new, _ = constrained_logprobs(logits[:, :-1], allowed[:, 1:], ids[:, 1:], 2.0)
    torch.testing.assert_close(new, old[:, 1:], rtol=1e-4, atol=1e-5)


def test_log_probabilities_are_those_of_the_frequencies() -> None:
    """A tenth of a nat is five deviations of the rarest of these counts."""
    builtin = untrained()
    _, made = draw(builtin, (SMALL,) * 4000)
    seen = Counter(g.ids for g in made)
    total = {g.ids: sum(g.logprobs) for g in made}
    assert len(seen) == len(SMALL) + 1
    assert math.isclose(sum(math.exp(x) for x in total.values()), 1.0, abs_tol=1e-4)
    for ids, count in seen.items():
        if count > 400:
            assert abs(math.log(count / 4000) - total[ids]) < 0.2


def test_greedy_takes_the_likeliest_and_seeds_decide_the_rest() -> None:
    builtin = untrained()
    _, [a, *_] = draw(builtin, seed=0, greedy=True)
    _, [b, *_] = draw(builtin, seed=1, greedy=True)
    assert a == b
    drawn = [[g.ids for g in draw(builtin, SPACES * 4, seed)[1]] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_stream_is_sampled_alike_alone_and_in_a_batch() -> None:
    """Padding and neighbours must not leak."""
    builtin = untrained()
    _, together = draw(builtin, SPACES, greedy=True)
    alone = [draw(builtin, (space,), greedy=True)[1][0] for space in SPACES]
    assert [g.ids for g in together] == [g.ids for g in alone]


def test_calls_without_a_choice_cost_nothing() -> None:
    _, [made] = draw(untrained(), (FIXED,), submit=False)
    assert made.call == apply_plan({"regions": {}}) and not any(made.logprobs)


def test_what_training_reinforces_is_sampled() -> None:
    """Gradients through constrained_logprobs reach what sample draws from."""
    builtin = untrained()
    target = SMALL.random(random.Random(3))
    stream = builtin.begin(task(SMALL))
    call = encode_call(apply_plan(target), SMALL, builtin.tokenizer)
    ids = torch.tensor([[*stream, *call]])
    walked = automaton(SMALL, builtin.tokenizer).walk(call)
    allowed = torch.full((1, ids.shape[1], max(map(len, walked))), -1)
    for t, tokens in enumerate(walked, len(stream)):
        allowed[0, t, :len(tokens)] = torch.tensor(tokens)
    optimizer = torch.optim.Adam(builtin.model.parameters(), lr=1e-3)
    for _ in range(40):
        logits, _ = builtin.model(ids)
        logprobs, _ = constrained_logprobs(logits[:, :-1], allowed[:, 1:], ids[:, 1:])
        optimizer.zero_grad()
        (-logprobs.sum()).backward()
        optimizer.step()
    _, made = draw(builtin, (SMALL,) * 8)
    plans = {plan_key(SMALL.complete(g.call.arguments.get("plan", {}))) for g in made}
    assert plans == {plan_key(target)}


def test_an_episode_is_one_stream() -> None:
    builtin = untrained()
    one = task(SMALL)
    stream = builtin.begin(one)
    [made] = sample(builtin, [stream], [SMALL], submit=False, greedy=True)
    step = Step(made.call, "wrong", None, "off by one")
    grown = [*stream, *made.ids, *builtin.answer(step)]
    assert builtin.stream(one, SMALL, (step,)) == grown


def test_a_full_context_is_refused_and_foreseen() -> None:
    config = Config(**{**vars(small_config()), "max_position_embeddings": 160})
    builtin = Builtin.untrained(0, config)
    short, long = builtin.begin(task(SMALL)), builtin.begin(task(SMALL)) + [7] * 80
    assert fits(builtin, short, SMALL) and not fits(builtin, long, SMALL)
    sample(builtin, [short], [SMALL])
    with pytest.raises(SettingsError, match="context of 160"):
        sample(builtin, [long], [SMALL])
