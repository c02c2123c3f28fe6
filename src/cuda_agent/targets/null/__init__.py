"""An honest fake for tests of everything around a target: it compiles nothing and says so."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import CompileFailure
from cuda_agent.targets.base import Build, DeviceFacts
from cuda_agent.targets.cpu.arena import MemoryArena


class NullTarget:
    """Tensors lie on the CPU. A source passes `compile` unless it holds the word `#error`, so that
    both branches can be tested; no binary comes of it. Every record says "simulated"."""

    name = "null"
    suffixes = (".cu", ".cpp")
    timer_note = "simulated: no hardware was timed"

    def unavailable(self) -> str | None:
        return None

    def facts(self) -> DeviceFacts:
        """A round, small device: 4 units, 1e11 bytes/s, 1e12 operations/s."""
        return DeviceFacts(
            target=self.name, name="simulated device", arch="null", units=4, vector_bytes=16,
            cache_bytes=1 << 20, memory_bytes=1 << 30, copy_bytes_per_s=1e11,
            matrix_flops_per_s={"fp32": 1e12},
        )

    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def compile(self, sources: Mapping[str, str], cache: Path) -> Build:
        for name, text in sources.items():
            if "#error" in text:
                raise CompileFailure(f"{name}: #error (simulated)", text)
        return Build(binaries={}, seconds=0.0, cached=False, log="simulated: nothing was compiled")

    def arena(self, nbytes: int) -> MemoryArena:
        return MemoryArena(nbytes)

    def open_arena(self, handle: Mapping[str, Any], fd: int | None) -> MemoryArena:
        return MemoryArena(int(handle["nbytes"]), fd)

    def synchronize(self) -> None: ...

    def flush_cache(self) -> None: ...

    def free_memory_bytes(self) -> int:
        return self.facts().memory_bytes

    def energy_mj(self) -> float | None:
        return None

    def environment(self) -> dict[str, str]:
        return {
            "target": self.name,
            "device": "simulated",
            "simulated": "true",
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
