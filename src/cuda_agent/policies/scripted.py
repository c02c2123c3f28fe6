"""`scripted`: says what it was told to say. For tests, and for replaying an episode."""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.policies.base import SUBMIT, Conversation, ToolCall
from cuda_agent.records import Episode


class ScriptedPolicy:
    name = "scripted"

    def __init__(self, calls: Sequence[ToolCall] = ()) -> None:
        self.calls = tuple(calls)

    @classmethod
    def replay(cls, episode: Episode) -> ScriptedPolicy:
        return cls([ToolCall.from_json(turn.action) for turn in episode.turns])

    def act(self, conversation: Conversation) -> ToolCall:
        done = len(conversation.steps)
        return self.calls[done] if done < len(self.calls) else SUBMIT
