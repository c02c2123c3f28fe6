"""Feedback on a GPU: kernels, roofline, patterns and NVRTC's errors through the judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_evaluation_cuda import KERNEL, SOURCE, native, with_statement

import cases
from cuda_agent import targets
from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.evaluation.counters import count
from cuda_agent.evaluation.sanitize import sanitize
from cuda_agent.problems import materialize
from cuda_agent.records import Candidate, Verdict

_REASON = targets.get("cuda").unavailable()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_REASON is not None, reason=f"no GPU: {_REASON}"),
]


@pytest.fixture(scope="module")
def judge(cache_dir: Path) -> Iterator[Judge]:
    problem = cases.problem("cuda_bias_relu", SOURCE)
    settings = Settings(target="cuda", baselines=("eager",), deadline_s=8.0)
    with Pool("cuda", threads=4) as pool, Judge(
        problem, materialize(problem, "cuda"), settings, cache_dir=cache_dir, pool=pool
    ) as made:
        yield made


def candidate(judge: Judge, files: dict[str, str]) -> Candidate:
    return cases.candidate(files, judge.problem)


def verdict_of(judge: Judge, files: dict[str, str]) -> Verdict:
    return judge.judge(candidate(judge, files))


def test_kernels_and_roofline(judge: Judge) -> None:
    verdict = verdict_of(judge, native())
    assert verdict.ok, verdict.feedback
    (used,) = verdict.kernels
    assert used.name == "fused" and 8 <= used.registers <= 64 and used.spill_bytes == 0
    assert used.occupancy == 1.0 and used.block == 256 and not used.bounded
    assert verdict.roofline is not None and verdict.timing is not None
    moved = 4 * (2 * 4096 * 4096 + 4096)
    assert verdict.roofline.bytes == moved
    assert "GB/s" in verdict.feedback and "kernel fused: " in verdict.feedback
    if verdict.roofline.share is not None:
        assert verdict.roofline.bound == "memory" and 0.3 < verdict.roofline.share < 1.1


def test_a_launch_bound_and_spills(judge: Judge) -> None:
    """128 values live across a barrier, with 32 registers a thread allowed."""
    many = "".join(f"float v{k} = x[(i + {k}) % total]; " for k in range(128))
    total = " + ".join(f"v{k} * v{127 - k}" for k in range(128))
    head = "__launch_bounds__(1024, 2) void fused("
    kernel = KERNEL.replace("void fused(", head).replace(
        "if (i >= total) return;",
        f"if (i >= total) return; {many} __syncwarp(); if ({total} == 12345.678f) y[0] = 1.0f;",
    )
    (used,) = verdict_of(judge, native(kernel)).kernels
    assert (used.block, used.bounded, used.occupancy) == (1024, True, 1.0)
    assert used.registers <= 32 and used.spill_bytes > 0


def test_the_pattern_of_a_missing_tail(judge: Judge) -> None:
    verdict = verdict_of(judge, with_statement("if (i % columns >= 4093) { y[i] = 7.0f; return; }"))
    assert verdict.status == "wrong"
    assert "columns 4093 to 4095 of 4096 (the tail): the constant 7" in verdict.feedback


def test_nvrtc_through_the_judge(judge: Judge) -> None:
    verdict = verdict_of(judge, native(KERNEL.replace("fmaxf(v", "fmaxf(w")))
    assert verdict.status == "compile_error" and verdict.diagnostic is not None
    assert verdict.diagnostic.file == "fused.cu" and verdict.diagnostic.line is not None
    lines = verdict.feedback.splitlines()
    assert lines[1][lines[2].index("^") :].startswith("w,")


def test_what_is_not_there_says_why(judge: Judge) -> None:
    made = candidate(judge, native())
    assert "compute-sanitizer" in sanitize(judge, made).missing
    assert "ncu" in count(judge, made).missing
