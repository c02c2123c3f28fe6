"""Row programs: what regions become, what is refused, and that knobs are always valid."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch
from rows_cases import CASES, Case, randn, region_of
from rows_check import CPU, H200, skill_of

from cuda_agent.graph.ir import Op, Ref
from cuda_agent.skills.emit.rows import knobs as settings
from cuda_agent.skills.emit.rows.emitter import offset
from cuda_agent.skills.emit.rows.lowering import lower
from cuda_agent.skills.emit.rows.passes import fuse_online, plan_passes
from cuda_agent.skills.emit.rows.program import Unsupported, column_major, merge_axes
from cuda_agent.skills.emit.rows.writing import programs_of

BY_NAME = {case.name: case for case in CASES}


def test_layer_norm_keeps_its_row_once() -> None:
    program = lower(region_of(BY_NAME["gelu_norm"]))[0]
    plan = plan_passes(program, "all")
    assert (program.rows, program.columns) == (35, 256)
    assert len(plan.passes) == 3 and len(plan.kept) == 1  # the residual sum, held for all passes
    loaded = [load.value for work in plan.passes for load in work.loads]
    assert len(loaded) == len(set(loaded)) == 5


@pytest.mark.parametrize("name, kind", [("softmax_hand", "max_expsum"), ("softmax", "max_expsum"),
                                        ("logsumexp_last", "max_expsum"), ("var_last", "mean_m2"),
                                        ("layer_norm", "mean_m2"), ("instance_norm", "mean_m2")])
def test_two_rounds_become_one_when_a_row_is_read_again(name: str, kind: str) -> None:
    program = fuse_online(lower(region_of(BY_NAME[name]))[0])
    assert [r.kind for r in program.reduces] == [kind]


def test_group_norm_splits_channels() -> None:
    program = lower(region_of(BY_NAME["group_norm"]))[0]
    assert (program.rows, program.columns) == (12, 160)
    weight = next(load.operand for load in program.loads if load.operand.name.startswith("w"))
    assert any(weight.row_strides) and any(weight.col_strides)


def test_layout_follows_memory() -> None:
    assert not column_major(lower(region_of(BY_NAME["softmax"]))[0])
    assert column_major(lower(region_of(BY_NAME["softmax_dim1"]))[0])
    # (8, 24, 36) permuted to (8, 36, 24): the last dim is not the neighbour in memory.
    assert column_major(lower(region_of(BY_NAME["permuted_sum"]))[0])
    assert not column_major(lower(region_of(BY_NAME["permuted_norm"]))[0])


def test_a_loss_is_folded_by_a_second_program() -> None:
    programs = lower(region_of(BY_NAME["cross_entropy"]))
    assert [p.rows for p in programs] == [21, 1] and programs[1].columns == 21


def test_a_row_value_used_along_columns_is_refused() -> None:
    case = Case("crossed", lambda x: x - x.sum(1), randn((8, 8)), (8, 8), (1,))
    with pytest.raises(Unsupported, match="two different axes"):
        lower(region_of(case))
    assert programs_of(region_of(case)) is None


def test_other_reduce_dims_are_refused() -> None:
    case = Case("other", lambda x: x.sum(0), randn((8, 6)), (8, 6), (1,))
    with pytest.raises(Unsupported, match="reduce dims"):
        lower(region_of(case))


def test_unknown_ops_are_refused() -> None:
    region = region_of(BY_NAME["sum"])
    strange = Op("aten.erfinv.default", (Ref(region.ops[-1].outputs[0]),), ("strange",))
    values = {**region.values, "strange": replace(region.outputs[0], name="strange")}
    region = replace(region, ops=(*region.ops, Op("aten._nothing.default", strange.args,
                                                  strange.outputs)),
                     outputs=(values["strange"],), values=values)
    assert programs_of(region) is None


@pytest.mark.parametrize("name, skill", [
    ("softmax", "softmax"), ("softmax_hand", "softmax"), ("logsumexp_last", "softmax"),
    ("layer_norm", "normalization"), ("rms_norm", "normalization"), ("l1_norm", "normalization"),
    ("frobenius", "normalization"), ("cross_entropy", "loss"), ("mse", "loss"), ("kl", "loss"),
    ("hinge", "loss"), ("sum", "reduction"), ("argmax_1", "reduction"), ("var_last", "reduction"),
])  # fmt: skip
def test_flavour(name: str, skill: str) -> None:
    assert skill_of(region_of(BY_NAME[name])).name == skill


@pytest.mark.parametrize("case", CASES[::6], ids=lambda c: c.name)
@pytest.mark.parametrize("device", [H200, CPU], ids=lambda d: d.target)
def test_all_knobs_can_be_written(case: Case, device: object) -> None:
    region = region_of(case)
    skill = skill_of(region)
    space = skill.knobs(region, device)  # type: ignore[arg-type]
    assert 1 <= len(space) <= 64
    for knobs in islice(space, 64):
        written = skill.write(region, knobs, device)  # type: ignore[arg-type]
        for name in (t.name for t in region.outputs):
            assert f"{name} = torch.empty" in written.forward
        for line in "\n".join(written.files.values()).splitlines():
            assert len(line) < 200


def test_schedules_respect_the_device() -> None:
    for columns in (1, 31, 1000, 4096, 30000, 393216):
        case = Case("wide", lambda x: torch.softmax(x, -1), randn((2, columns)), (2, columns), (1,))
        program = lower(region_of(case))[0]
        for knobs in settings.cuda_knobs(program, H200):
            schedule = settings.cuda_schedule(program, knobs, H200)
            assert 32 <= schedule.threads <= 1024 and schedule.threads % 32 == 0
            assert schedule.threads % schedule.lanes == 0
            if schedule.storage == "register":
                assert schedule.chunks(columns) * schedule.vector <= 64
            if schedule.storage == "shared":
                chunks = -(-schedule.chunks(columns) // schedule.unroll) * schedule.unroll
                used = chunks * schedule.vector * 4 * schedule.threads
                assert used + 4096 <= H200.shared_bytes_per_block


def test_offsets() -> None:
    assert offset("col", (4, 8), (8, 1)) == "col"
    assert offset("col", (4, 8), (0, 1)) == "col % 8"
    assert offset("col", (4, 8), (1, 0)) == "col / 8"
    assert offset("col", (4, 8), (3, 5)) == "(col / 8) * 3 + (col % 8) * 5"
    assert offset("col", (4, 8), (0, 0)) == ""


def test_merge_axes_needs_every_operand() -> None:
    assert merge_axes([4, 1, 8], [[8, 0, 1], [8, 5, 1]]) == ((32,), [[1], [1]])
    assert merge_axes([4, 8], [[8, 1], [1, 0]]) == ((4, 8), [[8, 1], [1, 0]])
