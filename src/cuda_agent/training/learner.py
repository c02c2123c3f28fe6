"""The model while it learns: actor and critic, each with its own optimizer."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from cuda_agent.policies.builtin import Builtin, LanguageModel
from cuda_agent.training.config import Config

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Learner:
    """`builtin` samples and is updated: rollout and update use the same weights in the same dtype,
    so that importance ratios are 1 before the first step of an update.

    In bfloat16 the optimizers work on float32 copies of the weights: a step of 3e-6 would be lost
    in 8 bits. `reference` is a frozen copy of the actor, where a distance to it is penalised.
    """

    def __init__(self, builtin: Builtin, config: Config, device: torch.device) -> None:
        self.builtin, self.config, self.device = builtin, config, device
        builtin.model.to(device=device, dtype=_DTYPES[config.model.dtype])
        ppo = config.ppo
        self.actor = _Optimizer(
            [p for n, p in self._learning() if n.startswith("model.")],
            ppo.actor_lr, ppo.weight_decay, ppo.max_grad_norm,
        )
        self.critic = _Optimizer(
            [p for n, p in self._learning() if not n.startswith("model.")],
            ppo.critic_lr, ppo.weight_decay, ppo.max_grad_norm,
        )
        self.reference: LanguageModel | None = None

    @property
    def model(self) -> LanguageModel:
        return self.builtin.model

    def _learning(self) -> list[tuple[str, nn.Parameter]]:
        """Frozen weights, beside adapters, are no part of any state."""
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]

    def begin(self, actor_lr: float | None = None, critic_lr: float | None = None) -> None:
        """A stage begins: fresh optimizers (the learning rates are those of PPO unless given), and
        the weights of now as the reference."""
        self.actor.reset(actor_lr or self.config.ppo.actor_lr)
        self.critic.reset(critic_lr or self.config.ppo.critic_lr)
        if self.config.ppo.kl > 0:
            self.reference = copy.deepcopy(self.model).requires_grad_(False)

    def state(self) -> dict[str, Any]:
        return {
            "model": {n: t.detach() for n, t in self._learning()},
            "actor": self.actor.state(), "critic": self.critic.state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """What `state` returned, after `begin` with the same learning rates."""
        self.load_model(state)
        self.actor.load(state["actor"])
        self.critic.load(state["critic"])

    def load_model(self, state: dict[str, Any]) -> None:
        """Only the weights, as a stage that follows another begins with them."""
        with torch.no_grad():
            for name, parameter in self._learning():
                parameter.copy_(state["model"][name])


class _Optimizer:
    """AdamW (betas 0.9, 0.95) over some parameters, through float32 copies where they are not."""

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, decay: float, max_norm: float
    ) -> None:
        self.parameters, self.decay, self.max_norm = parameters, decay, max_norm
        self.reset(lr)

    def reset(self, lr: float) -> None:
        self._exact = all(p.dtype == torch.float32 for p in self.parameters)
        self._masters: list[Tensor] = [
            p if self._exact else p.detach().float().clone() for p in self.parameters
        ]
        self._adam = torch.optim.AdamW(
            self._masters, lr=lr, betas=(0.9, 0.95), weight_decay=self.decay
        ) if self._masters else None

    def step(self) -> float:
        """One step; clears the gradients and returns their norm before clipping."""
        if self._adam is None:
            return 0.0
        if not self._exact:
            for master, parameter in zip(self._masters, self.parameters):
                master.grad = None if parameter.grad is None else parameter.grad.float()
        norm = nn.utils.clip_grad_norm_(self._masters, self.max_norm)
        self._adam.step()
        if not self._exact:
            with torch.no_grad():
                for master, parameter in zip(self._masters, self.parameters):
                    parameter.copy_(master)
        self.clear()
        return float(norm)

    def clear(self) -> None:
        for tensor in [*self.parameters, *self._masters]:
            tensor.grad = None

    def state(self) -> dict[str, Any]:
        if self._adam is None:
            return {}
        masters = [] if self._exact else [t.detach() for t in self._masters]
        return {"adam": self._adam.state_dict(), "masters": masters}

    def load(self, state: dict[str, Any]) -> None:
        if self._adam is None:
            return
        self._adam.load_state_dict(state["adam"])
        with torch.no_grad():
            for master, saved in zip(self._masters, state["masters"]):
                master.copy_(saved)
