"""C++ row kernels, compiled and run, against torch in float64."""

from __future__ import annotations

import pytest
from rows_cases import CASES, Case, region_of
from rows_check import CPU, Buffers, CppKernels, run_written, settings_near_default, skill_of
from skills_harness import compiler_missing

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(compiler_missing(), reason="g++ is not installed"),
]
# One for each way through the emitter: layouts, kept values, several axes, indices, folds.
VARIED = {"softmax_hand", "gelu_norm", "flat_max", "long_softmax", "long_norm", "softmax_dim1",
          "group_norm", "batch_norm", "argmax_1", "argmax_all", "cross_entropy_weight", "kl",
          "logsumexp_masked", "var_every"}  # fmt: skip


def run(case: Case, settings_wanted: slice) -> None:
    region = region_of(case)
    skill = skill_of(region)
    for knobs in settings_near_default(skill.knobs(region, CPU))[settings_wanted]:
        written = skill.write(region, knobs, CPU)
        buffers = Buffers(case, region)
        run_written(written, buffers, CppKernels(written))
        buffers.check()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_default_knobs(case: Case) -> None:
    run(case, slice(0, 1))


@pytest.mark.parametrize("case", [c for c in CASES if c.name in VARIED], ids=lambda c: c.name)
def test_other_knobs(case: Case) -> None:
    run(case, slice(1, None))
