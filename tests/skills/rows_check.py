"""Runs what the row emitters write, on the CPU, and compares it with torch in float64."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import cuda_emulator
import torch
from rows_cases import Case
from skills_harness import build_cpp

from cuda_agent.graph.ir import Region, Tensor
from cuda_agent.skills.base import Knobs, KnobSpace, Skill, Written
from cuda_agent.skills.loss.skill import SKILL as LOSS
from cuda_agent.skills.normalization.skill import SKILL as NORMALIZATION
from cuda_agent.skills.reduction.skill import SKILL as REDUCTION
from cuda_agent.skills.softmax.skill import SKILL as SOFTMAX
from cuda_agent.targets.base import DeviceFacts

GUARD = 64
# A few roundings of the output dtype; sums over long rows add a little.
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, "bfloat16": 8e-3, "float16": 1e-3}


class Buffers:
    """Inputs and guarded outputs of a region by name."""

    def __init__(self, case: Case, region: Region, seed: int = 1) -> None:
        self.case, self.region = case, region
        self.inputs = case.inputs(seed)
        self.tensors = dict(zip((t.name for t in region.inputs), self.inputs))
        self._whole = {t.name: self._guarded(t) for t in region.outputs}

    def _guarded(self, tensor: Tensor) -> torch.Tensor:
        """An output between guard zones: a stray write shows."""
        dtype = getattr(torch, tensor.dtype)
        size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride))
        whole = torch.full((size + 2 * GUARD,), 1, dtype=dtype)
        self.tensors[tensor.name] = whole[GUARD : GUARD + size].as_strided(
            tensor.shape, tensor.stride)
        return whole

    def check(self) -> None:
        """Outputs against float64 torch: relative to the norm, NaN and infinity in place."""
        wide = [x.double() if x.is_floating_point() else x for x in self.inputs]
        expected, eager = (_tuple(self.case.function(*x)) for x in (wide, self.inputs))
        for tensor, want, rough in zip(self.region.outputs, expected, eager):
            whole, got = self._whole[tensor.name], self.tensors[tensor.name]
            assert (whole[:GUARD] == 1).all() and (whole[-GUARD:] == 1).all(), "stray write"
            compare(f"{self.case.name}: {tensor.name}", got, want, rough)


def _tuple(result: object) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)  # type: ignore


def compare(name: str, got: torch.Tensor, want: torch.Tensor, eager: torch.Tensor) -> None:
    """`eager` is torch's own result in the working dtype: its error is excused, twice over."""
    if not got.is_floating_point():
        assert torch.equal(got, want.to(got.dtype)), f"{name}: {got} is not {want}"
        return
    dtype = str(got.dtype).removeprefix("torch.")
    got, want, eager = got.double(), want.double(), eager.double()
    assert torch.equal(got.isnan(), want.isnan()), f"{name}: NaN elsewhere"
    infinite = want.isinf()
    assert torch.equal(got[infinite], want[infinite]), f"{name}: infinities differ"
    finite = ~(want.isnan() | infinite)
    scale = want[finite].abs().max().item() if finite.any() else 1.0
    error = (got[finite] - want[finite]).abs().max().item() if finite.any() else 0.0
    own = (eager[finite] - want[finite]).abs().max().item() if finite.any() else 0.0
    bound = TOLERANCE[dtype] * max(scale, 1e-30) + 2 * own
    assert math.isfinite(error) and error <= bound, f"{name}: error {error:.3g} over {bound:.3g}"


H200 = DeviceFacts("cuda", "H200", "sm_90a", units=132, vector_bytes=16, cache_bytes=50 << 20,
                   memory_bytes=140 << 30, shared_bytes_per_block=232448,
                   shared_bytes_per_unit=233472, registers_per_unit=65536, threads_per_unit=2048)
CPU = DeviceFacts("cpu", "two cores", "x86_64", units=2, vector_bytes=64, cache_bytes=32 << 20,
                  memory_bytes=8 << 30)


def skill_of(region: Region) -> Skill:
    """The first row skill that takes a region, in the order of the registry."""
    return next(s for s in (LOSS, SOFTMAX, NORMALIZATION, REDUCTION) if s.matches(region))


def settings_near_default(space: KnobSpace) -> list[Knobs]:
    return [space.default(), *space.neighbours(space.default())]


def emulate_written(written: Written, buffers: Buffers) -> None:
    """Run a written region's forward lines, kernels on the emulator."""
    run_written(written, buffers, EmulatedKernels(written))


def run_written(written: Written, buffers: Buffers, kernels: object, device: str = "cpu") -> None:
    """Run a written region's forward lines on a device; results are copied to the buffers."""
    inputs = {t.name: _moved(buffers.tensors[t.name], device) for t in buffers.region.inputs}
    scope = dict(inputs, torch=torch, kernels=kernels)
    guarded = {t.name: buffers.tensors[t.name] for t in buffers.region.outputs}
    exec(written.forward, scope)
    for name, target in guarded.items():
        result = scope[name]
        assert result.stride() == target.stride() and result.dtype == target.dtype
        assert result.shape == target.shape
        target.copy_(result)


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """The same strides and offset into a storage on another device."""
    if device == "cpu":
        return tensor
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())  # type: ignore
    return flat.to(device).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class EmulatedKernels:
    """`kernels.NAME(grid, block, *tensors)` as `runtime.load` offers it, on the emulator."""

    def __init__(self, written: Written) -> None:
        self._sources = list(written.files.values())

    def __getattr__(self, name: str) -> Callable[..., None]:
        source = next(s for s in self._sources if f" {name}(" in s)

        def call(grid: Any, block: int, *tensors: torch.Tensor, shared: int = 0,
                 cluster: int = 1) -> None:  # fmt: skip
            sizes = grid if isinstance(grid, tuple) else (grid,)
            cuda_emulator.launch(source, name, sizes, block, list(tensors), shared, cluster)

        return call


class CppKernels:
    """`kernels.NAME(*tensors)` of the C++ sources of a written region."""

    def __init__(self, written: Written) -> None:
        self._sources = list(written.files.values())

    def __getattr__(self, name: str) -> Callable[..., None]:
        source = next(s for s in self._sources if f" {name}(" in s)
        function = getattr(build_cpp(source), name)
        return lambda *tensors: function(*(ctypes.c_void_p(t.data_ptr()) for t in tensors))
