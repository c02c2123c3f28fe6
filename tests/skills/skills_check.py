"""Writes, runs and compares one case of a skill.

A case runs in C++ by g++, in CUDA on the emulator, through NVRTC (compile only), and on a device
where there is one. Results are compared with torch in float64.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cuda_emulator
import torch
from rows_check import CPU, H200, compare
from skills_harness import build_cpp, compile_cuda, dtype_name, trace

from cuda_agent import runtime
from cuda_agent.graph.ir import Region, RegionKind
from cuda_agent.skills.base import Knobs, KnobSpace, Skill, Written

GUARD = 64


class _Compiled:
    """`kernels` of C++ sources, as `runtime.load` offers them."""

    def __init__(self, written: Written) -> None:
        self._sources = list(written.files.values())

    def __getattr__(self, name: str) -> Callable[..., None]:
        source = next(s for s in self._sources if f" {name}(" in s)
        function = getattr(build_cpp(source), name)
        return lambda *tensors: function(*(ctypes.c_void_p(t.data_ptr()) for t in tensors))


class _Emulated:
    """`kernels` of CUDA sources, on the emulator."""

    def __init__(self, written: Written) -> None:
        self._sources = list(written.files.values())

    def __getattr__(self, name: str) -> Callable[..., None]:
        source = next(s for s in self._sources if f" {name}(" in s)

        def call(grid: Any, block: int, *tensors: torch.Tensor, shared: int = 0) -> None:
            sizes = grid if isinstance(grid, tuple) else (grid,)
            cuda_emulator.launch(source, name, sizes, block, list(tensors), shared)

        return call


class _GuardedTorch:
    """torch, but empty tensors lie between guard zones and hold junk: a stray or a missing write
    shows."""

    def __init__(self) -> None:
        self._zones: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty_strided(self, shape: Any, stride: Any, *, dtype: torch.dtype, device: Any) -> Any:
        size = 1 + sum((n - 1) * s for n, s in zip(shape, stride))
        whole = torch.full((size + 2 * GUARD,), 77, dtype=dtype, device=device)
        self._zones += [whole[:GUARD], whole[-GUARD:]]
        return whole[GUARD : GUARD + size].as_strided(shape, stride)

    def empty(self, *shape: Any, dtype: torch.dtype, device: Any) -> Any:
        sizes = shape[0] if isinstance(shape[0], (tuple, list)) else shape
        stride = torch.empty(sizes, device="meta").stride()
        return self.empty_strided(sizes, stride, dtype=dtype, device=device)

    def check(self) -> None:
        junk = [z for z in self._zones if not (z == torch.full_like(z, 77)).all()]
        assert not junk, "a kernel wrote outside its output"


def run(region: Region, written: Written, tensors: Sequence[torch.Tensor], kernels: Any,
        device: str = "cpu") -> list[torch.Tensor]:  # fmt: skip
    """The region's outputs from `tensors`, those of its inputs in order."""
    guarded = _GuardedTorch()
    scope: dict[str, Any] = {"torch": guarded, "kernels": kernels, "runtime": runtime}
    copies = [_moved(t, device) for t in tensors]
    scope.update(zip((t.name for t in region.inputs), copies))
    with torch.no_grad():
        exec(written.forward, scope)
    if device != "cpu":
        torch.cuda.synchronize()
    guarded.check()
    for before, after in zip(tensors, copies):
        assert torch.equal(before.cpu().nan_to_num(), after.cpu().nan_to_num()), "input changed"
    results = [scope[t.name] for t in region.outputs]
    for tensor, result in zip(region.outputs, results):
        assert tuple(result.shape) == tensor.shape and dtype_name(result) == tensor.dtype
        steps = [(n, s) for n, s in zip(tensor.shape, tensor.stride) if n != 1]
        assert steps == [(n, s) for n, s in zip(result.shape, result.stride()) if n != 1]
    return [r.cpu() for r in results]


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy with the same strides and offset on a device."""
    flat = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())  # type: ignore
    return flat.to(device, copy=True).as_strided(
        tensor.shape, tensor.stride(), tensor.storage_offset())


def check(
    skill: Skill, function: Callable[..., Any], tensors: Sequence[torch.Tensor], how: str,
    *, kind: RegionKind = "pointwise", space: tuple[int, ...] | None = None,
    reduce_dims: tuple[int, ...] = (), sets: str = "near", folder: Path | None = None,
    tolerance: Callable[..., None] = compare,
) -> Region:  # fmt: skip
    """Write, run and compare. `how`: cpp, emulate, nvrtc or device. `sets`: knob settings to try,
    "default" or "near" (each knob changed once)."""
    traced, actual = trace(function, tensors, kind, space, reduce_dims)
    assert skill.matches(traced), traced
    facts = CPU if how == "cpp" else H200
    space = skill.knobs(traced, facts)
    wide = [t.double() if t.is_floating_point() else t for t in tensors]
    expected, eager = (_as_tuple(function(*x)) for x in (wide, tensors))
    given = [actual[t.name] for t in traced.inputs]
    seen: set[str] = set()
    for number, knobs in enumerate(settings(space, sets)):
        written = skill.write(traced, knobs, facts)
        if (text := f"{written.files}{written.forward}") in seen:
            continue  # a knob that changes nothing here
        seen.add(text)
        if how == "nvrtc":
            for text in written.files.values():
                compile_cuda(text)
            continue
        if how == "device":
            assert folder is not None
            kernels, device = _on_disk(written, folder / str(number)), "cuda"
        else:
            kernels = _Compiled(written) if how == "cpp" else _Emulated(written)
            device = "cpu"
        results = run(traced, written, given, kernels, device)
        for tensor, got, want, rough in zip(traced.outputs, results, expected, eager):
            tolerance(f"{tensor.name} {knobs}", got, want, rough)
    return traced


def _on_disk(written: Written, folder: Path) -> Any:
    for name, text in written.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return runtime.load(str(folder / "model_new.py"))


def settings(space: KnobSpace, sets: str) -> list[Knobs]:
    default = space.default()
    return [default] if sets == "default" else [default, *space.neighbours(default)]


def _as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
