"""A made-up device for policies: additive effects on log time, interactions, noise, failures."""

from __future__ import annotations

import math
import random

from cuda_agent.policies import Conversation, PlanSpace, Policy, Step, plan_key
from cuda_agent.records import Interval, Timing, Verdict

SPACE = PlanSpace(
    graph={"fold": (False, True), "cuda_graph": (False, True)},
    regions={
        "r0": {
            "pointwise": {"vector": (4, 2, 1, 8), "block": (256, 128, 512), "unroll": (1, 2, 4)},
            "torch": {},
        },
        "r1": {
            "normalization": {
                "strategy": ("warp", "block", "cluster"), "vector": (4, 2, 1),
                "block": (256, 128, 512, 1024),
            },
            "reduction": {"strategy": ("split", "block"), "block": (256, 128)},
            "torch": {},
        },
        "r2": {
            "gemm_epilogue": {"tile": (128, 64, 256), "stages": (2, 3, 4), "epilogue": ("a", "b")},
            "torch": {},
        },
    },
)


def verdict(ms: float, status: str = "ok", candidate: str = "c") -> Verdict:
    """An `ok` verdict of a candidate that takes `ms` where eager takes 1 ms, or a failure."""
    base = {
        "problem": "p", "problem_hash": "ph", "candidate_hash": candidate, "target": "cpu",
        "tier": "screen", "track": "library", "precision": "strict", "dtype": "float32",
    }
    if status != "ok":
        return Verdict(status=status, **base)  # type: ignore[arg-type]
    ratio = 1 / ms
    names = ("eager", "compile_default")
    return Verdict(
        status="ok", **base,  # type: ignore[arg-type]
        speedup={name: Interval(ratio, ratio * 0.99, ratio * 1.01) for name in names},
        timing=Timing(ms, ms * 0.99, ms * 1.01, (ms,), "made up"),
    )


class Surface:
    """log time of a plan; deterministic by seed. Some choices of region r1 fail."""

    def __init__(self, seed: int, space: PlanSpace = SPACE) -> None:
        self.seed = seed
        self.space = space

    def _draw(self, scale: float, *key: object) -> float:
        return random.Random(f"{self.seed}-{key!r}").gauss(0.0, scale)

    def fails(self, plan: dict) -> bool:
        r1 = plan["regions"].get("r1", {})
        return r1.get("knobs", {}).get("strategy") == "cluster"

    def ms(self, plan: dict) -> float:
        log = sum(self._draw(0.15, name, value) for name, value in plan["graph"].items())
        for region, choice in plan["regions"].items():
            log += self._draw(0.3, region, choice["skill"])
            for name, value in choice["knobs"].items():
                log += self._draw(0.1, region, choice["skill"], name, value)
                log += self._draw(0.05, choice["skill"], name, value)
        log += self._draw(0.01, "noise and interactions", plan_key(plan))
        return math.exp(log)

    def play(self, policy: Policy, budget: int) -> list[Step]:
        """The steps of an episode of at most `budget` evaluations."""
        conversation = Conversation(self.space, self.space.default(), budget)
        while len(conversation.steps) < budget:
            call = policy.act(conversation)
            if call.name == "submit":
                break
            plan = self.space.complete(call.arguments["plan"])
            status = "wrong" if self.fails(plan) else "ok"
            conversation += Step(call, status, verdict(self.ms(plan), status))
        return list(conversation.steps)


def best(steps: list[Step]) -> float:
    return min(step.cost for step in steps if step.cost is not None)
