"""The CUDA target on a GPU: arenas over IPC, flush, energy, facts, calibration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_agent import targets
from cuda_agent.targets import calibration
from cuda_agent.targets.calibrate import calibrate
from cuda_agent.targets.cuda import H200, CudaTarget

pytestmark = pytest.mark.gpu

CHILD = """
import json, sys, torch
from cuda_agent.targets.cuda import CudaTarget
target = CudaTarget()
arena = target.open_arena(json.loads(sys.argv[1]), None)
x = arena.tensor(256, (2, 3), (1, 2), torch.bfloat16)
assert x.is_cuda and x.tolist() == [[0, 1, 2], [3, 4, 5]], x
x.mul_(2)
arena.tensor(512, (4,), (1,), torch.bool).fill_(True)
target.synchronize()
arena.close()
"""


@pytest.fixture
def target() -> CudaTarget:
    found = targets.get("cuda")
    reason = found.unavailable()
    if reason is not None:
        pytest.skip(reason)
    assert isinstance(found, CudaTarget)
    return found


def test_ipc_arena_round_trip_into_a_child(target: CudaTarget) -> None:
    arena = target.arena(1000)
    x = arena.tensor(256, (2, 3), (1, 2), torch.bfloat16)
    flags = arena.tensor(512, (4,), (1,), torch.bool)
    x.copy_(torch.arange(6.0).view(2, 3))
    flags.fill_(False)
    target.synchronize()
    handle = json.dumps(arena.handle())
    child = subprocess.run(
        [sys.executable, "-c", CHILD, handle], capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]] and flags.all().item()
    arena.close()
    arena.close()
    with pytest.raises(ValueError, match="closed"):
        arena.tensor(0, (1,), (1,), torch.uint8)


def test_arena_memory_is_its_own_and_is_given_back(target: CudaTarget) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    first, second = target.arena(100), target.arena(100)
    distance = abs(
        first.tensor(0, (1,), (1,), torch.uint8).data_ptr()
        - second.tensor(0, (1,), (1,), torch.uint8).data_ptr()
    )
    assert distance >= 2 << 20, "small arenas must not share a page"
    large = target.arena(1 << 30)
    assert torch.cuda.mem_get_info()[0] <= before - (1 << 30)
    for arena in (first, second, large):
        arena.close()
    assert torch.cuda.mem_get_info()[0] >= before - (4 << 20)


def test_arena_larger_than_the_device(target: CudaTarget) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        target.arena(4 * target.facts().memory_bytes)
    arena = target.arena(16)  # and the context has survived
    arena.tensor(0, (4,), (1,), torch.float32).fill_(1)
    arena.close()


def test_facts_and_environment(target: CudaTarget) -> None:
    facts = target.facts()
    assert facts.units == torch.cuda.get_device_properties(0).multi_processor_count
    assert facts.shared_bytes_per_block > 48 << 10 and facts.cache_bytes > 1 << 20
    if facts.name == H200.name:
        for field in (
            "arch", "units", "cache_bytes", "shared_bytes_per_block", "shared_bytes_per_unit",
            "registers_per_unit", "threads_per_unit",
        ):
            assert getattr(facts, field) == getattr(H200, field), field
        assert abs(facts.memory_bytes / H200.memory_bytes - 1) < 0.02
    environment = target.environment()
    assert all(isinstance(v, str) and v for v in environment.values())
    assert environment["driver_cuda"] != "unknown" and environment["nvrtc"] != "unknown"
    assert 0 < target.free_memory_bytes() <= facts.memory_bytes


def test_flush_evicts_the_l2(target: CudaTarget) -> None:
    """Reading a small buffer is slower after a flush than straight after another read."""
    x = torch.ones(6 << 20, device="cuda")  # 24 MiB, fits the L2 of any recent device

    def milliseconds(flush: bool) -> float:
        samples = []
        for _ in range(51):
            x.sum()
            if flush:
                target.flush_cache()
            torch.cuda._sleep(200_000)  # the host runs ahead, so that only the device is timed
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            x.sum()
            end.record()
            torch.cuda.synchronize()
            samples.append(start.elapsed_time(end))
        return sorted(samples)[25]

    if target.facts().cache_bytes < 2 * x.nbytes:
        pytest.skip("the L2 is smaller than the buffer")
    assert milliseconds(True) > 1.05 * milliseconds(False)
    assert target._flush is not None and target._flush.nbytes >= 2 * target.facts().cache_bytes - 4


def test_energy_counter_runs(target: CudaTarget) -> None:
    before = target.energy_mj()
    if before is None:
        pytest.skip("this device has no energy counter")
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(300):
        a @ a
    target.synchronize()
    after = target.energy_mj()
    assert after is not None and 1_000 < after - before < 10_000_000


def test_compile_and_launch(target: CudaTarget, tmp_path: Path) -> None:
    source = 'extern "C" __global__ void one(float* x) { x[threadIdx.x] = 1; }'
    build = target.compile({"one.cu": source}, tmp_path)
    assert build.resources["one"]["registers"] > 0
    from cuda_agent import runtime

    x = torch.zeros(4, device="cuda")
    runtime.Kernel("one", Path(build.binaries["one.cu"]))(1, 4, x)
    assert x.tolist() == [1.0] * 4


def test_calibration(
    target: CudaTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_AGENT_HOME", str(tmp_path))
    result, _ = calibrate(target)
    print(result)
    assert calibration.load(target.facts()) == result
    assert 1e11 < result.copy_bytes_per_s < 2e13
    assert 0.9 * result.copy_bytes_per_s < result.read_bytes_per_s < 2e13
    rates = result.matrix_flops_per_s
    assert rates["fp32"] < rates["tf32"] < rates["bf16"]
    assert 5e-7 < result.launch_s < 2e-5
    if target.facts().name == H200.name:
        assert 3.9e12 < result.copy_bytes_per_s < 4.9e12
        assert 40e12 < rates["fp32"] < 67e12
