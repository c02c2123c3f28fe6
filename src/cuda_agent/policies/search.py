"""`search`: a model of what was measured so far proposes the next plan.

The model: log cost = base + the sum of one effect for each choice in the plan (a region's skill, a
region's knob, the same knob wherever that skill is used, a choice of the whole graph), a linear
regression with Gaussian priors around zero (all options of a choice alike), in which a measurement
counts as much as its interval is narrow. One measurement of a
plan thus says something of every plan that shares a choice with it, and regions are learnt apart
although only the whole is ever timed.

The proposal: among neighbours of the best plans, their recombinations, and the plan that one
posterior sample likes best in every region, take the lowest mean - OPTIMISM * deviation. A failure
is evidence against the choices of its plan that no correct plan has.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from cuda_agent.policies.base import SUBMIT, Conversation, Step, ToolCall, apply_plan
from cuda_agent.policies.space import Plan, PlanSpace, plan_key, with_region

OPTIMISM = 0.6
"""Standard deviations below the mean at which a plan is ranked."""

PATIENCE = 10
"""Evaluations without an improvement by MIN_GAIN after which the search submits."""

MIN_GAIN = 0.005

NOISE = 0.02
"""Deviation of log cost that the choices do not explain (interactions), beside measured noise."""

BASE_VARIANCE = 100.0

SCALE = {"skill": 0.4, "knob": 0.12, "shared": 0.12, "graph": 0.3}
"""Prior deviation of an effect on log cost, by kind of choice."""

FAILURE_COST = 1.0
"""What a failed plan counts as: this much log cost above the worst that ran."""

Feature = tuple[str, ...]


class SearchPolicy:
    name = "search"

    def __init__(self, seed: int = 0, patience: int = PATIENCE) -> None:
        self.seed = seed
        self.patience = patience

    def act(self, conversation: Conversation) -> ToolCall:
        space, steps = conversation.space, conversation.steps
        if not steps:
            return apply_plan(space.complete(conversation.default))
        if self._stale(steps):
            return SUBMIT
        seen = {plan_key(step.plan) for step in steps if step.plan is not None}
        rng = random.Random(f"{self.seed}-{len(steps)}")
        model = Model(space, steps)
        candidates = {plan_key(p): p for p in self._candidates(conversation, model, rng)}
        fresh = [plan for key, plan in candidates.items() if key not in seen]
        fresh = [plan for plan in fresh if not model.hopeless(plan)] or fresh
        if not fresh:
            return SUBMIT
        ranks = model.ranks(fresh)
        return apply_plan(fresh[int(np.argmin(ranks))])

    def _stale(self, steps: Sequence[Step]) -> bool:
        """No gain in the last `patience` evaluations."""
        best, since = math.inf, 0
        for step in steps:
            if step.cost is not None and step.cost < best * (1 - MIN_GAIN):
                best, since = step.cost, 0
            else:
                since += 1
        return since >= self.patience

    def _candidates(
        self, conversation: Conversation, model: Model, rng: random.Random
    ) -> Iterator[Plan]:
        space = conversation.space
        ran = sorted(
            (step for step in conversation.steps if step.cost is not None and step.plan),
            key=lambda step: step.cost or math.inf,
        )
        plans = [step.plan for step in ran[:3] if step.plan is not None]
        anchors = plans or [space.complete(conversation.default)]
        for plan in anchors:
            yield from space.neighbours(plan)
        yield from _crossings(anchors)
        effects = model.mean
        for _ in range(8):
            yield model.descend(anchors[0], effects)
            effects = model.sample(rng)
        for plan in anchors[:1]:
            yield from space.neighbours(model.descend(plan, model.mean))
        for _ in range(16):
            yield space.random(rng)


class Model:
    """Posterior over the effects, from all steps that carry a plan."""

    def __init__(self, space: PlanSpace, steps: Sequence[Step]) -> None:
        self.space = space
        self.index: dict[Feature, int] = {}
        scales: list[float] = []
        for feature in _all_features(space):
            if feature not in self.index:
                self.index[feature] = len(scales)
                scales.append(SCALE[feature[0]])
        told = [s for s in steps if s.plan is not None and s.status != "harness_error"]
        rows, values = self._data(told)
        self._noise = np.array([_noise(step) for step in told])
        self._prior = np.concatenate([[BASE_VARIANCE], np.array(scales) ** 2])
        self._design = np.hstack([np.ones((len(rows), 1)), rows])
        gram = (self._design * self._prior) @ self._design.T + np.diag(self._noise**2)
        # prior @ design.T @ gram^-1; the covariance itself (features x features) is never formed.
        self._gain = np.linalg.solve(gram, self._design * self._prior).T
        self._values = values
        self.mean = self._gain @ values

    def _data(self, steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
        plans = [self.space.complete(step.plan or {}) for step in steps]
        features = [set(_features(plan)) for plan in plans]
        costs = [step.cost for step in steps]
        ran = [math.log(c) for c in costs if c is not None]
        proven = {f for fs, c in zip(features, costs) if c is not None for f in fs}
        self._broken = [
            fs - proven for fs, c in zip(features, costs) if c is None and len(fs - proven) == 1
        ]
        worst = max(ran, default=0.0) + FAILURE_COST
        rows = np.array([self._row(plan) for plan in plans]).reshape(len(plans), len(self.index))
        return rows, np.array([worst if c is None else math.log(c) for c in costs])

    def _row(self, plan: Plan) -> np.ndarray:
        row = np.zeros(len(self.index))
        for feature in _features(plan):
            row[self.index[feature]] += 1.0
        return row

    def hopeless(self, plan: Plan) -> bool:
        """Holds a choice that alone explains an earlier failure."""
        features = set(_features(plan))
        return any(broken <= features for broken in self._broken)

    def ranks(self, plans: Sequence[Plan]) -> np.ndarray:
        """Optimistic log cost of each plan."""
        rows = np.array([np.concatenate([[1.0], self._row(plan)]) for plan in plans])
        scaled = rows * self._prior
        known = np.einsum("ij,ij->i", rows @ self._gain, scaled @ self._design.T)
        variance = np.einsum("ij,ij->i", rows, scaled) - known
        return np.asarray(rows @ self.mean - OPTIMISM * np.sqrt(np.maximum(variance, 0.0)))

    def sample(self, rng: random.Random) -> np.ndarray:
        """One draw of all effects from the posterior: a draw from the prior, corrected by what it
        gets wrong on the data (Matheron's rule)."""
        drawn = np.array([rng.gauss(0.0, math.sqrt(v)) for v in self._prior])
        noise = np.array([rng.gauss(0.0, n) for n in self._noise])
        return np.asarray(drawn + self._gain @ (self._values - self._design @ drawn - noise))

    def descend(self, plan: Plan, effects: np.ndarray) -> Plan:
        """The best plan under `effects`: effects add up, so each choice is settled by itself."""
        graph = {
            name: min(options, key=lambda o: self._effect(("graph", name, repr(o)), effects))
            for name, options in self.space.graph.items()
        }
        best: Plan = {**plan, "graph": graph}
        for region, skills in self.space.regions.items():
            choices = []
            for skill, knobs in skills.items():
                picked = {
                    name: min(
                        options,
                        key=lambda o: sum(
                            self._effect(f, effects)
                            for f in _knob_features(region, skill, name, o)
                        ),
                    )
                    for name, options in knobs.items()
                }
                choices.append({"skill": skill, "knobs": picked})
            best = with_region(
                best, region, min(choices, key=lambda c: self._region_effect(region, c, effects))
            )
        return best

    def _effect(self, feature: Feature, effects: np.ndarray) -> float:
        return float(effects[1 + self.index[feature]])

    def _region_effect(self, region: str, choice: Plan, effects: np.ndarray) -> float:
        return sum(self._effect(f, effects) for f in _region_features(region, choice))


def _noise(step: Step) -> float:
    """Deviation of a step's log cost: from the interval of its speed-up where that is wide."""
    interval = step.verdict.speedup.get("eager") if step.verdict is not None else None
    if interval is None or interval.low <= 0:
        return NOISE
    return math.hypot(NOISE, math.log(interval.high / interval.low) / 4)


def _features(plan: Plan) -> Iterator[Feature]:
    for name, value in plan["graph"].items():
        yield ("graph", name, repr(value))
    for region, choice in plan["regions"].items():
        yield from _region_features(region, choice)


def _region_features(region: str, choice: Plan) -> Iterator[Feature]:
    yield ("skill", region, choice["skill"])
    for name, value in choice["knobs"].items():
        yield from _knob_features(region, choice["skill"], name, value)


def _knob_features(region: str, skill: str, name: str, value: object) -> Iterable[Feature]:
    """Within a region, skills that share a knob's name share the code generator behind it."""
    return (("knob", region, name, repr(value)), ("shared", skill, name, repr(value)))


def _all_features(space: PlanSpace) -> Iterator[Feature]:
    for name, options in space.graph.items():
        for option in options:
            yield ("graph", name, repr(option))
    for region, skills in space.regions.items():
        for skill, knobs in skills.items():
            yield ("skill", region, skill)
            for name, options in knobs.items():
                for option in options:
                    yield from _knob_features(region, skill, name, option)


def _crossings(plans: Sequence[Plan]) -> Iterator[Plan]:
    """Each plan with one region of another."""
    for plan in plans:
        for other in plans:
            for region, choice in other["regions"].items():
                if choice != plan["regions"][region]:
                    yield with_region(plan, region, choice)
