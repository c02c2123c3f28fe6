"""The pointwise skill: every case in C++, on the CUDA emulator, through NVRTC and on a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pointwise_cases import CASES, RANDOM, Case
from rows_check import CPU, H200
from skills_check import check
from skills_harness import compiler_missing, region

from cuda_agent.skills.pointwise.skill import SKILL

ALL = [*CASES, *RANDOM]
needs_compiler = pytest.mark.skipif(compiler_missing(), reason="no C++ compiler")


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_cpp(case: Case) -> None:
    check(SKILL, case.function, case.inputs(), "cpp", sets="default")


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("case", [*CASES, *RANDOM[:8]], ids=lambda c: c.name)
def test_emulated(case: Case) -> None:
    check(SKILL, case.function, case.inputs(), "emulate", sets="default")


@pytest.mark.slow
@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("how", ["cpp", "emulate"])
@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_each_knob_changed_once(case: Case, how: str) -> None:
    check(SKILL, case.function, case.inputs(), how)


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_compiles_for_hopper(case: Case) -> None:
    check(SKILL, case.function, case.inputs(), "nvrtc", sets="default")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("case", ALL, ids=lambda c: c.name)
def test_on_device(case: Case, tmp_path: Path) -> None:
    check(SKILL, case.function, case.inputs(), "device", folder=tmp_path)


def test_permuted_inputs_go_through_shared_memory() -> None:
    found = region(lambda x, y: x.t() + y, (torch.randn(512, 256), torch.randn(256, 512)))
    written = SKILL.write(found, SKILL.knobs(found, H200).default(), H200)
    (source,) = written.files.values()
    assert "__shared__" in source and "__syncthreads" in source


def test_contiguous_tensors_of_any_rank_are_one_dim() -> None:
    found = region(lambda x, y: x * y, (torch.randn(4, 8, 16), torch.randn(4, 8, 16)))
    (source,) = SKILL.write(found, {}, H200).files.values()
    assert "% " not in source.split("extern")[1], "no coordinates are needed"


def test_offsets_beyond_two_billion_elements_take_64_bits() -> None:
    from cuda_agent.graph.ir import Op, Ref, Region, Tensor

    shape = (70_000, 65_536)
    x, y = (Tensor(n, shape, (65_536, 1), "float32") for n in ("x", "y"))
    huge = Region("r0", "pointwise", (Op("aten.relu.default", (Ref("x"),), ("y",)),), (x,), (y,),
                  {"x": x, "y": y}, shape)
    (source,) = SKILL.write(huge, {}, H200).files.values()
    assert "long long" in source and "(long long)blockIdx.x" in source


def test_an_output_that_does_not_fill_the_space_is_refused() -> None:
    found = region(lambda x, y: (x + 1, x + y), (torch.randn(4, 1), torch.randn(4, 8)))
    assert not SKILL.matches(found)


def test_large_work_gets_threads_and_small_work_one() -> None:
    small = region(torch.tanh, (torch.randn(64),))
    large = region(torch.tanh, (torch.randn(1 << 20),))
    assert SKILL.knobs(small, CPU).default()["threads"] == "one"
    assert SKILL.knobs(large, CPU).default()["threads"] == "all"
