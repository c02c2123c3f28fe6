"""A planner and a judge that need no compiler: plans become short texts, times are made up."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.policies import Plan, PlanSpace, Task, plan_key
from cuda_agent.records import (
    Candidate,
    ErrorReport,
    Interval,
    Problem,
    Timing,
    Verdict,
)
from cuda_agent.targets import get

SPACE = PlanSpace(
    graph={"cuda_graph": (False, True)},
    regions={
        "r0": {"normalization": {"vector": (4, 2, 1), "block": (256, 128)}, "torch": {}},
        "r1": {"pointwise": {"vector": (4, 8)}, "torch": {}},
    },
)
PROBLEM = Problem("toy", "x = 1\n", "toy.py")
MODEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    PLAN = {plan!r}\n"


def slow(plan: Plan) -> float:
    """Milliseconds: eager takes 1; the default plan 1.2, the best 0.4."""
    ms = 1.2
    r0, r1 = plan["regions"]["r0"], plan["regions"]["r1"]
    ms *= {4: 1.0, 2: 0.6, 1: 0.8}[r0["knobs"]["vector"]] if r0["knobs"] else 1.5
    ms *= {4: 1.0, 8: 0.55}[r1["knobs"]["vector"]] if r1["knobs"] else 1.2
    return ms


@dataclass
class FakePlanner:
    """In place of agents.planner.Planner."""

    problem: Problem = PROBLEM
    space: PlanSpace = SPACE
    default: Plan = field(default_factory=SPACE.default)

    def assemble(self, plan: Plan) -> Candidate:
        full = self.space.complete(plan)
        text = MODEL.format(plan=json.dumps(full))
        files = {"model_new.py": text, "kernels/r0.cpp": f"// {plan_key(full)}\n"}
        return Candidate(self.problem.hash, files, "search", full, trusted=True)

    def task(self, precision: str = "strict", track: str = "library") -> Task:
        details = {row["id"]: {**row, "inputs": {}, "outputs": {}} for row in self.regions()}
        return Task(self.space, details, get("null").facts(), "float32", precision, track)

    def regions(self) -> list[dict[str, Any]]:
        return [
            {
                "id": name, "kind": "rowwise", "ops": ["add", "native_layer_norm"],
                "space": [8, 512], "reduce_dims": [1], "bytes_moved": 4096, "skills": list(skills),
            }
            for name, skills in self.space.regions.items()
        ]


@dataclass
class FakeWorker:
    """In place of workers.InlineWorker. `judged` has the hash of every candidate it saw."""

    problem: Problem = PROBLEM
    tier: str = "screen"
    judged: list[str] = field(default_factory=list)
    closed: bool = False
    factor: float = 1.0
    interrupt_at: int | None = None
    failing: tuple[str, ...] = ()

    def evaluate(self, candidate: Candidate) -> Verdict:
        if self.interrupt_at is not None and len(self.judged) == self.interrupt_at:
            raise KeyboardInterrupt
        self.judged.append(candidate.hash)
        assert candidate.plan is not None
        status = "wrong" if any(f in plan_key(candidate.plan) for f in self.failing) else "ok"
        return verdict(
            slow(candidate.plan) * self.factor, status, candidate.hash, self.problem, self.tier
        )

    def close(self) -> None:
        self.closed = True


def verdict(
    ms: float, status: str = "ok", candidate: str = "c0ffee0123456789", problem: Problem = PROBLEM,
    tier: str = "screen",
) -> Verdict:
    """`ok` with times around `ms` where eager takes 1 ms and torch.compile 0.9, or a failure."""
    base: dict[str, Any] = {
        "problem": problem.name, "problem_hash": problem.hash, "candidate_hash": candidate,
        "target": "cpu", "tier": tier, "track": "library", "precision": "strict",
        "dtype": "float32", "environment": {"torch": "2", "device": "made up"},
    }
    if status != "ok":
        return Verdict(status=status, feedback=f"it is {status}", **base)  # type: ignore[arg-type]

    def timing(value: float) -> Timing:
        samples = tuple(value * (1 + 0.01 * math.sin(i)) for i in range(30))
        return Timing(value, value * 0.99, value * 1.01, samples, "made up")

    def interval(value: float) -> Interval:
        return Interval(value, value * 0.98, value * 1.02)

    return Verdict(
        status="ok", **base,
        error=ErrorReport(1.2e-7, 3e-6, "float64 eager", 1.1e-7, 1e-5, 7),
        speedup={
            "eager": interval(1 / ms), "compile_default": interval(0.9 / ms),
            "compile_reduce_overhead": None, "compile_max_autotune": None,
        },
        timing=timing(ms),
        baselines={
            "eager": timing(1.0), "compile_default": timing(0.9),
            "compile_reduce_overhead": None, "compile_max_autotune": None,
        },
        floor_ms=0.2, hashes={"problem": problem.hash, "candidate": candidate},
        external_ops=("aten.mm",),
    )
