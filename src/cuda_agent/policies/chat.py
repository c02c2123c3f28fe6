"""What a chat model says, whoever it is: the seam between the agent's loop and its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from cuda_agent.errors import CudaAgentError
from cuda_agent.records import Record

Message = dict[str, Any]
Dialect = Literal["tools", "text"]
"""How calls are written: as an endpoint's tool calls, or as one fenced action in the text."""


class ChatFailed(CudaAgentError):
    """The model could not be reached, or did not answer sensibly, for longer than is patient."""


class ContextTooLong(CudaAgentError):
    """The endpoint says that the conversation does not fit its context."""


class DialectChanged(CudaAgentError):
    """The endpoint takes no tool calls: write the conversation anew, with calls as text."""


@dataclass(frozen=True)
class Call(Record):
    """`arguments` as they were parsed: normally an object. `problem` says why they could not be;
    the model is told so."""

    id: str
    name: str
    arguments: Any = None
    problem: str = ""


@dataclass(frozen=True)
class Usage(Record):
    """Tokens; `cached` are those of `prompt` that the endpoint had, `reasoning` those of
    `completion` that were not shown. `estimated` where the endpoint did not say."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt + other.prompt, self.completion + other.completion,
            self.cached + other.cached, self.reasoning + other.reasoning,
            self.estimated or other.estimated,
        )


@dataclass(frozen=True)
class Reply(Record):
    """`finish`: the endpoint's reason to end ("stop", "tool_calls", "length", "content_filter").
    `retries`: attempts that failed before."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    finish: str = ""
    refusal: str = ""
    usage: Usage = field(default_factory=Usage)
    retries: int = 0


Tell = Callable[[str], None]


class ChatModel(Protocol):
    """Answers a conversation. `dialect` may change with the first answer."""

    name: str
    dialect: Dialect

    def reply(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], tell: Tell
    ) -> Reply:
        """`tell` gets the text while it comes. Raises ContextTooLong, DialectChanged,
        ChatFailed; SettingsError for what the user must mend (key, name of the model, address)."""
