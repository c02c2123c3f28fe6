"""Made-up tasks for tests of the builtin policy."""

from __future__ import annotations

from typing import Any

from cuda_agent.policies import PlanSpace, Task
from cuda_agent.policies.builtin import Config, shipped
from cuda_agent.targets import DeviceFacts

DEVICE = DeviceFacts("null", "simulated device", "null", 4, 16, 1 << 20, 1 << 30)
SPACE = PlanSpace(
    graph={"fold": (False,), "cuda_graph": (False, True)},
    regions={
        "r0": {
            "softmax": {"strategy": ("block", "warp", "cluster2"), "threads": (128, 64, 256)},
            "reduction": {"threads": (16, 16384, 256), "storage": ("auto",)},
            "torch": {},
        },
        "r2": {"pointwise": {"vector": (4, 2), "stores": ("plain", "stream")}, "torch": {}},
        "r3": {"torch": {}},
        "r5": {"gemm_epilogue": {}, "torch": {}},
    },
)
SMALL = PlanSpace(graph={}, regions={"r0": {"pointwise": {"vector": (4, 2, 1)}, "torch": {}}})
FIXED = PlanSpace(graph={"fold": (False,)}, regions={"r0": {"torch": {}}})


def detail(**changed: Any) -> dict[str, Any]:
    tensor = {"shape": [64, 512], "dtype": "float32"}
    return {
        "kind": "rowwise", "ops": ["_softmax"], "space": [64, 512], "reduce_dims": [1],
        "inputs": {"x": tensor}, "outputs": {"y": tensor}, "bytes_moved": 262144, **changed,
    }


def task(space: PlanSpace = SPACE, **changed: Any) -> Task:
    regions = {name: detail() for name in space.regions} | {"r1": detail(kind="view")}
    return Task(space, regions, DEVICE, baselines_ms={"eager": 0.5}, **changed)


def small_config() -> Config:
    """Small enough that a test takes milliseconds."""
    return Config(
        vocab_size=len(shipped()), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
    )
