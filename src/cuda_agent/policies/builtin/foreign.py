"""Any other causal language model that transformers reads, as the policy: whole, or by adapters.

Its own tokenizer is kept, with our special tokens added, and made to cut where the automaton cuts
(tokenizer.py), so that a plan has one spelling here too. Only byte-level tokenizers (GPT-2, Llama
3, Qwen, SmolLM and their kin) can be cut everywhere; others are refused.

Decoding keeps no keys and values: each step runs the whole stream again. That is exact for every
architecture and slow; a served model plays faster through `--policy endpoint`.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Backend
from tokenizers.pre_tokenizers import Sequence as PreSequence
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn
from torch.nn import functional as F

from cuda_agent.errors import SettingsError
from cuda_agent.policies.builtin.language_model import Critic, LanguageModel
from cuda_agent.policies.builtin.tokenizer import FILE, PIECES, SPECIAL, Tokenizer

CONFIG, CRITIC = "config.json", "critic.safetensors"
_PROBES = ('{"name":"apply_plan', '","arguments":{"plan":{"regions', '":{"vector', '":4', "}}}}}")


def is_foreign(folder: str | Path) -> bool:
    """Whether the folder holds a model of another architecture than the builtin one, or with a
    tokenizer that does not know our special tokens."""
    try:
        data = json.loads((Path(folder) / CONFIG).read_text(encoding="utf-8"))
        known = Backend.from_file(str(Path(folder) / FILE)).get_vocab()
    except Exception:  # the builtin reader says what is wrong; tokenizers raises plain Exception
        return False
    own = data.get("model_type") == "llama" and data.get("tie_word_embeddings")
    return not (own and all(token in known for token in SPECIAL))


def load(
    folder: str | Path, critic: Critic = "none", lora_rank: int = 0
) -> tuple[ForeignLM, Tokenizer]:
    """In float32 on the CPU, from local files only; the critic starts from zero, its trunk, where
    it has one of its own, from the actor's.

    Raises SettingsError: transformers (or peft, for adapters) is missing, the model cannot be read,
    or its tokenizer is not byte-level.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise SettingsError(
            f"{folder} needs transformers; pip install 'cuda-agent[train]'."
        ) from error
    tokenizer = _tokenizer(Path(folder))
    try:
        found: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # safetensors raises plain Exception
        text = " ".join(str(error).split())[:200]
        raise SettingsError(f"the model in {folder} cannot be read: {text}") from error
    model, loaded = found
    if lacking := sorted(loaded["missing_keys"]):  # which transformers would leave random
        raise SettingsError(f"the model in {folder} lacks {lacking[0]}.")
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    if lora_rank:
        model = _adapted(model, lora_rank)
    made = ForeignLM(model, critic)
    if critic != "none" and (Path(folder) / CRITIC).is_file():
        made.load_state_dict(load_file(Path(folder) / CRITIC), strict=False)
    return made, tokenizer


@dataclass
class Streams:
    """The cache of a model that keeps none: what was written so far, (B, slots)."""

    ids: Tensor

    def rows(self, row_B: Tensor) -> Streams:
        """As Cache.rows."""
        return Streams(self.ids[row_B])


class ForeignLM(LanguageModel):
    """A model of transformers, or one with adapters of peft."""

    def __init__(self, model: Any, critic: Critic) -> None:
        super().__init__()
        self.model = model
        self.value_trunk = copy.deepcopy(_trunk(model)) if critic == "separate" else None
        size = model.get_input_embeddings().weight.shape[1]
        self.value_head = None if critic == "none" else nn.Linear(size, 1)
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)
        self.eval()  # dropout would make rollout and update disagree

    @property
    def context(self) -> int:
        config: Any = self.model.config
        return int(getattr(config, "max_position_embeddings", None) or config.n_positions)

    def train(self, mode: bool = True) -> ForeignLM:
        """Stays in evaluation mode, see __init__."""
        super().train(False)
        return self

    def states(self, trunk: nn.Module, ids_B_T: Tensor) -> Tensor:
        inner = _trunk(trunk) if trunk is self.model else trunk
        found: Tensor = inner(input_ids=ids_B_T, use_cache=False).last_hidden_state
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """By the model's own output matrix. What some architectures do behind it (a soft cap, a
        scale) is left out, in sampling and training alike."""
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        bias = None if getattr(head, "bias", None) is None else head.bias.float()
        return F.linear(hidden.float(), head.weight.float(), bias)

    def new_cache(self, batch: int, slots: int) -> Streams:
        return Streams(torch.zeros(batch, slots, dtype=torch.long, device=self.device))

    def prefill(self, ids_B_T: Tensor, lengths_B: Tensor, cache: Streams) -> Tensor:
        cache.ids[:, : ids_B_T.shape[1]] = ids_B_T
        return self._last(cache, lengths_B)

    def decode(self, ids_B_W: Tensor, start_B: Tensor, counts_B: Tensor, cache: Streams) -> Tensor:
        places = start_B[:, None] + torch.arange(ids_B_W.shape[1], device=ids_B_W.device)
        cache.ids.scatter_(1, places.clamp(max=cache.ids.shape[1] - 1), ids_B_W)
        return self._last(cache, start_B + counts_B)

    def _last(self, cache: Streams, lengths_B: Tensor) -> Tensor:
        hidden = self.hidden(cache.ids[:, : int(lengths_B.max())])
        return self.logits(hidden[torch.arange(len(hidden)), lengths_B - 1])

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """As transformers reads it, adapters merged; the critic apart."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        model: Any = self.model
        if hasattr(model, "merge_and_unload"):
            model = copy.deepcopy(model).merge_and_unload()
        elif dtype is not None:
            model = copy.deepcopy(model)
        model.to(dtype or model.dtype).save_pretrained(path)
        critic = {
            name: tensor.detach().contiguous()
            for name, tensor in self.named_parameters() if not name.startswith("model.")
        }
        if critic:
            save_file(critic, path / CRITIC, {"format": "pt"})


def _trunk(model: Any) -> Any:
    """The module that ends before the output matrix, inside adapters if there are any."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.base_model


def _adapted(model: Any, rank: int) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise SettingsError(
            "model.lora_rank needs peft; pip install 'cuda-agent[train]'."
        ) from error
    settings = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, settings)


def _tokenizer(folder: Path) -> Tokenizer:
    if not (folder / FILE).is_file():
        raise SettingsError(f"{folder / FILE} does not exist; a model's folder holds its {FILE}.")
    try:
        backend = Backend.from_file(str(folder / FILE))
    except Exception as error:  # the library raises plain Exception
        raise SettingsError(f"{folder / FILE} is no tokenizer: {error}.") from error
    missing = [token for token in SPECIAL if backend.token_to_id(token) is None]
    if missing:
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in missing])
        cut = Split(Regex(PIECES), "isolated")
        inner = backend.pre_tokenizer
        backend.pre_tokenizer = cut if inner is None else PreSequence([cut, inner])
    made = Tokenizer(backend)
    parts = [i for text in _PROBES for i in made.encode(text)]
    if parts != made.encode("".join(_PROBES)) or made.decode(parts) != "".join(_PROBES):
        raise SettingsError(
            f"the tokenizer in {folder} is not byte-level: text that is cut in two is not spelt as "
            "the whole is. Use a model with a GPT-2, Llama 3 or Qwen tokenizer."
        )
    return made
