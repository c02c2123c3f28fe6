"""Executable kernel-writing knowledge, a folder each, found by `all_skills()`."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Knobs, KnobSpace, Skill, Written
from cuda_agent.targets.base import DeviceFacts

__all__ = ["KnobSpace", "Knobs", "Skill", "Written", "all_skills", "applicable"]

# From the most specific to the most general; a skill that is not named here is asked last.
_ORDER = (
    "gemm_epilogue", "depthwise_conv", "scan", "loss", "softmax", "normalization", "reduction",
    "pointwise",
)


@functools.cache
def all_skills() -> dict[str, Skill]:
    """Every skill by name, in the order in which they are asked."""
    folders = {p.parent.name for p in Path(__file__).parent.glob("*/skill.py")}
    names = [n for n in _ORDER if n in folders] + sorted(folders - set(_ORDER))
    return {n: importlib.import_module(f"cuda_agent.skills.{n}.skill").SKILL for n in names}


def applicable(region: Region, device: DeviceFacts) -> list[Skill]:
    """Skills that can write `region` for `device`, the most specific first."""
    return [s for s in all_skills().values() if s.matches(region) and len(s.knobs(region, device))]
