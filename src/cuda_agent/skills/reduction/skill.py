"""Sums, means, extremes, norms and products along rows, with what surrounds them fused.

Also the fallback: it takes every rowwise region that has a row program.
"""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Skill
from cuda_agent.skills.emit.rows.axes import is_reduction
from cuda_agent.skills.emit.rows.writing import RowSkill


def wants(region: Region) -> bool:
    return True


def label(region: Region) -> str:
    """The reduction's own name when there is just one."""
    names = [op.name for op in region.ops if is_reduction(op)]
    return names[0].strip("_") if len(names) == 1 else "reduce"


SKILL: Skill = RowSkill("reduction", wants, label)
