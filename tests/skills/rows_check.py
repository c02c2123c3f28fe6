"""Runs what the row emitters write, on the CPU, and compares it with torch in float64."""

from __future__ import annotations

import ctypes
import math

import cuda_emulator
import torch
from rows_cases import Case
from skills_harness import build_cpp

from cuda_agent.graph.ir import Region, Tensor
from cuda_agent.skills.emit.rows.cpp import CppSource
from cuda_agent.skills.emit.rows.cuda import CudaSource

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

    def workspace(self, name: str, count: int, dtype: torch.dtype) -> None:
        fill = 255 if dtype == torch.uint8 else float("nan")
        self.tensors.setdefault(name, torch.full((count,), fill, dtype=dtype))

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


def run_cpp(source: CppSource, buffers: Buffers) -> None:
    function = getattr(build_cpp(source.text), source.function)
    function(*(ctypes.c_void_p(buffers.tensors[a].data_ptr()) for a in source.args))


def run_emulated(source: CudaSource, buffers: Buffers) -> None:
    for name, size in source.workspaces.items():
        buffers.workspace(name, size, torch.uint8)
    for launch in source.launches:
        cuda_emulator.launch(
            source.text, launch.kernel, launch.grid, launch.block,
            [buffers.tensors[a] for a in launch.args], launch.shared, launch.cluster)
