"""`rules`: what the skills' authors chose as defaults, once. No search."""

from __future__ import annotations

from cuda_agent.policies.base import SUBMIT, Conversation, ToolCall, apply_plan


class RulesPolicy:
    name = "rules"

    def __init__(self, seed: int = 0) -> None:
        del seed  # nothing is drawn

    def act(self, conversation: Conversation) -> ToolCall:
        return SUBMIT if conversation.steps else apply_plan(conversation.default)
