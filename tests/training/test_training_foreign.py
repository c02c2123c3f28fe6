"""Models of other families, tiny and random, in the place of the builtin one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.trainers import BpeTrainer
from training_cases import problems

from cuda_agent import rewards
from cuda_agent.errors import SettingsError
from cuda_agent.policies.builtin import Builtin, automaton, encode_call, opening, sample
from cuda_agent.training.config import Config, Model, Ppo
from cuda_agent.training.learner import Learner
from cuda_agent.training.rollouts import Rules, play
from cuda_agent.training.simulated import SimulatedSource
from cuda_agent.training.update import update

transformers = pytest.importorskip("transformers", reason="pip install 'cuda-agent[train]'")

TASKS = [p.task for p in problems(4)]
TEXTS = [opening(TASKS[0]), '{"name":"apply_plan","arguments":{"plan":{"regions":{}}}}'] * 4


def save(folder: Path, family: str, pre_tokenizer: Any = None) -> Path:
    """A folder as a hub has it: its own byte-level tokenizer, none of our special tokens."""
    backend = Backend(BPE())
    backend.pre_tokenizer = pre_tokenizer or ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )
    backend.train_from_iterator(TEXTS, trainer)
    size = backend.get_vocab_size()
    torch.manual_seed(0)
    if family == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=size, n_embd=48, n_layer=2, n_head=4, n_positions=1024
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.Qwen2Config(
            vocab_size=size, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
            tie_word_embeddings=family == "tied",
        )
        model = transformers.Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def test_equal_streams_are_read_once_and_sampled_apart(tmp_path: Path) -> None:
    builtins = [Builtin.load(save(tmp_path, "gpt2")), Builtin.untrained(0, critic="none")]
    for builtin in builtins:
        one, other = builtin.begin(TASKS[0]), builtin.begin(TASKS[1])
        streams, spaces = [other, one, one, other, one], [TASKS[0].space] * 5
        greedy = sample(builtin, streams, spaces, greedy=True)
        assert greedy[1] == greedy[2] == greedy[4] and greedy[0] == greedy[3]
        for stream, made in zip((one, other), (greedy[1], greedy[0])):
            (alone,) = sample(builtin, [stream], spaces[:1], greedy=True)
            assert alone.ids == made.ids
            assert alone.logprobs == pytest.approx(made.logprobs, abs=1e-4)
        generator = torch.Generator().manual_seed(3)
        drawn = sample(builtin, [one] * 12, [TASKS[0].space] * 12, generator=generator)
        assert len({made.ids for made in drawn}) > 4


@pytest.mark.parametrize("family", ["gpt2", "qwen2", "tied"])
def test_sampled_calls_are_valid_and_their_probabilities_those_of_a_whole_pass(
    tmp_path: Path, family: str
) -> None:
    builtin = Builtin.load(save(tmp_path, family), critic="shared")
    spaces = [one.space for one in TASKS]
    streams = [builtin.begin(one) for one in TASKS]
    made = sample(builtin, streams, spaces, generator=torch.Generator().manual_seed(1))
    for stream, space, one in zip(streams, spaces, made):
        assert automaton(space, builtin.tokenizer).walk(one.ids) == list(one.allowed)
        assert list(one.ids) == encode_call(one.call, space, builtin.tokenizer)
        logits, values = builtin.model(torch.tensor([[*stream, *one.ids]]))
        assert torch.count_nonzero(values) == 0, "a critic starts from zero"
        for i, (token, options, logprob) in enumerate(zip(one.ids, one.allowed, one.logprobs)):
            scores = logits[0, len(stream) + i - 1, list(options)].log_softmax(-1)
            assert float(scores[options.index(token)].detach()) == pytest.approx(logprob, abs=1e-5)


def test_a_saved_model_comes_back_and_transformers_reads_it(tmp_path: Path) -> None:
    builtin = Builtin.load(save(tmp_path / "a", "gpt2"), critic="separate")
    assert builtin.model.value_head is not None
    builtin.model.value_head.bias.data.fill_(0.5)
    builtin.save(tmp_path / "b")
    again = Builtin.load(tmp_path / "b", critic="separate")
    ids = torch.tensor([builtin.begin(TASKS[0])])
    for a, b in zip(builtin.model(ids), again.model(ids)):
        assert torch.allclose(a, b, atol=1e-6)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "b")
    assert torch.allclose(theirs(ids).logits, builtin.model(ids)[0], atol=1e-5)


def test_adapters_learn_alone_and_are_merged_on_saving(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="pip install 'cuda-agent[train]'")
    builtin = Builtin.load(save(tmp_path / "a", "qwen2"), "none", lora_rank=2)
    learning = [n for n, p in builtin.model.named_parameters() if p.requires_grad]
    assert learning and all("lora" in name for name in learning)
    for name, parameter in builtin.model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.1)
    ids = torch.tensor([builtin.begin(TASKS[0])])
    before = builtin.model(ids)[0].detach()
    builtin.save(tmp_path / "b")
    assert torch.allclose(builtin.model(ids)[0], before), "saving changes nothing"
    assert torch.allclose(Builtin.load(tmp_path / "b").model(ids)[0], before, atol=1e-4)


def test_a_tokenizer_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, "gpt2", pre_tokenizer=Metaspace())
    with pytest.raises(SettingsError, match="not byte-level"):
        Builtin.load(folder)


@pytest.mark.parametrize("rank", [0, 2])
def test_ppo_moves_it(tmp_path: Path, rank: int) -> None:
    """Ratios are 1 before the first step, and only what learns has moved after it."""
    if rank:
        pytest.importorskip("peft", reason="pip install 'cuda-agent[train]'")
    config = Config(
        model=Model(lora_rank=rank), ppo=Ppo(actor_lr=1e-3, critic_lr=1e-3), micro_tokens=4096
    )
    builtin = Builtin.load(save(tmp_path, "gpt2"), "separate", rank)
    learner = Learner(builtin, config, torch.device("cpu"))
    learner.begin()
    rules = Rules(2, rewards.milestone, seed=1)
    played, _ = play(builtin, problems(2) * 2, SimulatedSource(), rules)
    before = {n: p.detach().clone() for n, p in builtin.model.named_parameters()}
    metrics = update(learner, played, minibatch=4, seed=0)
    assert 0 <= metrics["ratio_first"] - 1 < 1e-5
    moved = {n for n, p in builtin.model.named_parameters() if not torch.equal(p, before[n])}
    assert any(n.startswith("model.") for n in moved) and "value_head.bias" in moved
    assert not rank or all("lora" in n for n in moved if n.startswith("model."))
    assert set(learner.state()["model"]) >= moved


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    folder = save(tmp_path, "gpt2")
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "n_layer": 3}))
    with pytest.raises(SettingsError, match=r"the model in .* lacks transformer.h.2"):
        Builtin.load(folder)
    (folder / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(SettingsError, match=r"the model in .* cannot be read"):
        Builtin.load(folder)
