"""An analytic cost model in place of hardware, so that all stages run anywhere in seconds.

Nothing is compiled or timed, and every verdict says "simulated". The model has what matters to a
learner: fused kernels beat a chain of operations, each knob has an effect that depends on its name,
its value and on whether the region is large, effects multiply, some choices fail, and timing is
noisy. The effects are drawn by hash: they say nothing about any real device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from cuda_agent.policies import Plan, PlanSpace, plan_key
from cuda_agent.records import Interval, Timing, Verdict, content_hash
from cuda_agent.targets import DeviceFacts, get
from cuda_agent.training.tasks import TrainingProblem

NOISE = 0.01  # deviation of a measured time, relative
SPREAD = 0.6  # the worst option of a knob costs so much more than none
FAILING = 0.08  # share of options, never the first, that do not run
LAUNCH_MS = 0.002
COMPILE_LOSS = 1.15  # torch.compile over the best plan
LARGE_BYTES = 1 << 20


def facts(target: str) -> DeviceFacts:
    """Of the null target, or of a made-up GPU with round numbers for `target` "cuda"."""
    if target != "cuda":
        return get("null").facts()
    return DeviceFacts(
        target="cuda", name="simulated GPU", arch="sm_90a", units=128, vector_bytes=16,
        cache_bytes=1 << 25, memory_bytes=1 << 36, shared_bytes_per_block=1 << 17,
        shared_bytes_per_unit=1 << 17, registers_per_unit=1 << 16, threads_per_unit=2048,
        copy_bytes_per_s=4e12, read_bytes_per_s=4e12, launch_s=2e-6,
    )


class SimulatedSource:
    """Answers at once and always the same for the same problem and plan."""

    label = "simulated"

    def submit(self, problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Future[Verdict]:
        future: Future[Verdict] = Future()
        future.set_result(verdict(problem, plan, tier))
        return future

    def close(self) -> None:
        pass

    def __enter__(self) -> SimulatedSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def verdict(problem: TrainingProblem, plan: Plan, tier: str = "screen") -> Verdict:
    """Milliseconds by the model with noise of NOISE (a third of it for an audit)."""
    full = problem.space.complete(plan)
    key = content_hash(problem.problem.hash, plan_key(full))
    common: dict[str, Any] = {
        "problem": problem.problem.name, "problem_hash": problem.problem.hash,
        "candidate_hash": key, "target": "null", "tier": tier, "track": "library",
        "precision": "strict", "dtype": problem.problem.dtype,
        "environment": {"simulated": "true"}, "hashes": {"plan": key},
    }
    if reason := _failure(problem.space, full):
        return Verdict(status="runtime_error", feedback=reason, **common)
    noise = NOISE if tier == "screen" else NOISE / 3
    exact = plan_ms(problem, full)
    measured = exact * math.exp(noise * _normal(key, tier))
    eager, compiled = eager_ms(problem), best_ms(problem) * COMPILE_LOSS
    width = math.exp(2 * noise)

    def interval(base: float) -> Interval:
        return Interval(base / measured, base / measured / width, base / measured * width)

    timing = Timing(measured, measured / width, measured * width, (), "simulated")
    return Verdict(
        status="ok", timing=timing, feedback="simulated",
        speedup={"eager": interval(eager), "compile_default": interval(compiled)}, **common,
    )


def plan_ms(problem: TrainingProblem, full: Plan) -> float:
    """Of a complete plan, without noise."""
    graph = math.prod(_effect("graph", n, v, False) for n, v in full["graph"].items())
    return graph * sum(
        _region_ms(problem.task.regions[region], choice)
        for region, choice in full["regions"].items()
    )


def eager_ms(problem: TrainingProblem) -> float:
    """Every region by torch, one operation after the other."""
    torch = {"skill": "torch", "knobs": {}}
    regions = problem.space.regions
    return 1.3 * sum(_region_ms(problem.task.regions[region], torch) for region in regions)


def best_ms(problem: TrainingProblem) -> float:
    """The fastest plan that runs; exact, because choices do not interact."""
    space = problem.space
    graph = math.prod(
        min(_effect("graph", n, v, False) for v in options) for n, options in space.graph.items()
    )
    return graph * sum(
        min(_best_of(space, region, skill, problem.task.regions[region]) for skill in skills)
        for region, skills in space.regions.items()
    )


def _best_of(space: PlanSpace, region: str, skill: str, detail: Mapping[str, Any]) -> float:
    large = detail["bytes_moved"] >= LARGE_BYTES
    knobs = {}
    for name, options in space.regions[region][skill].items():
        runs = [o for o in options if not _fails(skill, name, o, options[0])]
        effects = [_effect(skill, name, o, large) for o in runs]
        knobs[name] = runs[effects.index(min(effects))]
    return _region_ms(detail, {"skill": skill, "knobs": knobs})


def _region_ms(detail: Mapping[str, Any], choice: Mapping[str, Any]) -> float:
    once = detail["bytes_moved"] / 1e11 * 1e3
    if choice["skill"] == "torch":
        passes = max(2, len(detail["ops"]))
        return passes * (once + LAUNCH_MS)
    large = detail["bytes_moved"] >= LARGE_BYTES
    effects = [_effect(choice["skill"], n, v, large) for n, v in choice["knobs"].items()]
    return once * math.prod(effects) + LAUNCH_MS


def _effect(skill: str, name: str, value: Any, large: bool) -> float:
    return 1 + SPREAD * _uniform("effect", skill, name, repr(value), str(large))


def _failure(space: PlanSpace, full: Plan) -> str:
    for region, choice in full["regions"].items():
        offered = space.regions[region][choice["skill"]]
        for name, value in choice["knobs"].items():
            if _fails(choice["skill"], name, value, offered[name][0]):
                return f"{region}: {choice['skill']} cannot run with {name}={value} (simulated)"
    return ""


def _fails(skill: str, name: str, value: Any, first: Any) -> bool:
    """The first option, the default, always runs."""
    return value != first and _uniform("fails", skill, name, repr(value)) < FAILING


def _uniform(*parts: str) -> float:
    return int.from_bytes(hashlib.sha256("|".join(parts).encode()).digest()[:6], "big") / 2**48


def _normal(*parts: str) -> float:
    """Standard normal by Box and Muller from two hashes."""
    u, v = max(_uniform("u", *parts), 1e-12), _uniform("v", *parts)
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
