"""Made-up problems for tests of training; their spaces are those of real skills in shape."""

from __future__ import annotations

from typing import Any

from cuda_agent.policies import PlanSpace, Task
from cuda_agent.records import Problem
from cuda_agent.training import simulated
from cuda_agent.training.tasks import TrainingProblem


def detail(count: int, ops: list[str]) -> dict[str, Any]:
    tensor = {"shape": [count], "dtype": "float32"}
    return {
        "kind": "pointwise", "ops": ops, "space": [count], "reduce_dims": [],
        "inputs": {"x": tensor}, "outputs": {"y": tensor}, "bytes_moved": 8 * count,
    }


SPACE = PlanSpace(
    graph={"cuda_graph": (False, True)},
    regions={
        "r0": {
            "pointwise": {
                "vector": (4, 2, 1), "unroll": (1, 2, 4), "threads": (256, 128, 512),
                "stores": ("plain", "stream"),
            },
            "torch": {},
        },
    },
)


def problems(count: int = 4, space: PlanSpace = SPACE) -> list[TrainingProblem]:
    """Half of them small and half large; the cost model treats these differently."""
    made = []
    for i in range(count):
        size = 1 << (14 if i % 2 else 22)
        task = Task(
            space, {"r0": detail(size + i, ["mul", "gelu", "add"])}, simulated.facts("cuda"),
        )
        made.append(TrainingProblem(Problem(f"p{i}", f"# problem {i}", "made up"), task))
    return made
