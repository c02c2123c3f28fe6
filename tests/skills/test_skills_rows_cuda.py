"""CUDA row kernels without a GPU: NVRTC compiles them, the emulator runs them."""

from __future__ import annotations

import pytest
from rows_cases import CASES, Case, region_of
from rows_check import H200, Buffers, emulate_written, settings_near_default, skill_of
from skills_harness import compile_cuda, compiler_missing

needs_compiler = pytest.mark.skipif(compiler_missing(), reason="g++ is not installed")
# One for each way through the emitter; the others are emulated in the slow test.
VARIED = {"softmax_hand", "gelu_norm", "flat_sum", "long_softmax", "softmax_dim1", "group_norm",
          "batch_norm", "argmax_1", "extremes_nan", "cross_entropy_weight", "kl",
          "logsumexp_masked", "var_every", "layer_norm_bf16", "softmax_tall",
          "tall_argmin"}  # fmt: skip


def emulate(case: Case, settings_wanted: slice) -> None:
    region = region_of(case)
    skill = skill_of(region)
    for knobs in settings_near_default(skill.knobs(region, H200))[settings_wanted]:
        written = skill.write(region, knobs, H200)
        buffers = Buffers(case, region)
        emulate_written(written, buffers)
        buffers.check()


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiles_for_hopper(case: Case) -> None:
    region = region_of(case)
    skill = skill_of(region)
    sources = {
        source for knobs in settings_near_default(skill.knobs(region, H200))
        for source in skill.write(region, knobs, H200).files.values()
    }
    for source in sources:
        compile_cuda(source)


@needs_compiler
@pytest.mark.compiler
@pytest.mark.parametrize("case", [c for c in CASES if c.name in VARIED], ids=lambda c: c.name)
def test_emulated(case: Case) -> None:
    emulate(case, slice(0, None))


@needs_compiler
@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.parametrize("case", [c for c in CASES if c.name not in VARIED], ids=lambda c: c.name)
def test_all_emulated(case: Case) -> None:
    emulate(case, slice(0, None))
