"""`builtin`: a trained model proposes first, guided search goes on from what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch

from cuda_agent.errors import SettingsError
from cuda_agent.policies.base import SUBMIT, Conversation, Step, ToolCall, apply_plan
from cuda_agent.policies.builtin.bundle import Builtin
from cuda_agent.policies.builtin.decoding import fits, sample
from cuda_agent.policies.search import SearchPolicy
from cuda_agent.policies.space import Plan, PlanSpace, plan_key

SHARE = 0.5
"""Of the budget, for proposals of the model."""

DRAWS = 8
"""Sampled where one draw repeats an earlier plan; the first that is new is taken."""

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
        return self.act_many([conversation])[0]

    def act_many(self, conversations: Sequence[Conversation]) -> list[ToolCall]:
        """One action for each; what the model is asked it is asked at once. Samples depend on who
        is asked together."""
        actions: list[ToolCall | None] = [None] * len(conversations)
        asked = [i for i, c in enumerate(conversations) if self._proposes(c)]
        for first in (True, False):
            part = [i for i in asked if (not conversations[i].steps) is first]
            made = self._propose([conversations[i] for i in part], greedy=first)
            for i, action in zip(part, made):
                actions[i] = action
        return [
            action if action is not None else self._otherwise(conversation)
            for action, conversation in zip(actions, conversations)
        ]

    def _proposes(self, conversation: Conversation) -> bool:
        return len(conversation.steps) < max(1, math.ceil(self.share * conversation.budget))

    def _otherwise(self, conversation: Conversation) -> ToolCall:
        if self.share >= 1 and conversation.steps:
            return SUBMIT
        return self._search.act(conversation)

    def _propose(
        self, conversations: Sequence[Conversation], greedy: bool
    ) -> list[ToolCall | None]:
        """A plan that is new in its conversation; None where the model has none to offer."""
        told = [_Told(self.builtin, conversation) for conversation in conversations]
        found: list[ToolCall | None] = [None] * len(told)
        for draws in (1,) if greedy else (1, DRAWS):
            open_ = [i for i, one in enumerate(told) if one.fits and found[i] is None]
            if not open_:
                break
            turns = sum(len(conversations[i].steps) for i in open_)
            generator = torch.Generator(self.builtin.device)
            generator.manual_seed(self.seed * 1_000_003 + turns * 101 + draws)
            made = sample(
                self.builtin, [told[i].stream for i in open_ for _ in range(draws)],
                [told[i].space for i in open_ for _ in range(draws)],
                generator=generator, greedy=greedy, submit=False,
            )
            for place, i in enumerate(open_):
                mine = made[place * draws : (place + 1) * draws]
                found[i] = told[i].first_new([one.call for one in mine])
        return found


class _Told:
    """A conversation in the model's language. Steps that it has no words for are left out."""

    def __init__(self, builtin: Builtin, conversation: Conversation) -> None:
        if conversation.task is None:
            raise SettingsError("the builtin policy needs a conversation that holds the task.")
        self.space = conversation.space
        steps = [step for step in conversation.steps if _sayable(step, self.space)]
        self.stream = builtin.stream(conversation.task, self.space, steps)
        self.fits = fits(builtin, self.stream, self.space)
        self._seen = {self._key(step.plan) for step in steps if step.plan is not None}

    def first_new(self, calls: Sequence[ToolCall]) -> ToolCall | None:
        for call in calls:
            if self._key(call.arguments["plan"]) not in self._seen:
                return apply_plan(self.space.complete(call.arguments["plan"]))
        return None

    def _key(self, plan: Plan) -> str:
        return plan_key(self.space.complete(plan))


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
