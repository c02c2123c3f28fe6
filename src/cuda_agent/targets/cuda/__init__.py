"""NVIDIA GPUs: NVRTC and nvcc builds, CUDA IPC arenas, L2 flush, NVML energy."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_agent import runtime, runtime_gemm
from cuda_agent.targets.base import Build, DeviceFacts
from cuda_agent.targets.building import compile_sources
from cuda_agent.targets.cuda import checks, nvml
from cuda_agent.targets.cuda.arena import DeviceArena
from cuda_agent.targets.cuda.devices import H200, read_facts

__all__ = ["H200", "CudaTarget"]


class CudaTarget:
    """CUDA device `index`. `facts`, to compile for a device that is not here, e.g. H200."""

    name = "cuda"
    suffixes = (".cu", ".cpp", ".cc")
    timer_note = "CUDA events on the current stream"

    def __init__(self, index: int = 0, facts: DeviceFacts | None = None) -> None:
        self.index = index
        self._given = facts
        self._flush: torch.Tensor | None = None
        self._reason: str | None = None
        self._checked = False

    def unavailable(self) -> str | None:
        if not self._checked:
            self._reason = checks.reason(self.index)
            self._checked = True
        return self._reason

    def facts(self) -> DeviceFacts:
        return self._given or read_facts(self.index)

    def torch_device(self) -> torch.device:
        return torch.device("cuda", self.index)

    def compile(self, sources: Mapping[str, str], cache: Path) -> Build:
        """`.cu` by NVRTC to a cubin, or by nvcc where it launches its own kernels (see
        runtime.kind_of); several at once in parallel. The runtime's own kernels come along, so
        that a contestant without a compiler finds them in the cache."""
        arch = self.facts().arch
        compile_sources(runtime_gemm.SOURCES, cache, self.suffixes, arch)
        return compile_sources(sources, cache, self.suffixes, arch)

    def arena(self, nbytes: int) -> DeviceArena:
        return DeviceArena(nbytes, self.index)

    def open_arena(self, handle: Mapping[str, Any], fd: int | None) -> DeviceArena:
        return DeviceArena(int(handle["nbytes"]), self.index, str(handle["ipc"]))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.index)

    def flush_cache(self) -> None:
        """Write a buffer of twice the L2 on the current stream, and give back lines that a kernel
        had marked as persisting. Not while a graph is being captured."""
        if self._flush is None:
            words = 2 * self.facts().cache_bytes // 4
            self._flush = torch.empty(words, dtype=torch.int32, device=self.torch_device())
        with torch.cuda.device(self.index):
            runtime.activate(self.index)
            runtime.check(runtime.driver().cuCtxResetPersistingL2Cache(), "persisting L2 reset")
            self._flush.zero_()

    def free_memory_bytes(self) -> int:
        """Free on the device, and what torch's allocator holds without using it."""
        free = torch.cuda.mem_get_info(self.index)[0]
        reserved = torch.cuda.memory_reserved(self.index)
        return free + reserved - torch.cuda.memory_allocated(self.index)

    def energy_mj(self) -> float | None:
        return nvml.energy_mj(self._uuid())

    def _uuid(self) -> str:
        return str(torch.cuda.get_device_properties(self.index).uuid)

    def environment(self) -> dict[str, str]:
        clock = nvml.sm_clock_mhz(self._uuid())
        return {
            "target": self.name,
            "device": torch.cuda.get_device_name(self.index),
            "arch": self.facts().arch,
            "driver": nvml.driver_version() or "unknown",
            "driver_cuda": checks.dotted(checks.driver_version()),
            "torch_cuda": str(torch.version.cuda),
            "nvrtc": checks.dotted(checks.nvrtc_version()),
            "nvcc": runtime.toolchain("host").splitlines()[3] if shutil.which("nvcc") else "none",
            "sm_clock_mhz": "unknown" if clock is None else str(clock),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        }
