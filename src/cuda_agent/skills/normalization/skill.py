"""Layer, RMS, group, instance and batch norm, L1, L2 and Frobenius normalisation."""

from __future__ import annotations

from cuda_agent.graph.ir import Region
from cuda_agent.skills.base import Skill
from cuda_agent.skills.emit.rows.writing import RowSkill, keeps_space

WHOLE = {
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "_native_batch_norm_legit": "batch_norm",
    "_native_batch_norm_legit_functional": "batch_norm",
    "_fused_rms_norm": "rms_norm",
}
STATISTICS = {"sum", "mean", "var", "var_mean", "std", "linalg_vector_norm", "norm", "amax", "max"}
SCALES = {"div", "mul", "rsqrt", "sqrt"}


def wants(region: Region) -> bool:
    """A norm op, or elements divided or scaled by a statistic of their row."""
    names = set(region.op_names)
    if names & set(WHOLE):
        return True
    exponentials = "exp" in names or bool(names & {"_softmax", "_log_softmax"})
    return (keeps_space(region) and not exponentials
            and bool(names & STATISTICS) and bool(names & SCALES))


def label(region: Region) -> str:
    names = region.op_names
    for op, word in WHOLE.items():
        if op in names:
            return word
    if "rsqrt" in names and "var" not in names:
        return "rms_norm"
    return "normalize"


SKILL: Skill = RowSkill("normalization", wants, label)
