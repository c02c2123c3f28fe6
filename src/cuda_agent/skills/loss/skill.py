"""Losses: two or more tensors reduced to one value, or to one for each row."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Skill
from cuda_agent.skills.emit.rows.program import product
from cuda_agent.skills.emit.rows.writing import RowSkill, keeps_space

NLL = {"nll_loss_forward", "nll_loss2d_forward"}
# What tells a comparison of two tensors from their product (matrix-vector, dot product).
COMPARISONS = {"sub", "log", "exp", "abs", "where", "clamp", "clamp_min", "relu", "_log_softmax",
               "xlogy", "log1p", "softplus"}


def wants(region: Region) -> bool:
    """Only reduced values leave the region, and they compare at least two inputs."""
    if set(region.op_names) & NLL:
        return True
    full = [t for t in region.inputs if t.numel == product(region.space)]
    return (not keeps_space(region) and len(full) >= 2
            and bool(set(region.op_names) & COMPARISONS))


def label(region: Region) -> str:
    names = set(region.op_names)
    if not names & NLL:
        return "loss"
    return "cross_entropy" if "_log_softmax" in names else "nll_loss"


SKILL: Skill = RowSkill("loss", wants, label)
