"""Stored episodes for others: to train on, to replay, to share.

    plans        what the training stages read (`rejection.extra`): plans and their verdicts
    chat         one conversation a line, {"messages", "tools", ...}, for fine-tuning chat models
    transcript   word by word, for `--policy scripted:FILE`; one episode to a file
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cuda_agent.agents import context
from cuda_agent.agents.compete import episode_id, transcripts
from cuda_agent.agents.loop import steps_of
from cuda_agent.agents.transcript import Answered, ChatTurn, Heading, Transcript
from cuda_agent.errors import SettingsError
from cuda_agent.policies import SUBMIT, Step
from cuda_agent.policies.chat import Call, Reply
from cuda_agent.records import Episode, Run
from cuda_agent.store import Store

FORMATS = ("plans", "chat", "transcript")


@dataclass(frozen=True)
class Stored:
    """One episode of a run. `speedup`: the best over eager of what was correct, else None."""

    run: Run
    sample: int
    episode: Episode
    steps: tuple[Step, ...]
    transcript: Transcript | None

    @property
    def id(self) -> str:
        return episode_id(self.run.id, self.sample)

    @property
    def speedup(self) -> float | None:
        found = [
            interval.value
            for step in self.steps
            if step.cost is not None and step.verdict is not None
            and (interval := step.verdict.speedup.get("eager")) is not None
        ]
        return max(found, default=None)


def stored(store: Store, run_ids: list[str]) -> Iterator[Stored]:
    """Episodes of these runs, of all where none is named. Raises SettingsError for an unknown
    run."""
    runs = [store.run(run_id) for run_id in run_ids] or store.runs()
    for run in runs:
        told = transcripts(store, run.id)
        for sample in range(max(1, len(told))):
            episode = store.episode(episode_id(run.id, sample))
            if episode is None and not told:
                continue
            episode = episode or Episode(run.problem.hash, run.settings.get("policy", ""), 0)
            steps = steps_of(episode, store)
            yield Stored(run, sample, episode, steps, told[sample] if told else None)


def plans(one: Stored) -> dict[str, Any] | None:
    """A line for the training stages; None where no plan was tried. What else a language model
    did is not in their action space, and left out."""
    steps = [step for step in one.steps if step.call.name == "apply_plan"]
    if not steps:
        return None
    submitted = one.transcript is None or one.transcript.ended == "submitted"
    return {
        "problem": one.episode.problem_hash,
        "steps": [
            {
                "call": step.call.to_json(), "status": step.status, "detail": step.detail,
                "verdict": None if step.verdict is None else step.verdict.to_json(),
            }
            for step in steps
        ],
        "submitted": submitted,
    }


def chat(one: Stored) -> dict[str, Any] | None:
    """The whole conversation, nothing compacted; None for a policy that does not speak."""
    if one.transcript is None:
        return None
    told, heading = one.transcript, one.transcript.heading
    whole = Transcript(heading, None, told.turns)
    dialect = "text" if heading.dialect == "text" else "tools"
    return {
        "id": one.id, "problem": one.episode.problem_hash, "model": heading.model,
        "speedup": one.speedup, "ended": told.ended,
        "messages": context.messages(whole, heading.opening, dialect),  # type: ignore[arg-type]
        "tools": list(heading.tools) if dialect == "tools" else [],
    }


def transcript(one: Stored) -> Iterator[dict[str, Any]]:
    """The lines of a transcript; made up from its plans where the policy does not speak."""
    told = one.transcript or _of_plans(one)
    yield {"episode": dataclasses.replace(told.heading, id=one.id).to_json()}
    for turn in told.turns:
        yield {"turn": turn.to_json()}
    yield {"ended": told.ended}


def _of_plans(one: Stored) -> Transcript:
    made = Transcript(
        Heading(one.id, one.run.problem.to_json(), one.episode.policy, "tools", (), ()),
        ended="submitted",
    )
    calls = [*((step.call, step.status) for step in one.steps), (SUBMIT, "ok")]
    for number, (call, status) in enumerate(calls):
        arguments = {"give_up": True} if call.name == "submit" else call.arguments
        reply = Reply(calls=(Call(f"t{number}", call.name, arguments),), finish="tool_calls")
        answer = Answered(f"t{number}", call.name, arguments, status, "", final=call is SUBMIT)
        made.turns.append(ChatTurn(reply, (answer,)))
    return made


def lines(episodes: list[Stored], form: str) -> Iterator[str]:
    """JSON lines in one of FORMATS. Raises SettingsError where there is nothing to write, or a
    transcript is asked for of several."""
    if form == "transcript" and len(episodes) != 1:
        names = ", ".join(one.id for one in episodes[:4]) or "none"
        raise SettingsError(f"a transcript holds one episode, and these are {names}; name one RUN.")
    made: list[dict[str, Any] | None] = []
    for one in episodes:
        made += transcript(one) if form == "transcript" else [
            plans(one) if form == "plans" else chat(one)
        ]
    found = [line for line in made if line is not None]
    if not found:
        raise SettingsError(f"no episode here can be written as {form!r}; see the other formats.")
    return (json.dumps(line, separators=(",", ":")) + "\n" for line in found)
