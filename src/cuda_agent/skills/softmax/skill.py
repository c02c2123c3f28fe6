"""Softmax, log-softmax and log-sum-exp, as one op or written out as max, exp, sum."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Skill
from cuda_agent.skills.emit.rows.writing import RowSkill

WHOLE = {"_softmax", "_log_softmax", "_safe_softmax", "logsumexp"}


def wants(region: Region) -> bool:
    names = set(region.op_names)
    if names & {"nll_loss_forward", "nll_loss2d_forward"}:
        return False  # cross entropy: a loss
    written_out = {"exp", "sum"} <= names and bool(names & {"amax", "max"})
    return bool(names & WHOLE) or written_out


def label(region: Region) -> str:
    names = set(region.op_names)
    if "_log_softmax" in names:
        return "log_softmax"
    return "softmax" if names & {"_softmax", "_safe_softmax", "div"} else "logsumexp"


SKILL: Skill = RowSkill("softmax", wants, label)
