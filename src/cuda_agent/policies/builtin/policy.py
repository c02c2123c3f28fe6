"""`builtin`: a trained model proposes first, guided search goes on from what was measured."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

import torch

from cuda_agent.errors import SettingsError
from cuda_agent.policies.base import SUBMIT, Conversation, Step, ToolCall, apply_plan
from cuda_agent.policies.builtin.bundle import Builtin
from cuda_agent.policies.builtin.decoding import fits, sample
from cuda_agent.policies.search import SearchPolicy
from cuda_agent.policies.space import PlanSpace, plan_key

SHARE = 0.5
"""Of the budget, for proposals of the model."""

DRAWS = 8
"""Sampled at a time, of which the first plan that is new is taken."""

WEIGHTS = Path(__file__).parent / "weights"


class BuiltinPolicy:
    """Greedy first, then samples without repeats at temperature 1 for SHARE of the budget, then
    search. Where the model has nothing new to say, or the episode would outgrow its context, search
    goes on at once.

    Args:
        model: a folder that Builtin.load reads; None takes the weights of this package.
        share: of the budget that the model proposes for; 1 leaves nothing to search.
    Raises: SettingsError where there is no model.
    """

    name = "builtin"

    def __init__(
        self, seed: int = 0, model: str | Path | Builtin | None = None, share: float = SHARE
    ) -> None:
        self.seed = seed
        self.share = share
        self.builtin = model if isinstance(model, Builtin) else _load(model)
        self._search = SearchPolicy(seed)

    def act(self, conversation: Conversation) -> ToolCall:
        """Raises SettingsError for a conversation without a task, which the model must read."""
        if len(conversation.steps) < max(1, math.ceil(self.share * conversation.budget)):
            proposal = self._propose(conversation)
            if proposal is not None:
                return proposal
        if self.share >= 1 and conversation.steps:
            return SUBMIT
        return self._search.act(conversation)

    def _propose(self, conversation: Conversation) -> ToolCall | None:
        if conversation.task is None:
            raise SettingsError("the builtin policy needs a conversation that holds the task.")
        space = conversation.space
        steps = [step for step in conversation.steps if _sayable(step, space)]
        stream = self.builtin.stream(conversation.task, space, steps)
        if not fits(self.builtin, stream, space):
            return None
        turn = len(conversation.steps)
        draws = 1 if turn == 0 else DRAWS
        generator = torch.Generator(self.builtin.device).manual_seed(self.seed * 1009 + turn)
        made = sample(
            self.builtin, [stream] * draws, [space] * draws, generator=generator,
            greedy=turn == 0, submit=False,
        )
        seen = {plan_key(space.complete(step.plan)) for step in steps if step.plan is not None}
        for one in made:
            plan = space.complete(one.call.arguments["plan"])
            if plan_key(plan) not in seen:
                return apply_plan(plan)
        return None


def _sayable(step: Step, space: PlanSpace) -> bool:
    """Whether the model's language has words for it: plans of this space."""
    if step.plan is None:
        return False
    try:
        space.complete(step.plan)
    except (SettingsError, KeyError, TypeError, AttributeError):
        return False
    return True


def _load(model: str | Path | None) -> Builtin:
    if model is None and not WEIGHTS.is_dir():
        raise SettingsError(
            "this package holds no trained weights; give --model a folder that `cuda-agent train` "
            "made, or choose --policy search."
        )
    return _loaded(str(model or WEIGHTS))


@lru_cache(maxsize=4)
def _loaded(folder: str) -> Builtin:
    builtin = Builtin.load(folder)
    builtin.model.eval()
    return builtin
