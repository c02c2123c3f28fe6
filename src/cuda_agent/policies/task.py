"""What a policy may know of a problem before it acts: regions, choices, device, baselines.

Frozen and JSON-ready, so that recorded tasks can be stored and played again anywhere. It holds
neither the problem's name nor its text: a policy that learns from tasks learns from structure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cuda_agent.policies.space import PlanSpace
from cuda_agent.targets import DeviceFacts


@dataclass(frozen=True)
class Task:
    """`regions` maps the id of every region, views included, to what it computes: "kind", "ops",
    "space", "reduce_dims", "inputs", "outputs", "bytes_moved" (see agents.workspace.plan_space).

    `baselines_ms` has the baselines that were measured, in milliseconds; it may be empty.
    """

    space: PlanSpace
    regions: dict[str, dict[str, Any]]
    device: DeviceFacts
    dtype: str = "float32"
    precision: str = "strict"
    track: str = "library"
    baselines_ms: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return data | {"space": self.space.to_json(), "device": dataclasses.asdict(self.device)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            **{**data, "space": PlanSpace.from_json(data["space"]),
               "device": DeviceFacts(**data["device"])}
        )
