"""Trajectories as tensors. Axes: B episodes, T tokens, K choices of an episode, A allowed tokens.

Only the tokens that the policy chose carry a loss, and they are few: what belongs to them is kept
in [B, K] tensors, and the logits of no other position are ever computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cuda_agent.policies.builtin import LanguageModel, constrained_logprobs
from cuda_agent.training.rollouts import Trajectory


@dataclass(frozen=True)
class Batch:
    """`before_B_K` is the position that predicts choice k; `acted_B_K` is False in the padding,
    where all else is 0. The reward is on an episode's last choice."""

    ids_B_T: Tensor
    before_B_K: Tensor
    allowed_B_K_A: Tensor
    chosen_B_K: Tensor
    logprobs_B_K: Tensor
    rewards_B_K: Tensor
    advantages_B_K: Tensor
    targets_B_K: Tensor
    acted_B_K: Tensor

    @classmethod
    def make(cls, episodes: Sequence[Trajectory], device: torch.device) -> Batch:
        """Of episodes with at least one choice each."""
        length = max(len(e.ids) for e in episodes)
        choices = max(len(e.chosen) for e in episodes)
        options = max(len(a) for e in episodes for a in e.allowed)
        rewards = torch.zeros(len(episodes), choices)
        for row, episode in enumerate(episodes):
            rewards[row, len(episode.chosen) - 1] = episode.reward
        none = (-1,) * options

        def rows(values: Sequence[Sequence[float]], width: int, fill: float) -> Tensor:
            return torch.tensor([[*v, *[fill] * (width - len(v))] for v in values]).to(device)

        allowed = [
            [*((*a, *none[len(a):]) for a in e.allowed), *[none] * (choices - len(e.chosen))]
            for e in episodes
        ]
        return cls(
            rows([e.ids for e in episodes], length, 0),
            rows([[p - 1 for p in e.chosen] for e in episodes], choices, 0),
            torch.tensor(allowed).to(device),
            rows([[e.ids[p] for p in e.chosen] for e in episodes], choices, -2),
            rows([e.logprobs for e in episodes], choices, 0.0),
            rewards.to(device),
            rows([e.advantages for e in episodes], choices, 0.0),
            rows([e.targets for e in episodes], choices, 0.0),
            rows([[1] * len(e.chosen) for e in episodes], choices, 0).bool(),
        )

    def __len__(self) -> int:
        return len(self.ids_B_T)


def micro_batches(
    episodes: Sequence[Trajectory], tokens: int, device: torch.device
) -> Iterator[Batch]:
    """Batches of at most `tokens` padded tokens (or one episode), in the order of `episodes`:
    sorted by length they waste least."""
    part: list[Trajectory] = []
    longest = 0
    for episode in episodes:
        longest = max(longest, len(episode.ids))
        if part and longest * (len(part) + 1) > tokens:
            yield Batch.make(part, device)
            part, longest = [], len(episode.ids)
        part.append(episode)
    if part:
        yield Batch.make(part, device)


def actor(model: LanguageModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """(logprobs_B_K, entropy_B_K) of the choices in the constrained distribution, float32."""
    hidden = _at(model.hidden(batch.ids_B_T), batch.before_B_K)
    return constrained_logprobs(
        model.logits(hidden), batch.allowed_B_K_A, batch.chosen_B_K, temperature
    )


def critic(model: LanguageModel, batch: Batch) -> Tensor:
    """values_B_K of the states before the choices, float32."""
    return model.values(batch.ids_B_T).gather(1, batch.before_B_K)


def both(model: LanguageModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """(logprobs, entropy, values), all [B, K], with one pass of a shared trunk."""
    hidden = model.hidden(batch.ids_B_T)
    logits = model.logits(_at(hidden, batch.before_B_K))
    logprobs, entropy = constrained_logprobs(
        logits, batch.allowed_B_K_A, batch.chosen_B_K, temperature
    )
    values = model.values(batch.ids_B_T, hidden).gather(1, batch.before_B_K)
    return logprobs, entropy, values


def _at(hidden_B_T_C: Tensor, before_B_K: Tensor) -> Tensor:
    index = before_B_K[..., None].expand(-1, -1, hidden_B_T_C.shape[-1])
    return hidden_B_T_C.gather(1, index)
