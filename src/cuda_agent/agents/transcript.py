"""An episode of a chat model, word by word: one line of JSON a fact, appended as it happens.

    {"episode": {...}}     first: problem, model, dialect, tools, opening messages
    {"turn": {...}}        a reply, the answers to its calls, tokens, cost, seconds
    {"compacted": {...}}   turns before `upto` were replaced by `summary` from here on
    {"ended": "reason"}    last; a resumed episode may go on after it

A kill leaves at most a torn last line, which readers skip and the next writer cuts off. The file is
all that a replay needs, and it is what `cuda-agent episodes export` gives away.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.policies.chat import Message, Reply, Usage
from cuda_agent.records import Record

FORMAT = 1


@dataclass(frozen=True)
class Heading(Record):
    """What an episode is about. `opening` are the messages before the first turn."""

    id: str
    problem: dict[str, Any]
    model: str
    dialect: str
    tools: tuple[dict[str, Any], ...]
    opening: tuple[Message, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


@dataclass(frozen=True)
class Answered(Record):
    """A call of the model, and what came of it. `arguments` as in Call."""

    id: str
    name: str
    arguments: Any
    status: str
    text: str
    candidate_hash: str | None = None
    verdict_hash: str | None = None
    final: bool = False


@dataclass(frozen=True)
class ChatTurn(Record):
    """One reply and its answers. `note` is said to a model that called nothing. `speedup` is the
    best over eager up to here, `evaluations` the candidates measured up to here; `cost_usd` of this
    turn, None without a price table; seconds of the model and of the tools."""

    reply: Reply
    answers: tuple[Answered, ...] = ()
    note: str = ""
    speedup: float | None = None
    evaluations: int = 0
    cost_usd: float | None = None
    model_s: float = 0.0
    tools_s: float = 0.0

    @property
    def final(self) -> bool:
        return any(answer.final for answer in self.answers)


@dataclass(frozen=True)
class Compacted(Record):
    upto: int
    summary: str


@dataclass
class Transcript:
    """`turns` in order; `compacted` is the newest; `ended` why the last run of it stopped."""

    heading: Heading
    path: Path | None = None
    turns: list[ChatTurn] = field(default_factory=list)
    compacted: Compacted | None = None
    ended: str = ""
    _whole: bool = False  # a torn last line was cut off

    @classmethod
    def begin(cls, path: Path, heading: Heading) -> Transcript:
        """A new file. Raises OutputError."""
        made = cls(heading, path)
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
        made._append({"episode": heading.to_json()})
        return made

    @classmethod
    def load(cls, path: Path) -> Transcript:
        """Raises SettingsError where the file is none, with the line."""
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
        made: Transcript | None = None
        for number, line in enumerate(lines[:-1], 1):  # what follows the last newline is torn
            try:
                made = _taken(made, json.loads(line), path)
            except (ValueError, TypeError, KeyError) as error:
                raise SettingsError(
                    f"{path}, line {number} is not of an episode's transcript "
                    f"({type(error).__name__}: {error})."
                ) from None
        if made is None:
            raise SettingsError(f"{path} holds no episode; give a transcript (.jsonl).")
        return made

    def add(self, turn: ChatTurn) -> None:
        self.turns.append(turn)
        self._append({"turn": turn.to_json()})

    def compact(self, compacted: Compacted) -> None:
        self.compacted = compacted
        self._append({"compacted": compacted.to_json()})

    def end(self, reason: str) -> None:
        self.ended = reason
        self._append({"ended": reason})

    @property
    def usage(self) -> Usage:
        return sum((turn.reply.usage for turn in self.turns), Usage())

    @property
    def cost_usd(self) -> float:
        return sum(turn.cost_usd or 0.0 for turn in self.turns)

    def _append(self, fact: dict[str, Any]) -> None:
        if self.path is None:
            return
        line = json.dumps(fact, separators=(",", ":")).encode() + b"\n"
        with _writing(self.path), open(self.path, "a+b", buffering=0) as file:
            if not self._whole:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
                self._whole = True
            file.write(line)
            os.fsync(file.fileno())


def _taken(made: Transcript | None, fact: dict[str, Any], path: Path) -> Transcript:
    if "episode" in fact:
        return Transcript(Heading.from_json(fact["episode"]), path)
    if made is None:
        raise ValueError("the heading is missing")
    if "turn" in fact:
        made.turns.append(ChatTurn.from_json(fact["turn"]))
    elif "compacted" in fact:
        made.compacted = Compacted.from_json(fact["compacted"])
    elif "ended" in fact:
        made.ended = str(fact["ended"])
    else:
        raise ValueError(f"unknown fact {', '.join(fact)[:60]}")
    return made


@contextlib.contextmanager
def _writing(path: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written ({error.strerror or error}); the turns before are kept."
        ) from error
