"""Episodes of the builtin model against a source of verdicts, many at once.

All episodes of a call are sampled with the same weights, and weights change only between calls, so
what is returned is on policy. Within a call sampling and judging overlap: the episodes are played
in groups, and while one group waits for its verdicts the next one is sampled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

import torch

from cuda_agent.errors import HarnessError
from cuda_agent.policies import Step
from cuda_agent.policies.builtin import (
    Builtin,
    Generation,
    automaton,
    encode_call,
    fits,
    sample,
)
from cuda_agent.records import Verdict
from cuda_agent.rewards import REWARD_FAILED, Reward
from cuda_agent.training.sources import Source
from cuda_agent.training.tasks import TrainingProblem

GROUPS = 2


@dataclass
class Trajectory:
    """An episode as the model saw it.

    `ids` is the whole stream. The token at `chosen[i]` was sampled among `allowed[i]` with
    log-probability `logprobs[i]`; every other token was written by the environment or was the only
    one possible, and takes no part in any loss. `advantages` and `targets` of the choices are
    there once update.assess has been over it.
    """

    problem: TrainingProblem
    ids: list[int]
    chosen: list[int] = field(default_factory=list)
    allowed: list[tuple[int, ...]] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    advantages: list[float] = field(default_factory=list)
    targets: list[float] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reward: float = REWARD_FAILED
    submitted: bool = False

    @property
    def broken(self) -> bool:
        """A failure of the harness, which is never the policy's fault: not to be learnt from."""
        return any(step.status == "harness_error" for step in self.steps)

    @property
    def teaches(self) -> bool:
        """Whether there is anything in it to learn from."""
        return bool(self.chosen) and not self.broken

    def act(
        self, ids: Sequence[int], allowed: Sequence[tuple[int, ...]], logprobs: Sequence[float]
    ) -> None:
        """Appends a call."""
        for token, options, logprob in zip(ids, allowed, logprobs):
            if len(options) > 1:
                self.chosen.append(len(self.ids))
                self.allowed.append(options)
                self.logprobs.append(logprob)
            self.ids.append(token)


@dataclass
class Tally:
    """What a call of `play` cost."""

    sampling_s: float = 0.0
    judging_s: float = 0.0
    tokens: int = 0
    evaluations: int = 0


@dataclass(frozen=True)
class Rules:
    """Of an episode: see training/config.py. `seed` settles what is sampled."""

    turns: int
    reward: Reward
    outcome: str = "best"
    temperature: float = 1.0
    greedy: bool = False
    seed: int = 0


def play(
    builtin: Builtin, problems: Sequence[TrainingProblem], source: Source, rules: Rules
) -> tuple[list[Trajectory], Tally]:
    """One episode for each problem (which may repeat), in their order.

    An episode ends when the policy submits, which it may after its first verdict, after
    `rules.turns` plans, or where the next call might not fit into the model's context.
    """
    episodes = [Trajectory(problem, builtin.begin(problem.task)) for problem in problems]
    tally = Tally()
    generator = torch.Generator(builtin.device).manual_seed(rules.seed)
    waiting = [_Group(builtin, episodes[i::GROUPS], source, rules) for i in range(GROUPS)]
    while waiting:
        group = waiting.pop(0)
        group.collect(tally)
        if group.sample(generator, tally):
            waiting.append(group)
    for episode in episodes:
        episode.reward = grade(episode.steps, rules.reward, rules.outcome)
    return episodes, tally


def grade(steps: Sequence[Step], reward: Reward, outcome: str) -> float:
    """The reward of an episode, paid for its "best" or its "final" verdict."""
    paid = [REWARD_FAILED if s.verdict is None else reward(s.verdict) for s in steps]
    if not paid:
        return REWARD_FAILED
    return max(paid) if outcome == "best" else paid[-1]


def retold(
    builtin: Builtin, problem: TrainingProblem, steps: Sequence[Step], reward: float
) -> Trajectory:
    """The trajectory of an episode that was played elsewhere or earlier; its log-probabilities are
    unknown and 0. Raises SettingsError for a plan outside the problem's space."""
    made = Trajectory(problem, builtin.begin(problem.task), reward=reward)
    for turn, step in enumerate(steps):
        machine = automaton(problem.space, builtin.tokenizer, submit=turn > 0)
        ids = encode_call(step.call, problem.space, builtin.tokenizer)
        made.act(ids, machine.walk(ids), [0.0] * len(ids))
        if step.call.name == "submit":
            made.submitted = True
            break
        made.steps.append(step)
        made.ids += builtin.answer(step)
    return made


class _Group:
    """Episodes that take their turns together."""

    def __init__(
        self, builtin: Builtin, episodes: Sequence[Trajectory], source: Source, rules: Rules
    ) -> None:
        self.builtin, self.source, self.rules = builtin, source, rules
        self.active = list(episodes)
        self.asked: list[tuple[Trajectory, Generation, Future[Verdict]]] = []

    def collect(self, tally: Tally) -> None:
        """Waits for the verdicts and appends them."""
        start = time.perf_counter()
        wait([future for _, _, future in self.asked])
        tally.judging_s += time.perf_counter() - start
        for episode, made, future in self.asked:
            try:
                verdict = future.result()
                step = Step(made.call, verdict.status, verdict, verdict.feedback)
            except HarnessError as error:
                step = Step(made.call, "harness_error", detail=str(error))
            episode.steps.append(step)
            episode.ids += self.builtin.answer(step)
        tally.evaluations += len(self.asked)
        self.asked = []

    def sample(self, generator: torch.Generator, tally: Tally) -> bool:
        """The next call of every episode that goes on; False when none does."""
        builtin, rules = self.builtin, self.rules
        self.active = [
            e for e in self.active
            if len(e.steps) < rules.turns and not e.submitted and not e.broken
            and fits(builtin, e.ids, e.problem.space)
        ]
        if not self.active:
            return False
        start = time.perf_counter()
        calls = sample(
            builtin, [e.ids for e in self.active], [e.problem.space for e in self.active],
            temperature=rules.temperature, generator=generator, greedy=rules.greedy,
            submit=bool(self.active[0].steps),
        )
        tally.sampling_s += time.perf_counter() - start
        for episode, made in zip(self.active, calls):
            episode.act(made.ids, made.allowed, made.logprobs)
            tally.tokens += len(made.ids)
            if made.call.name == "submit":
                episode.submitted = True
            else:
                plan = made.call.arguments["plan"]
                self.asked.append((episode, made, self.source.submit(episode.problem, plan)))
        return True
