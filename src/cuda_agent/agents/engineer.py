"""The loop of a chat model: it speaks, its calls are carried out, it hears what came of them.

Flat on purpose. What was said and done is in the transcript before the next turn begins, so that an
episode continues where it was killed.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.agents import context
from cuda_agent.agents.loop import evaluations, extended
from cuda_agent.agents.tools.base import Answer
from cuda_agent.agents.tools.folder import PathRefused
from cuda_agent.agents.tools.toolbox import Toolbox
from cuda_agent.agents.transcript import Answered, ChatTurn, Transcript
from cuda_agent.policies import Step, ToolCall
from cuda_agent.policies.chat import (
    Call,
    ChatFailed,
    ChatModel,
    ContextTooLong,
    DialectChanged,
    Reply,
)
from cuda_agent.policies.prices import Price
from cuda_agent.records import Candidate, Episode
from cuda_agent.store import Store

MAX_CALLS = 16
"""Calls of one reply that are carried out."""

_SILENT = 3  # replies in a row without an action
_SHRINKS = 5  # times that a context that is too long is made shorter, for one reply

NOTHING = "You called no tool. Act now: call one, or submit if the work is done."
CUT = "Your reply was cut off at the endpoint's limit of tokens: be shorter, or write less at once."


@dataclass(frozen=True)
class ChatLimits:
    """`context` in tokens; `deadline` a time.monotonic() value; `cost_usd` needs a price table."""

    turns: int = 200
    context: int = 131_072
    evaluations: int | None = None
    cost_usd: float | None = None
    deadline: float | None = None


@dataclass(frozen=True)
class Event:
    """Something to show. `kind`: "text" (of the model, as it comes), "call" (a tool begins),
    "output" (of a command), "answer", "turn" (ended), "note" or "end"."""

    sample: int
    kind: str
    text: str
    turn: int = 0
    speedup: float | None = None
    cost_usd: float = 0.0


Watch = Callable[[Event], None]


@dataclass
class Engineer:
    """One episode. `begin` gives the opening messages for a dialect and starts the transcript."""

    chat: ChatModel
    toolbox: Toolbox
    transcript: Transcript
    begin: Callable[[str], Transcript]
    store: Store
    episode_id: str
    episode: Episode
    limits: ChatLimits = field(default_factory=ChatLimits)
    price: Price | None = None
    sample: int = 0
    watch: Watch = lambda event: None
    spent_by_others: Callable[[], float] = lambda: 0.0
    stopped: Callable[[], bool] = lambda: False

    def work(self) -> str:
        """Until the model submits or a limit is reached; returns why it ended.

        Raises SettingsError for what the user must mend, OutputError where the disk is full, and
        lets KeyboardInterrupt through; the turns before are stored then.
        """
        schemas = self.toolbox.schemas()
        while not (reason := self._over()):
            start = time.monotonic()
            try:
                reply = self._reply(schemas)
            except ChatFailed as error:
                reason = f"endpoint: {error}"
                break
            model_s = time.monotonic() - start
            answers = self._carry_out(reply)
            turn = ChatTurn(
                reply, tuple(answers), _note(reply, answers), self._speedup(),
                evaluations(self.episode),
                None if self.price is None else self.price.of(reply.usage),
                round(model_s, 3), round(time.monotonic() - start - model_s, 3),
            )
            self.transcript.add(turn)
            self._tell("turn", _totals(turn))
        self.transcript.end(reason)
        self._tell("end", reason)
        return reason

    def _over(self) -> str:
        """Why no other turn may begin, "" where one may."""
        done, limits = self.transcript, self.limits
        if done.turns and done.turns[-1].final:
            return "submitted"
        if len(done.turns) >= limits.turns:
            return f"{limits.turns} turns"
        if self.stopped():
            return "interrupted"
        dearest = max((turn.cost_usd or 0.0 for turn in done.turns), default=0.0)
        spent = done.cost_usd + self.spent_by_others()
        if limits.cost_usd is not None and spent + dearest > limits.cost_usd:
            return f"${spent:.2f} of ${limits.cost_usd:.2f} are spent; a turn takes ${dearest:.2f}"
        if limits.deadline is not None and time.monotonic() >= limits.deadline:
            return "time"
        if limits.evaluations is not None and evaluations(self.episode) >= limits.evaluations:
            return f"{limits.evaluations} evaluations"
        last = done.turns[-_SILENT:]
        if len(last) == _SILENT and not any(turn.answers for turn in last):
            said = last[-1].reply.refusal or last[-1].reply.text
            return f"no action in {_SILENT} replies: {' '.join(said.split())[:120]}"
        return ""

    # --- the model ------------------------------------------------------------------------------

    def _reply(self, schemas: Sequence[dict[str, Any]]) -> Reply:
        limit = self.limits.context
        for _ in range(_SHRINKS):
            dialect = self.chat.dialect
            offered = json.dumps(schemas) if dialect == "tools" else ""
            conversation = context.messages(
                self.transcript, self.transcript.heading.opening, dialect
            )
            if context.tokens(conversation, self.transcript, offered) > context.HIGH * limit and (
                self._compact(limit, offered)
            ):
                continue
            try:
                return self.chat.reply(conversation, schemas, lambda t: self._tell("text", t))
            except ContextTooLong as error:
                size = context.tokens(conversation, self.transcript, offered)
                limit = int(min(limit, size) * 0.6)
                self._tell("note", f"the context is too long ({str(error)[:160]})")
                if not self._compact(limit, offered):
                    raise ChatFailed(f"the context is too small even so: {error}") from None
            except DialectChanged:
                if self.transcript.turns:
                    raise ChatFailed("tool calls were refused in the midst of an episode") from None
                self._tell("note", "no tool calls here: one fenced action a turn instead")
                self.transcript = self.begin("text")
        raise ChatFailed("the conversation cannot be made short enough")

    def _compact(self, limit: int, offered: str) -> bool:
        notes = ""
        with contextlib.suppress(PathRefused, FileNotFoundError):
            notes = self.toolbox.folder.text(context.NOTES)
        done = context.compact(
            self.transcript, self._best(), notes, self.toolbox.knowledge.shown(), limit, offered
        )
        if done:
            self._tell("note", "older turns were compacted")
        return done

    def _best(self) -> Candidate | None:
        found = self.episode.best_candidate_hash
        return self.store.candidate(found) if found else None

    # --- its calls ------------------------------------------------------------------------------

    def _carry_out(self, reply: Reply) -> list[Answered]:
        answers: list[Answered] = []
        for number, call in enumerate(reply.calls):
            if number >= MAX_CALLS:
                answer = Answer(f"not carried out: over {MAX_CALLS} calls in one reply", "error")
            elif answers and answers[-1].final:
                answer = Answer("not carried out: the work has ended", "error")
            elif call.problem:
                answer = Answer(call.problem, "error")
            else:
                self._tell("call", f"{call.name} {_short(call.arguments)}")
                answer = self._answer(call)
            self._tell("answer", f"{answer.status} {answer.text}")
            answers.append(
                Answered(
                    call.id, call.name, call.arguments, answer.status, answer.text,
                    answer.candidate_hash, answer.verdict_hash, answer.final,
                )
            )
        return answers

    def _answer(self, call: Call) -> Answer:
        start = time.monotonic()
        answer = self.toolbox.call(
            call.name, call.arguments, lambda text: self._tell("output", text)
        )
        if answer.verdict_hash is not None and answer.candidate_hash is not None:
            verdict = self.store.verdict_by_hash(answer.verdict_hash)
            candidate = self.store.candidate(answer.candidate_hash)
            step = Step(ToolCall(call.name, call.arguments), answer.status, verdict, "")
            seconds = time.monotonic() - start
            self.episode = extended(self.episode, step, candidate, seconds, self.store)
            self.store.put_episode(self.episode_id, self.episode)
        return answer

    def _speedup(self) -> float | None:
        found = self.episode.best_verdict_hash
        verdict = self.store.verdict_by_hash(found) if found else None
        eager = verdict.speedup.get("eager") if verdict is not None else None
        return None if eager is None else eager.value

    def _tell(self, kind: str, text: str) -> None:
        self.watch(
            Event(
                self.sample, kind, text, len(self.transcript.turns) + (kind not in ("turn", "end")),
                self._speedup() if kind in ("turn", "end") else None, self.transcript.cost_usd,
            )
        )


def _note(reply: Reply, answers: Sequence[Answered]) -> str:
    cut = CUT if reply.finish == "length" else ""
    return cut if answers else " ".join(filter(None, (cut, NOTHING)))


def _short(arguments: Any) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:160]}…"


def _totals(turn: ChatTurn) -> str:
    usage = turn.reply.usage
    return f"{usage.prompt} + {usage.completion} tokens, {turn.model_s + turn.tools_s:.1f} s"
