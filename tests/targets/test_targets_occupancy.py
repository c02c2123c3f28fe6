"""Theoretical occupancy, by hand and against the driver's own calculator."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from cuda_agent import runtime, targets
from cuda_agent.targets.cuda import H200
from cuda_agent.targets.cuda.occupancy import occupancy

_REASON = targets.get("cuda").unavailable()


@pytest.mark.parametrize(
    ("block", "registers", "shared", "share", "limit"),
    [
        (256, 32, 0, 1.0, "threads"),
        (1024, 32, 0, 1.0, "threads"),
        (256, 33, 0, 0.75, "registers"),  # 40 a thread: 48 warps
        (256, 64, 0, 0.5, "registers"),
        (128, 168, 0, 12 / 64, "registers"),
        (256, 255, 0, 8 / 64, "registers"),
        (32, 16, 0, 0.5, "blocks"),
        (256, 32, 100 << 10, 0.25, "shared memory"),
        (256, 32, 227 << 10, 8 / 64, "shared memory"),
        (256, 32, 300 << 10, 0.0, "shared memory"),
        (768, 32, 0, 0.75, "threads"),
    ],
)
def test_on_an_h200(block: int, registers: int, shared: int, share: float, limit: str) -> None:
    assert occupancy(H200, block, registers, shared) == (share, limit)


@pytest.mark.gpu
@pytest.mark.skipif(_REASON is not None, reason=f"no GPU: {_REASON}")
@pytest.mark.parametrize("shared", [0, 10_000, 48_000])
@pytest.mark.parametrize("live", [4, 40, 120])
def test_as_the_driver_says(tmp_path: Path, live: int, shared: int) -> None:
    """`live` values a thread take registers; every block size must give the driver's answer."""
    body = " ".join(f"float v{i} = x[i + {i}];" for i in range(live))
    mixed = " ".join(f"y[i + {i}] = v{i} * v{live - 1 - i};" for i in range(live))
    source = (
        'extern "C" __global__ void k(const float* x, float* y) { int i = threadIdx.x; '
        f"{body} __syncthreads(); {mixed} }}"
    )
    target = targets.get("cuda")
    build = target.compile({"k.cu": source}, tmp_path)
    registers = build.resources["k"]["registers"]
    kernel = runtime.Kernel("k", Path(build.binaries["k.cu"]))
    function = kernel.handle(torch.cuda.current_device())
    facts, blocks = target.facts(), ctypes.c_int()
    for block in (32, 64, 128, 192, 256, 384, 512):
        runtime.check(
            runtime.driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                ctypes.byref(blocks), function, block, ctypes.c_size_t(shared)
            ),
            "occupancy",
        )
        share, _ = occupancy(facts, block, registers, shared)
        assert share == pytest.approx(blocks.value * block / facts.threads_per_unit), (
            block, registers, shared
        )
