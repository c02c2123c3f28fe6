"""One problem on one device, as plans: captured once, then any plan becomes a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuda_agent.agents.workspace import assemble, plan_space
from cuda_agent.graph import Graph, capture
from cuda_agent.policies import Plan, PlanSpace, Task
from cuda_agent.problems import Instance
from cuda_agent.records import Candidate
from cuda_agent.targets import DeviceFacts


@dataclass(frozen=True)
class Planner:
    """`space` holds every plan, `default` the one of the skills' own defaults."""

    instance: Instance
    graph: Graph
    facts: DeviceFacts
    space: PlanSpace
    default: Plan
    details: dict[str, Any]
    """What each region computes, see workspace.plan_space."""

    @classmethod
    def make(cls, instance: Instance, facts: DeviceFacts) -> Planner:
        """Captures the module; nothing of it is run. Raises CaptureError."""
        graph = capture(instance.model, instance.inputs(instance.seed), fold=True)
        data = plan_space(graph, facts)
        space = PlanSpace.from_json(data)
        return cls(instance, graph, facts, space, space.default(), data["details"])

    def task(self, precision: str = "strict", track: str = "library") -> Task:
        """What a policy may know before it acts."""
        dtype = self.instance.problem.dtype
        return Task(self.space, self.details, self.facts, dtype, precision, track)

    def assemble(self, plan: Plan) -> Candidate:
        """Raises SettingsError for a plan outside the space or that cannot be written."""
        return assemble(self.instance.problem, self.graph, self.space.complete(plan), self.facts)

    def regions(self) -> list[dict[str, Any]]:
        """What each region computes, JSON-ready, for reports."""
        return [
            {
                "id": region.id, "kind": region.kind, "ops": list(region.op_names),
                "space": list(region.space), "reduce_dims": list(region.reduce_dims),
                "bytes_moved": region.bytes_moved,
                "skills": list(self.space.regions.get(region.id, {})),
            }
            for region in self.graph.regions
        ]
