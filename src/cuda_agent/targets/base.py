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
    copy_bytes_per_s: float | None = None
    matrix_flops_per_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Build:
    """A compiled candidate source: where the binary lies and what the compiler said of it."""

    binaries: dict[str, str]
    seconds: float
    cached: bool
    log: str = ""
    resources: dict[str, dict[str, int]] = field(default_factory=dict)


class Arena(Protocol):
    """One buffer of its own that a contestant may map: no other allocation shares its pages."""

    nbytes: int

    def tensor(
        self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor: ...

    def handle(self) -> dict[str, Any]:
        """JSON-ready handle (CPU: a file descriptor travels beside it) for `Target.open_arena`."""

    def close(self) -> None: ...


class Target(Protocol):
    """One kind of hardware: how to build, share memory with, time and describe it."""

    name: str
    suffixes: tuple[str, ...]

    def unavailable(self) -> str | None:
        """None when usable here, else one sentence: why not and how to mend it."""

    def facts(self) -> DeviceFacts: ...

    def torch_device(self) -> torch.device: ...

    def compile(self, sources: Mapping[str, str], cache: Path) -> Build:
        """Compile each source to a binary in `cache` (content-addressed).

        Raises CompileFailure with the compiler's log; TargetUnavailable without a compiler.
        """

    def arena(self, nbytes: int) -> Arena: ...

    def open_arena(self, handle: Mapping[str, Any], fd: int | None) -> Arena: ...

    def synchronize(self) -> None: ...

    def free_memory_bytes(self) -> int: ...

    def environment(self) -> dict[str, str]:
        """Device, driver, compiler and library versions, as recorded with each verdict."""
