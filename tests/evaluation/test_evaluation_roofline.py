"""Roofline position and kernels' resources: the arithmetic, and what a verdict holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch

import cases
from cuda_agent.evaluation import Judge, feedback, resources, roofline
from cuda_agent.problems import materialize
from cuda_agent.records import Precision, Roofline
from cuda_agent.targets.base import Build
from cuda_agent.targets.cuda import H200

RATES = {"fp32": 50e12, "tf32": 400e12, "bf16": 800e12}
FACTS = dataclasses.replace(
    H200, copy_bytes_per_s=4e12, read_bytes_per_s=3e12, matrix_flops_per_s=RATES, launch_s=2e-6
)


def at(ms: float, moved: int, flops: int | None = 0, facts: object = FACTS) -> Roofline:
    return roofline.position(ms, moved, flops, facts, torch.float32, "matched")  # type: ignore


def test_the_larger_floor_bounds() -> None:
    memory = at(2.0, 4_000_000_000)
    assert (memory.bound, memory.floor_ms, memory.share) == ("memory", 1.0, 0.5)
    assert memory.bytes_per_s == 2e12
    compute = at(2.0, 4_000_000, 400_000_000_000)
    assert (compute.bound, compute.floor_ms, compute.share) == ("compute", 1.0, 0.5)
    assert compute.flops_per_s == 2e14
    small = at(0.02, 4_000)
    assert small.bound == "launch" and small.share == pytest.approx(0.1)


def test_how_it_reads() -> None:
    said = roofline.describe(at(2.0, 4_000_000_000))
    assert said == (
        "2000 GB/s of 4000; bound by memory: floor 1 ms, 50% reached, 2x to gain at most"
    )
    assert "200 TFLOP/s of 400" in roofline.describe(at(2.0, 4_000_000, 400_000_000_000))
    assert "faster than the memory floor" in roofline.describe(at(0.5, 4_000_000_000))


def test_without_measured_peaks_nothing_bounds() -> None:
    found = at(2.0, 4_000_000_000, 10, H200)
    assert (found.bound, found.floor_ms, found.share) == ("unknown", None, None)
    assert "doctor --calibrate" in roofline.describe(found)


@pytest.mark.parametrize(
    ("dtype", "precision", "peak"),
    [
        (torch.float32, "strict", 400e12 / 3), (torch.float32, "matched", 400e12),
        (torch.bfloat16, "strict", 800e12), (torch.float16, "strict", None),
    ],
)
def test_the_peak_follows_the_policy(
    dtype: torch.dtype, precision: Precision, peak: float | None
) -> None:
    assert roofline.peak_flops(RATES, dtype, precision) == peak


@pytest.mark.parametrize(
    ("body", "shape", "operations"),
    [("torch.mm(x, x.t())", "32, 48", 2 * 32 * 48 * 32), ("torch.relu(x)", "32, 48", 0)],
)
def test_operations_of_the_reference(body: str, shape: str, operations: int) -> None:
    source = (
        "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {body}\ndef get_inputs():\n    return [torch.randn({shape})]\n"
    )
    instance = materialize(cases.problem(source=source), "cpu")
    assert roofline.operations(instance, instance.inputs(1)) == operations


LOG = {"registers": 64, "shared_bytes": 0, "stack_bytes": 8, "spill_bytes": 0}


def test_kernels_of_a_build() -> None:
    build = Build({}, 0.0, False, resources={
        "plain": LOG, "_ZN2my5boundEPf": {**LOG, "spill_bytes": 12},
    })  # fmt: skip
    sources = {"a.cu": "__global__ void __launch_bounds__(128, 2) bound(float* x) {}"}
    bound, plain = sorted(resources.of_kernels(build, H200, sources), key=lambda k: k.name)
    assert (bound.name, bound.block, bound.bounded) == ("bound", 128, True)
    assert (plain.name, plain.block, plain.bounded) == ("plain", 256, False)
    assert plain.occupancy == 0.5 and plain.limited_by == "registers"
    said = feedback.complete("", (plain, bound), None).splitlines()
    assert said[0].startswith("kernel bound: 64 registers, 0 bytes shared, 12 bytes spilled;")
    assert said[1].endswith("occupancy 50% at 256 threads a block (assumed), limited by registers")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [("fused", "fused"), ("_Z5fusedIfEvPKfPf", "fused"), ("_ZN2my5fusedEPf", "fused")],
)
def test_names_of_symbols(symbol: str, name: str) -> None:
    assert resources.plain_name(symbol) == name


@pytest.mark.compiler
def test_a_verdict_has_its_position(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem())
    verdict = judge.judge(cases.candidate(cases.native(), judge.problem))
    assert verdict.ok and verdict.roofline is not None and verdict.timing is not None
    assert verdict.roofline.bytes == 4 * (64 * 512 + 512 + 64 * 512)
    assert verdict.roofline.flops == 0 and verdict.kernels == ()
    rate = verdict.roofline.bytes / verdict.timing.median_ms * 1e3
    assert verdict.roofline.bytes_per_s == pytest.approx(rate)
    assert "GB/s" in verdict.feedback
    wrong = cases.native(kernel=cases.KERNEL.replace("0.5f", "0.6f"))
    assert judge.judge(cases.candidate(wrong, judge.problem)).roofline is None
