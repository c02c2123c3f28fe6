"""The CPU as a target: C++ kernels built by the system compiler, OpenMP, shared memory."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_agent import runtime
from cuda_agent.targets import calibration
from cuda_agent.targets.base import Build, DeviceFacts
from cuda_agent.targets.building import compile_sources
from cuda_agent.targets.cpu import machine
from cuda_agent.targets.cpu.arena import MemoryArena


class CpuTarget:
    name = "cpu"
    suffixes = (".cpp", ".cc")
    timer_note = "time.perf_counter_ns around one call; calls are synchronous"

    def __init__(self) -> None:
        self._flush: torch.Tensor | None = None

    def unavailable(self) -> str | None:
        try:
            runtime.compiler("cpp")
        except runtime.ToolMissing as error:
            return f"{error}; install g++ (Debian: apt-get install g++)"
        return None

    def facts(self) -> DeviceFacts:
        instructions, vector_bytes = machine.simd()
        return calibration.apply(
            DeviceFacts(
                target=self.name,
                name=machine.model_name(),
                arch=instructions,
                units=machine.physical_cores(),
                vector_bytes=vector_bytes,
                cache_bytes=machine.last_level_cache_bytes(),
                memory_bytes=machine.memory_bytes(),
            )
        )

    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def compile(self, sources: Mapping[str, str], cache: Path) -> Build:
        return compile_sources(sources, cache, self.suffixes)

    def arena(self, nbytes: int) -> MemoryArena:
        return MemoryArena(nbytes)

    def open_arena(self, handle: Mapping[str, Any], fd: int | None) -> MemoryArena:
        if fd is None:
            raise ValueError("a CPU arena needs the file descriptor that travels with its handle")
        return MemoryArena(int(handle["nbytes"]), fd)

    def synchronize(self) -> None:
        """Nothing to wait for: CPU kernels return when they are done."""

    def flush_cache(self) -> None:
        """Write a buffer of twice the last-level cache, on all threads, so that the private
        caches of every core are evicted as well."""
        if self._flush is None:
            self._flush = torch.zeros(2 * machine.last_level_cache_bytes() // 4, dtype=torch.int32)
        self._flush.add_(1)

    def free_memory_bytes(self) -> int:
        return machine.free_memory_bytes()

    def energy_mj(self) -> float | None:
        return machine.energy_mj()

    def environment(self) -> dict[str, str]:
        compiler = "none" if self.unavailable() else runtime.toolchain("cpp").splitlines()[0]
        return {
            "target": self.name,
            "device": machine.model_name(),
            "cores": str(machine.physical_cores()),
            "threads": str(torch.get_num_threads()),
            "simd": machine.simd()[0],
            "compiler": compiler,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()}",
        }
