"""What a policy sees and says: a conversation in, one tool call out.

A policy keeps no state between calls: what it knows is in the conversation. So a run that was
killed continues from its stored episode exactly as if nothing had happened.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Protocol

from cuda_agent.policies.space import Plan, PlanSpace
from cuda_agent.policies.task import Task
from cuda_agent.records import Verdict


@dataclass(frozen=True)
class ToolCall:
    """`apply_plan` with arguments {"plan": Plan}, or `submit` with none."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "arguments": self.arguments}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ToolCall:
        return cls(data["name"], data["arguments"])


def apply_plan(plan: Plan) -> ToolCall:
    return ToolCall("apply_plan", {"plan": plan})


SUBMIT = ToolCall("submit")


@dataclass(frozen=True)
class Step:
    """A tool call and its answer. `verdict` is None where the plan could not be assembled; then
    `detail` says why."""

    call: ToolCall
    status: str
    verdict: Verdict | None = None
    detail: str = ""

    @property
    def plan(self) -> Plan | None:
        return self.call.arguments.get("plan")

    @property
    def cost(self) -> float | None:
        """What a policy minimises, None for a failure: time over eager's time.

        Both were measured interleaved, so that drift of the machine cancels. Milliseconds where
        eager itself could not be measured.
        """
        return cost(self.verdict)


@dataclass(frozen=True)
class Conversation:
    """What was asked, and what was tried so far. `budget` counts evaluations, `default` is the plan
    that the skills' own defaults make. `task` describes the problem to policies that read; others
    ignore it, and it may be None where nobody reads."""

    space: PlanSpace
    default: Plan
    budget: int
    steps: tuple[Step, ...] = ()
    task: Task | None = None

    def __add__(self, step: Step) -> Conversation:
        return dataclasses.replace(self, steps=(*self.steps, step))

    def best(self) -> Step | None:
        done = [step for step in self.steps if step.cost is not None]
        return min(done, key=lambda step: step.cost or math.inf, default=None)


class Policy(Protocol):
    """Decides the next action. Same conversation, same seed, same action."""

    name: str

    def act(self, conversation: Conversation) -> ToolCall: ...


def cost(verdict: Verdict | None) -> float | None:
    """See Step.cost."""
    if verdict is None or not verdict.ok:
        return None
    eager = verdict.speedup.get("eager")
    if eager is not None and eager.value > 0:
        return 1 / eager.value
    return verdict.timing.median_ms if verdict.timing is not None else None
