"""`scripted`: says what it was told to say. For tests, and for replaying an episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuda_agent.policies.base import SUBMIT, Conversation, ToolCall
from cuda_agent.policies.chat import Call, Dialect, Message, Reply, Tell
from cuda_agent.records import Episode

PREFIX = "scripted:"
"""`--policy scripted:FILE` replays the episode in FILE."""


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


class ScriptedChat:
    """A chat model that gives `replies` one after another from number `start` on, whatever it
    hears; after the last it gives up. No network."""

    def __init__(
        self, replies: Sequence[Reply], name: str = "scripted", dialect: Dialect = "tools",
        start: int = 0,
    ) -> None:
        self.name, self.dialect = name, dialect
        self._replies, self._next = tuple(replies), start

    def reply(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], tell: Tell
    ) -> Reply:
        self._next += 1
        if self._next > len(self._replies):
            return Reply(calls=(Call("end", "submit", {"give_up": True}),), finish="stop")
        reply = self._replies[self._next - 1]
        tell(reply.text)
        return reply
