"""The CUDA target where there is no GPU: reasons, versions, and compile-only use for an H200."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cuda_agent import runtime, runtime_gemm
from cuda_agent.errors import CompileFailure, TargetUnavailable
from cuda_agent.targets.cuda import H200, CudaTarget, checks

KERNEL = """
#include "scale.cuh"
extern "C" __global__ void scale(float* x, long long n) {
    __shared__ float tile[64];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n) x[threadIdx.x] = SCALE * tile[63 - threadIdx.x];
}
"""
LAUNCHER = """
#include <cuda_runtime.h>
#include <cstdint>
__global__ void kernel(float* x, int64_t n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }
extern "C" void run(float* x, int64_t n, void* stream) {
    kernel<<<1, 64, 0, static_cast<cudaStream_t>(stream)>>>(x, n);
}
"""


@pytest.mark.nvrtc
def test_compile_for_an_h200(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    target = CudaTarget(facts=H200)
    sources = {"scale.cu": KERNEL, "scale.cuh": "#define SCALE 2"}
    build = target.compile(sources, tmp_path)
    assert set(build.binaries) == {"scale.cu"} and not build.cached
    assert build.resources["scale"]["shared_bytes"] == 256
    assert build.resources["scale"]["spill_bytes"] == 0
    assert build.resources["scale"]["registers"] > 0
    again = target.compile(sources, tmp_path)
    assert again.cached and again.resources == build.resources
    ours = runtime.build(runtime_gemm.SOURCES, arch="sm_90a", cache=tmp_path)
    assert all(built.cached for built in ours.values()), "the runtime's own kernel came along"


@pytest.mark.nvrtc
def test_compile_error_names_file_and_line(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    bad = 'extern "C" __global__ void f() {\n  float y = z;\n}'
    with pytest.raises(CompileFailure, match=r'bad.cu\(2\): error: identifier "z"') as caught:
        CudaTarget(facts=H200).compile({"bad.cu": bad}, tmp_path)
    assert "float y = z" in caught.value.log


@pytest.mark.nvrtc
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_host_launcher_is_built_by_nvcc(tmp_path: Path) -> None:
    build = CudaTarget(facts=H200).compile({"run.cu": LAUNCHER}, tmp_path)
    assert build.binaries["run.cu"].endswith(".so")
    assert any(r["registers"] > 0 for r in build.resources.values())


def test_missing_nvrtc_is_a_target_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(runtime.importlib, "import_module", absent)
    with pytest.raises(TargetUnavailable, match="no NVRTC"):
        CudaTarget(facts=H200).compile({"scale.cu": KERNEL, "scale.cuh": ""}, tmp_path)


def test_reasons_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(checks, "driver_version", lambda: None)
    assert "no NVIDIA driver" in str(checks.reason(0))
    monkeypatch.setattr(checks, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in str(checks.reason(0))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert "sees no CUDA device" in str(checks.reason(0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "there is no CUDA device 1" in str(checks.reason(1))
    monkeypatch.setattr(checks, "nvrtc_version", lambda: None)
    assert "NVRTC is missing" in str(checks.reason(0))
    monkeypatch.setattr(checks, "nvrtc_version", lambda: (14, 0))
    assert "NVRTC 14.0 is newer than the driver's CUDA 13.0" in str(checks.reason(0))
    monkeypatch.setattr(checks, "nvrtc_version", lambda: (13, 3))
    monkeypatch.setattr(torch.cuda, "device", _NoDevice)
    assert "an empty kernel from NVRTC 13.3 does not run" in str(checks.reason(0))
    monkeypatch.setattr(checks, "_try_kernel", lambda *a: None)
    assert checks.reason(0) is None


class _NoDevice:
    def __init__(self, index: int) -> None:
        raise RuntimeError("the driver refuses\nmore")


def test_the_reason_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(checks, "reason", lambda index: calls.append(index) or "why")
    target = CudaTarget(3)
    assert target.unavailable() == target.unavailable() == "why"
    assert calls == [3]


@pytest.mark.nvrtc
def test_nvrtc_version_is_read() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    version = checks.nvrtc_version()
    assert version is not None and version[0] >= 12
    assert checks.dotted(version) == f"{version[0]}.{version[1]}"
