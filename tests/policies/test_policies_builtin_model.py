"""The model: cached decoding equals whole passes, and its files are a Llama to transformers."""

from __future__ import annotations

import json

import pytest
import torch
from builtin_tasks import small_config

from cuda_agent.errors import SettingsError
from cuda_agent.policies.builtin import Builtin, CausalLM, Config


def ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randint(0, small_config().vocab_size, (batch, length), generator=made)


def sharp(model: CausalLM) -> CausalLM:
    """Larger weights, so that attention and logits are far from uniform, as after training."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else None
    return model.eval()


def model(critic: str = "shared") -> CausalLM:
    return sharp(Builtin.untrained(0, small_config(), critic).model)  # type: ignore[arg-type]


def test_the_default_fits_the_package() -> None:
    count = sum(p.numel() for p in CausalLM(Config(), "none").parameters())
    assert 5e6 < count < 8e6  # bf16: at most 16 MiB


def test_prefill_and_blocks_of_uneven_length_equal_one_pass() -> None:
    lm = model()
    whole = ids(3, 40)
    lengths, counts = torch.tensor([20, 9, 26]), torch.tensor([3, 8, 1])
    with torch.inference_mode():
        cache = lm.new_cache(3, 48)
        logits, _ = lm(whole)
        first = lm.prefill(whole[:, :26], lengths, cache)
        rows = torch.arange(3)
        torch.testing.assert_close(first, logits[rows, lengths - 1], rtol=1e-4, atol=1e-5)
        for _ in range(3):  # padding of one block must not be seen by the next
            block = torch.stack([whole[i, n:n + 8] for i, n in enumerate(lengths.tolist())])
            after = lm.decode(block, lengths, counts, cache)
            lengths = lengths + counts
            torch.testing.assert_close(after, logits[rows, lengths - 1], rtol=1e-4, atol=1e-5)


def test_a_model_of_another_token_is_another() -> None:
    """Against a model that ignores its input."""
    a, b = ids(1, 12), ids(1, 12)
    b[0, 3] += 1
    left, right = model()(a)[0], model()(b)[0]
    assert torch.equal(left[:, :3], right[:, :3])
    assert not torch.allclose(left[:, 3:], right[:, 3:])


@pytest.mark.parametrize("critic", ["shared", "separate", "none"])
def test_values_have_a_gradient_where_there_is_a_critic(critic) -> None:
    lm = model(critic)
    logits, values = lm(ids(2, 8))
    assert logits.shape == (2, 8, small_config().vocab_size) and values.shape == (2, 8)
    if critic == "none":
        assert not values.any()
        return
    torch.nn.init.normal_(lm.value_head.weight)
    lm.values(ids(2, 8)).square().sum().backward()
    trunk = lm.value_trunk or lm.model
    assert trunk.embed_tokens.weight.grad.abs().sum() > 0
    actor_untouched = lm.model.embed_tokens.weight.grad is None
    assert actor_untouched == (critic == "separate")


def test_saved_and_loaded_again(tmp_path) -> None:
    made = Builtin.untrained(3, small_config())
    torch.nn.init.normal_(made.model.value_head.weight)
    made.save(tmp_path)
    again = Builtin.load(tmp_path, "shared")
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name
    assert Builtin.load(tmp_path).model.value_head is None


def test_untrained_models_are_told_apart_by_their_seed() -> None:
    state = torch.get_rng_state()
    a, b, c = (Builtin.untrained(seed, small_config()).model for seed in (1, 1, 2))
    assert torch.equal(a.model.embed_tokens.weight, b.model.embed_tokens.weight)
    assert not torch.equal(a.model.embed_tokens.weight, c.model.embed_tokens.weight)
    assert torch.equal(state, torch.get_rng_state())


def test_folders_that_hold_no_model_are_said(tmp_path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        Builtin.load(tmp_path)
    Builtin.untrained(0, small_config()).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 128}))
    with pytest.raises(SettingsError, match="cannot be read"):
        Builtin.load(tmp_path)


def test_transformers_reads_it_to_equal_logits(tmp_path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    made = Builtin.untrained(0, small_config())
    sharp(made.model)
    made.save(tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(ids(2, 30)).logits
        logits, _ = made.model(ids(2, 30))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert logits.std() > 0.1
