"""What the two PPO stages share: play a batch, look at it, update."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from cuda_agent import rewards
from cuda_agent.errors import HarnessError
from cuda_agent.records import Verdict
from cuda_agent.training import rollouts
from cuda_agent.training.config import PpoStage
from cuda_agent.training.rollouts import Rules, Tally, Trajectory
from cuda_agent.training.run import Training
from cuda_agent.training.update import update

_AUDIT_TOLERANCE = 0.05  # an audit that finds the speed-up smaller by more is a disagreement


def run(training: Training, stage: str, settings: PpoStage, turns: int) -> None:
    """`settings.steps` steps on episodes of `turns` plans."""
    config = training.config

    def step(i: int) -> dict[str, float]:
        drawn = training.draw(settings.batch, settings.problems_per_batch, stage, i)
        rules = rules_of(training, turns, seed=training.seed(stage, i))
        episodes, tally = rollouts.play(training.learner.builtin, drawn, training.source, rules)
        metrics = {**summary(episodes), **cost(tally), **audits(training, stage, i, episodes)}
        start = time.perf_counter()
        metrics |= update(
            training.learner, episodes, settings.minibatch, training.seed("minibatches", stage, i)
        )
        metrics["updating_s"] = time.perf_counter() - start
        every = config.validate_every
        if every and training.validation and ((i + 1) % every == 0 or i + 1 == settings.steps):
            metrics |= validate(training)
        return metrics

    training.advance(stage, settings.steps, step)


def rules_of(training: Training, turns: int, seed: int, greedy: bool = False) -> Rules:
    config = training.config
    return Rules(
        turns, rewards.get(config.environment.reward), config.environment.outcome,
        config.ppo.temperature, greedy, seed,
    )


def validate(training: Training) -> dict[str, float]:
    """The first plan, greedily chosen, on every validation problem."""
    rules = rules_of(training, turns=1, seed=0, greedy=True)
    builtin = training.learner.builtin
    episodes, _ = rollouts.play(builtin, training.validation, training.source, rules)
    return {f"validation_{name}": value for name, value in summary(episodes).items()}


def summary(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Of whole episodes. `reward` is what was learnt from, `reward_best` and `reward_final` the
    milestones of the best and of the last verdict, `speedup` the geometric mean over torch.compile
    of the best correct ones; `pass` and `faster` count problems with a correct candidate, and with
    one that beats torch.compile by the milestone's margin."""
    sound = [e for e in episodes if not e.broken]
    if not sound:
        return {"broken": float(len(episodes))}
    best = [rollouts.grade(e.steps, rewards.milestone, "best") for e in sound]
    final = [rollouts.grade(e.steps, rewards.milestone, "final") for e in sound]
    logs = [math.log(s) for e in sound if (s := _speedup(e)) > 0]
    return {
        "reward": _mean([e.reward for e in sound]),
        "reward_best": _mean(best),
        "reward_final": _mean(final),
        "pass": _mean([float(b > rewards.REWARD_FAILED) for b in best]),
        "faster": _mean([float(b >= rewards.REWARD_FASTER_THAN_COMPILE) for b in best]),
        "speedup": math.exp(_mean(logs)) if logs else math.nan,
        "turns": _mean([float(len(e.steps)) for e in sound]),
        "broken": float(len(episodes) - len(sound)),
    }


def cost(tally: Tally) -> dict[str, float]:
    seconds = tally.sampling_s + tally.judging_s
    return {
        "tokens": float(tally.tokens), "evaluations": float(tally.evaluations),
        "sampling_s": tally.sampling_s, "judging_s": tally.judging_s,
        "evaluations_per_s": tally.evaluations / seconds if seconds > 0 else 0.0,
    }


def audits(
    training: Training, stage: str, i: int, episodes: Sequence[Trajectory]
) -> dict[str, float]:
    """Every `audit_every`th candidate with the highest reward of a step is judged again, by audit.
    Disagreements are an alarm: the policy may have found a hole in the screen."""
    every = training.config.environment.audit_every
    top = max((e.reward for e in episodes), default=0.0)
    best = [e for e in episodes if e.reward == top and _best(e) is not None]
    if not every or not best:
        return {}
    first = training.seed("audit", stage, i) % every
    asked: list[tuple[Verdict, Future[Verdict]]] = []
    for episode in best[first::every]:
        step = _best(episode)
        assert step is not None and step.verdict is not None
        plan: Any = step.plan
        asked.append((step.verdict, training.source.submit(episode.problem, plan, "audit")))
    wrong = 0
    for screened, future in asked:
        try:
            wrong += disagrees(screened, future.result())
        except HarnessError:  # nothing was found out
            continue
    return {"audits": float(len(asked)), "audit_disagreements": float(wrong)}


def disagrees(screened: Verdict, audited: Verdict) -> bool:
    """The audit refuses the candidate, or finds it clearly slower than the screen did."""
    if audited.status == "harness_error":
        return False
    if not audited.ok:
        return True
    pairs = [(screened.speedup[n], audited.speedup.get(n)) for n in screened.speedup]
    return any(
        before is not None and again is not None
        and again.high < before.low * (1 - _AUDIT_TOLERANCE)
        for before, again in pairs
    )


def _best(episode: Trajectory) -> Any:
    done = [step for step in episode.steps if step.cost is not None]
    return min(done, key=lambda step: step.cost or math.inf, default=None)


def _speedup(episode: Trajectory) -> float:
    """Over torch.compile, else over eager; 0 where nothing was correct."""
    step = _best(episode)
    if step is None or step.verdict is None:
        return 0.0
    speedup = step.verdict.speedup
    interval = speedup.get("compile_default") or speedup.get("eager")
    return 0.0 if interval is None else float(interval.value)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
