"""The loop: a policy acts, the plan becomes a candidate, the judge answers, again.

This is the only place where something is tried again. Every turn is in the store before the next
begins, so that an episode continues where it was killed, and nothing is measured twice.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cuda_agent.errors import CandidateError, HarnessError, SettingsError
from cuda_agent.policies import Conversation, Plan, PlanSpace, Policy, Step, Task, ToolCall, cost
from cuda_agent.records import Candidate, Episode, Turn, Verdict
from cuda_agent.store import Store

Assemble = Callable[[Plan], Candidate]
OnTurn = Callable[[int, Step], None]

INVALID_PLAN = "invalid_plan"
_TURNS = 3  # turns allowed for each evaluation of the budget: plans may be invalid or known


class Evaluator(Protocol):
    """What the loop needs of a worker."""

    def evaluate(self, candidate: Candidate) -> Verdict: ...


@dataclass(frozen=True)
class Limits:
    """`budget` counts evaluations of new candidates; `deadline` is a time.monotonic() value."""

    budget: int
    deadline: float | None = None

    def reached(self, evaluations: int, turns: int) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or evaluations >= self.budget or turns >= _TURNS * self.budget


@dataclass
class Room:
    """Where an episode takes place: how plans become verdicts, and where they are kept.

    `settings_key` tells measurements under other settings apart.
    """

    store: Store
    run_id: str
    settings_key: str
    problem_hash: str
    assemble: Assemble
    worker: Evaluator

    def answer(self, call: ToolCall) -> tuple[Step, Candidate | None]:
        """What an `apply_plan` leads to, and the candidate that it made."""
        if call.name != "apply_plan" or not isinstance(call.arguments.get("plan"), dict):
            return Step(call, INVALID_PLAN, detail=f"no tool {call.name!r} here"), None
        try:
            candidate = self.assemble(call.arguments["plan"])
        except (SettingsError, CandidateError) as error:
            return Step(call, INVALID_PLAN, detail=str(error)), None
        try:
            verdict, known = self.verdict(candidate)
        except HarnessError as error:
            return Step(call, "harness_error", detail=str(error)), candidate
        detail = "same sources as an earlier plan" if known else verdict.feedback
        return Step(call, verdict.status, verdict, detail), candidate

    def verdict(self, candidate: Candidate) -> tuple[Verdict, bool]:
        """(the candidate's verdict, whether it was known). Raises HarnessError."""
        known = self.store.verdict(self.problem_hash, candidate.hash, self.settings_key)
        return (self._measure(candidate), False) if known is None else (known, True)

    def _measure(self, candidate: Candidate) -> Verdict:
        self.store.put_candidate(self.run_id, candidate)
        verdict = self.worker.evaluate(candidate)
        self.store.put_verdict(self.run_id, verdict, self.settings_key)
        return verdict


def run_episode(
    policy: Policy,
    room: Room,
    space: PlanSpace,
    default: Plan,
    limits: Limits,
    *,
    seed: int = 0,
    task: Task | None = None,
    on_turn: OnTurn | None = None,
) -> Episode:
    """Plays until the policy submits or a limit is reached; continues the run's stored episode.
    `task` is for policies that read it.

    Raises OutputError when the store cannot be written, and lets KeyboardInterrupt through; the
    turns before are stored then.
    """
    stored = room.store.episode(room.run_id)
    episode = stored or Episode(room.problem_hash, policy.name, seed)
    conversation = Conversation(
        space, default, limits.budget, steps_of(episode, room.store), task
    )
    while not limits.reached(evaluations(episode), len(episode.turns)):
        call = policy.act(conversation)
        if call.name == "submit":
            break
        start = time.monotonic()
        step, candidate = room.answer(call)
        conversation += step
        episode = extended(episode, step, candidate, time.monotonic() - start, room.store)
        room.store.put_episode(room.run_id, episode)
        if on_turn is not None:
            on_turn(evaluations(episode), step)
    return episode


def evaluations(episode: Episode) -> int:
    """Distinct candidates that were measured."""
    return len({t.candidate_hash for t in episode.turns if t.verdict_hash is not None})


def steps_of(episode: Episode, store: Store) -> tuple[Step, ...]:
    """The conversation of a stored episode. A turn whose verdict is gone is left out."""
    steps = []
    for turn in episode.turns:
        verdict = store.verdict_by_hash(turn.verdict_hash) if turn.verdict_hash else None
        if turn.verdict_hash is None or verdict is not None:
            steps.append(Step(ToolCall.from_json(turn.action), turn.status, verdict))
    return tuple(steps)


def ranking(episode: Episode, store: Store) -> list[tuple[Candidate, Verdict]]:
    """Every correct candidate once, fastest first."""
    found: dict[str, tuple[float, Candidate, Verdict]] = {}
    for turn in episode.turns:
        verdict = store.verdict_by_hash(turn.verdict_hash) if turn.verdict_hash else None
        candidate = store.candidate(turn.candidate_hash) if turn.candidate_hash else None
        value = cost(verdict)
        if verdict is not None and candidate is not None and value is not None:
            found.setdefault(candidate.hash, (value, candidate, verdict))
    return [(c, v) for _, c, v in sorted(found.values(), key=lambda entry: entry[0])]


def extended(
    episode: Episode, step: Step, candidate: Candidate | None, seconds: float, store: Store
) -> Episode:
    """With one more turn, and the best of all."""
    turn = Turn(
        step.call.to_json(),
        None if candidate is None else candidate.hash,
        None if step.verdict is None else step.verdict.hash,
        step.status,
        round(seconds, 3),
    )
    changed: dict[str, Any] = {"turns": (*episode.turns, turn)}
    best = store.verdict_by_hash(episode.best_verdict_hash) if episode.best_verdict_hash else None
    new, old = step.cost, cost(best)
    if new is not None and (old is None or new < old):
        changed |= {
            "best_candidate_hash": turn.candidate_hash, "best_verdict_hash": turn.verdict_hash,
        }
    return dataclasses.replace(episode, **changed)
