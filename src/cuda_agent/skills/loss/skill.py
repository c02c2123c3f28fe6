"""Losses: two or more tensors reduced to one value, or to one for each row."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Skill
from cuda_agent.skills.emit.rows.writing import RowSkill, keeps_space

NLL = {"nll_loss_forward", "nll_loss2d_forward"}


def wants(region: Region) -> bool:
    """Only reduced values leave the region, and they compare at least two inputs."""
    if set(region.op_names) & NLL:
        return True
    return not keeps_space(region) and len(region.inputs) >= 2


def label(region: Region) -> str:
    names = set(region.op_names)
    if not names & NLL:
        return "loss"
    return "cross_entropy" if "_log_softmax" in names else "nll_loss"


SKILL: Skill = RowSkill("loss", wants, label)
