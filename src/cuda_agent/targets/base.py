"""What every hardware target offers. One folder each: cuda, cpu, null."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DeviceFacts:
    """What a kernel writer needs to know of a device. Rates are measured, never datasheet ones.

    For a CPU `units` are physical cores usable by this process, `vector_bytes` the SIMD width,
    `cache_bytes` the last-level cache; for a GPU multiprocessors, 16-byte accesses and the L2.
    """

    target: str
    name: str
    arch: str
    units: int
    vector_bytes: int
    cache_bytes: int
    memory_bytes: int
    shared_bytes_per_block: int = 0
    shared_bytes_per_unit: int = 0
    registers_per_unit: int = 0
    threads_per_unit: int = 0
    blocks_per_unit: int = 0
    copy_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)
    launch_s: float | None = None

    @property
    def peak_bytes_per_s(self) -> float | None:
        """The faster of copying (bytes read + written) and reading, for roofline floors; None
        before `cuda-agent doctor --calibrate` has run here."""
        return max(self.copy_bytes_per_s or 0.0, self.read_bytes_per_s or 0.0) or None


@dataclass(frozen=True)
class Build:
    """Compiled candidate sources: where each binary lies and what the compiler said.

    `resources` maps a CUDA kernel to {"registers", "shared_bytes", "stack_bytes", "spill_bytes"}
    (static shared memory; bytes a thread spills).
    """

    binaries: dict[str, str]
    seconds: float
    cached: bool
    log: str = ""
    resources: dict[str, dict[str, int]] = field(default_factory=dict)


class Arena(Protocol):
    """One buffer of its own that a contestant may map: no other allocation shares its pages."""

    nbytes: int
    fd: int | None
    """File descriptor to send beside the handle; None where the handle says it all."""

    def tensor(
        self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """A view: `offset` in bytes, a multiple of the element size; `stride` in elements.

        Raises ValueError when the view does not fit. Views are dead after `close`.
        """

    def handle(self) -> dict[str, Any]:
        """JSON-ready handle for `Target.open_arena` in another process."""

    def close(self) -> None: ...


class Target(Protocol):
    """One kind of hardware: how to build, share memory with, time and describe it."""

    name: str
    suffixes: tuple[str, ...]
    timer_note: str
    """Which clock times a call on this target, for `Timing.method`."""

    def unavailable(self) -> str | None:
        """None when usable here, else one sentence: why not and how to mend it."""

    def facts(self) -> DeviceFacts:
        """Sizes from the device, rates from the calibration file where there is one."""

    def torch_device(self) -> torch.device: ...

    def compile(self, sources: Mapping[str, str], cache: Path) -> Build:
        """Compile each source ({file name: text}, headers among them) into `cache`, by content.

        The runtime of a solution finds the binaries when `$CUDA_AGENT_CACHE` is `cache`.
        Raises CompileFailure with the compiler's log; TargetUnavailable without a compiler.
        """

    def arena(self, nbytes: int) -> Arena: ...

    def open_arena(self, handle: Mapping[str, Any], fd: int | None) -> Arena:
        """Map another process's arena. Takes over `fd`."""

    def synchronize(self) -> None:
        """Wait for all work on the device, side streams included."""

    def flush_cache(self) -> None:
        """Evict everything from the last-level cache, so that the next call starts cold."""

    def free_memory_bytes(self) -> int: ...

    def energy_mj(self) -> float | None:
        """A running counter of the device's energy in millijoules; take differences. None where
        it cannot be read."""

    def environment(self) -> dict[str, str]:
        """Device, driver, compiler and library versions, as recorded with each verdict."""
