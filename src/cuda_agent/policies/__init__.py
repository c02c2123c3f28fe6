"""Policies: who decides which plan to try next."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.policies.base import (
    SUBMIT,
    Conversation,
    Policy,
    Step,
    ToolCall,
    apply_plan,
    cost,
)
from cuda_agent.policies.rules import RulesPolicy
from cuda_agent.policies.scripted import ScriptedPolicy
from cuda_agent.policies.search import SearchPolicy
from cuda_agent.policies.space import Plan, PlanSpace, plan_key
from cuda_agent.policies.task import Task
from cuda_agent.policies.uniform import RandomPolicy

__all__ = [
    "POLICIES", "SUBMIT", "Conversation", "Plan", "PlanSpace", "Policy", "RandomPolicy",
    "RulesPolicy", "ScriptedPolicy", "SearchPolicy", "Step", "Task", "ToolCall", "apply_plan",
    "cost", "get", "plan_key",
]

def _builtin(seed: int, model: str | None = None) -> Policy:
    from cuda_agent.policies.builtin.policy import BuiltinPolicy  # imports torch

    return BuiltinPolicy(seed, model)


POLICIES: dict[str, Callable[[int], Policy]] = {
    "search": SearchPolicy, "rules": RulesPolicy, "random": RandomPolicy,
    "builtin": _builtin,
}


def get(name: str, seed: int = 0, model: str | None = None) -> Policy:
    """A policy by short name, or by dotted path `package.module:Class` (called with `seed`).
    `model`: the folder of the builtin policy's model; None takes the one of this package.

    Raises SettingsError for a name that does not exist, or where there is no model.
    """
    if name == "builtin":
        return _builtin(seed, model)
    if model is not None:
        raise SettingsError(f"policy {name} reads no model; choose builtin for {model}.")
    if name in POLICIES:
        return POLICIES[name](seed)
    module, _, attribute = name.partition(":")
    if not attribute:
        raise SettingsError(
            f"there is no policy {name!r}; choose from {', '.join(POLICIES)}, or give "
            "package.module:Class."
        )
    try:
        made: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"policy {name!r} cannot be imported: {error}.") from error
    policy: Policy = made(seed)
    return policy
