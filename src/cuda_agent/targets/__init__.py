"""Hardware targets, chosen by short name or by `package.module:Class`."""

from __future__ import annotations

import functools
import importlib
from typing import cast

from cuda_agent.errors import TargetUnavailable
from cuda_agent.targets.base import Arena, Build, DeviceFacts, Target

__all__ = ["NAMES", "Arena", "Build", "DeviceFacts", "Target", "get", "resolve"]

_CLASSES = {
    "cuda": "cuda_agent.targets.cuda:CudaTarget",
    "cpu": "cuda_agent.targets.cpu:CpuTarget",
    "null": "cuda_agent.targets.null:NullTarget",
}
NAMES = tuple(_CLASSES)
_AUTO = ("cuda", "cpu")


@functools.cache
def get(name: str) -> Target:
    """The target of that name, usable here or not. Raises TargetUnavailable for no such name."""
    path = _CLASSES.get(name, name)
    if ":" not in path:
        raise TargetUnavailable(f"no target {name!r}; there are auto, {', '.join(NAMES)}")
    module, _, attribute = path.partition(":")
    try:
        return cast(Target, getattr(importlib.import_module(module), attribute)())
    except (ImportError, AttributeError) as error:
        raise TargetUnavailable(f"target {name!r} cannot be imported: {error}") from error


def resolve(name: str = "auto") -> Target:
    """The target to use. `auto` takes the GPU where there is a working one, else the CPU.

    Raises TargetUnavailable with the reason; an explicit choice is never replaced by another.
    """
    reasons = []
    for choice in _AUTO if name == "auto" else (name,):
        target = get(choice)
        reason = target.unavailable()
        if reason is None:
            return target
        reasons.append(f"target {choice} is not available: {reason}")
    raise TargetUnavailable("; ".join(reasons))
