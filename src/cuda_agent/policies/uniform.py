"""`random`: plans drawn uniformly, without repeats. The baseline that `search` must beat."""

from __future__ import annotations

import random

from cuda_agent.policies.base import SUBMIT, Conversation, ToolCall, apply_plan
from cuda_agent.policies.space import plan_key

_DRAWS = 1000  # after so many repeats in a row the space counts as exhausted


class RandomPolicy:
    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def act(self, conversation: Conversation) -> ToolCall:
        rng = random.Random(f"{self.seed}-{len(conversation.steps)}")
        seen = {plan_key(step.plan) for step in conversation.steps if step.plan is not None}
        for _ in range(_DRAWS):
            plan = conversation.space.random(rng)
            if plan_key(plan) not in seen:
                return apply_plan(plan)
        return SUBMIT
