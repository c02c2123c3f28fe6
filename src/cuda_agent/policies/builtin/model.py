"""The small causal language model, in plain torch and in the layout of a Hugging Face Llama.

Axes in names: B streams, T tokens, W tokens of one decoding step, L layers, H key heads,
S cache slots, D head size, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from cuda_agent.errors import SettingsError
from cuda_agent.policies.builtin.language_model import Critic, LanguageModel

MARGIN = 64
CONFIG, WEIGHTS, CRITIC = "config.json", "model.safetensors", "critic.safetensors"


@dataclass(frozen=True)
class Config:
    """Sizes under Hugging Face's names; the default has 5.2 million parameters."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 768
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def to_json(self) -> dict[str, Any]:
        """config.json of a LlamaForCausalLM with tied embeddings."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
            "head_dim": self.head_dim, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 4,
            "initializer_range": 0.02, **dataclasses.asdict(self),
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Config:
        """Raises SettingsError for another architecture."""
        if data.get("model_type") != "llama" or not data.get("tie_word_embeddings"):
            raise SettingsError(
                f"the builtin policy reads Llama models with tied embeddings, not "
                f"{data.get('model_type')!r}."
            )
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in known})


@dataclass
class Cache:
    """Keys and values of every layer, each of shape (B, H, S, D), allocated once."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def slots(self) -> int:
        return self.keys[0].shape[2]

    def rows(self, row_B: Tensor) -> Cache:
        """A cache for other streams, each a copy of one of these."""
        return Cache([k[row_B] for k in self.keys], [v[row_B] for v in self.values])


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Of the float32 residual, in the dtype of the weights."""
        normal = F.rms_norm(x, (x.shape[-1],), None, self.eps)
        return normal.to(self.weight.dtype) * self.weight


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        size, d = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(size, self.heads * d, bias=False)
        self.k_proj = nn.Linear(size, self.groups * d, bias=False)
        self.v_proj = nn.Linear(size, self.groups * d, bias=False)
        self.o_proj = nn.Linear(self.heads * d, size, bias=False)

    def project(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, heads, T, D), keys and values (B, H, T, D), rotated."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.groups, -1).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.groups, -1).transpose(1, 2)
        return _rotate(q, rope), _rotate(k, rope), v

    def whole(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of whole sequences."""
        repeat = self.heads // self.groups
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def cached(self, q: Tensor, keys: Tensor, values: Tensor, mask_B_1_W_S: Tensor) -> Tensor:
        """Attention of a few new tokens to the cache. Query heads that share a key head are laid
        along the query axis, so that the cache is read once and never expanded."""
        batch, heads, width, d = q.shape
        repeat = heads // self.groups
        q = q.reshape(batch, self.groups, repeat * width, d)
        mask = mask_B_1_W_S.repeat(1, 1, repeat, 1)
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        out = out.view(batch, heads, width, d)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        size, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class Trunk(nn.Module):
    """Embedding to the last norm: (B, T) ids to (B, T, hidden) states. The residual stream is
    float32 whatever the weights are."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        frequencies = config.rope_theta ** (
            -torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        )
        # The padding of a decoding step may stick out behind the context.
        slots = torch.arange(config.max_position_embeddings + MARGIN, dtype=torch.float32)
        angles = torch.outer(slots, frequencies)
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _layers(self) -> Iterator[Layer]:
        for layer in self.layers:
            assert isinstance(layer, Layer)
            yield layer

    def forward(self, ids_B_T: Tensor, cache: Cache | None = None) -> Tensor:
        """Whole sequences from position 0; fills the first T slots of `cache`."""
        length = ids_B_T.shape[1]
        rope = self.cos[:length], self.sin[:length]
        x = self.embed_tokens(ids_B_T).float()
        for i, layer in enumerate(self._layers()):
            attention = layer.self_attn
            q, k, v = attention.project(layer.input_layernorm(x), rope)
            if cache is not None:
                cache.keys[i][:, :, :length] = k
                cache.values[i][:, :, :length] = v
            x = x + attention.whole(q, k, v)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def step(self, ids_B_W: Tensor, start_B: Tensor, cache: Cache) -> Tensor:
        """W new tokens for each stream from position `start_B`, written into the cache."""
        batch, width = ids_B_W.shape
        positions_B_W = start_B[:, None] + torch.arange(width, device=ids_B_W.device)
        slots = torch.arange(cache.slots, device=ids_B_W.device)
        mask = (slots <= positions_B_W[..., None])[:, None]
        rope = self.cos[positions_B_W][:, None], self.sin[positions_B_W][:, None]
        rows = torch.arange(batch, device=ids_B_W.device)[:, None]
        x = self.embed_tokens(ids_B_W).float()
        for i, layer in enumerate(self._layers()):
            attention = layer.self_attn
            q, k, v = attention.project(layer.input_layernorm(x), rope)
            cache.keys[i][rows, :, positions_B_W] = k.transpose(1, 2)
            cache.values[i][rows, :, positions_B_W] = v.transpose(1, 2)
            x = x + attention.cached(q, cache.keys[i], cache.values[i], mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)


class CausalLM(LanguageModel):
    """The builtin model; embeddings are tied."""

    model: Trunk

    def __init__(self, config: Config, critic: Critic = "shared") -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.value_trunk = Trunk(config) if critic == "separate" else None
        self.value_head = None if critic == "none" else nn.Linear(config.hidden_size, 1)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        if self.value_head is not None:
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    @property
    def context(self) -> int:
        return self.config.max_position_embeddings

    def states(self, trunk: nn.Module, ids_B_T: Tensor) -> Tensor:
        found: Tensor = trunk(ids_B_T)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Always in float32, autocast or not: in bfloat16 two logits of 5 are equal or 0.03 apart,
        and so would be the log-probabilities of rollout and update."""
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.float(), self.model.embed_tokens.weight.float())

    def new_cache(self, batch: int, slots: int) -> Cache:
        weight = self.model.embed_tokens.weight
        shape = (batch, self.config.num_key_value_heads, slots, self.config.head_dim)
        layers = range(self.config.num_hidden_layers)
        # Zeros: a slot not written yet is masked, but masked NaN would still be NaN.
        keys = [torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in layers]
        return Cache(keys, [torch.zeros_like(key) for key in keys])

    def prefill(self, ids_B_T: Tensor, lengths_B: Tensor, cache: Cache) -> Tensor:
        return self.logits(_last(self.model(ids_B_T, cache), lengths_B))

    def decode(self, ids_B_W: Tensor, start_B: Tensor, counts_B: Tensor, cache: Cache) -> Tensor:
        return self.logits(_last(self.model.step(ids_B_W, start_B, cache), counts_B))

    # --- files ----------------------------------------------------------------------------------

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """config.json and model.safetensors as transformers reads them; the critic apart."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        state = {n: t.detach().to(dtype or t.dtype) for n, t in self.named_parameters()}
        actor = {n: t for n, t in state.items() if n.startswith("model.")}
        critic = {n: t for n, t in state.items() if n not in actor}
        name = str(next(iter(actor.values())).dtype).removeprefix("torch.")
        text = json.dumps({**self.config.to_json(), "torch_dtype": name}, indent=1)
        (path / CONFIG).write_text(text + "\n", encoding="utf-8")
        save_file(actor, path / WEIGHTS, {"format": "pt"})
        if critic:
            save_file(critic, path / CRITIC, {"format": "pt"})

    @classmethod
    def load(cls, folder: str | Path, critic: Critic = "none") -> CausalLM:
        """In float32 on the CPU. A critic that is not in the folder starts from zero.

        Raises SettingsError when the folder holds no such model.
        """
        path = Path(folder)
        for name in (CONFIG, WEIGHTS):
            if not (path / name).is_file():
                raise SettingsError(
                    f"{path / name} does not exist; give the folder of a model with {CONFIG} and "
                    f"{WEIGHTS}."
                )
        try:
            data = json.loads((path / CONFIG).read_text(encoding="utf-8"))
            model = cls(Config.from_json(data), critic)
            state = load_file(path / WEIGHTS)
            if critic != "none" and (path / CRITIC).is_file():
                state |= load_file(path / CRITIC)
            wanted = model.state_dict()
            found = {n: t.float() for n, t in state.items() if n in wanted}
            missing = [n for n in wanted if n.startswith("model.") and n not in found]
            if missing:
                raise SettingsError(f"{path / WEIGHTS} lacks {missing[0]}.")
            model.load_state_dict(found, strict=False)
        except (ValueError, TypeError, RuntimeError, OSError) as error:
            raise SettingsError(f"the model in {path} cannot be read: {error}.") from error
        return model


def _rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rope
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * cos + turned * sin).to(x.dtype)


def _last(hidden_B_T_C: Tensor, counts_B: Tensor) -> Tensor:
    rows = torch.arange(hidden_B_T_C.shape[0], device=hidden_B_T_C.device)
    return hidden_B_T_C[rows, (counts_B - 1).clamp(min=0)]
