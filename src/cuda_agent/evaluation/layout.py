"""Nested tensors as JSON and bytes: how inputs, outputs and parameters lie in an arena.

A tree is described as {"tensor": i}, {"tuple": [...]}, {"list": [...]}, {"dict": [[key, tree]]}
or {"value": literal}; its tensors are listed apart, with offset, shape, stride and dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from cuda_agent.errors import ProblemError

if TYPE_CHECKING:
    from cuda_agent.targets.base import Arena

ALIGNMENT = 512  # bytes; what torch's own CUDA allocator gives
_LITERALS = (type(None), bool, int, float, str)

Tree = dict[str, Any]
Slot = dict[str, Any]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no dtype")
    return dtype


def describe(tree: Any, tensors: list[torch.Tensor]) -> Tree:
    """The description of `tree`; its tensors are appended to `tensors`, depth first.

    Raises ProblemError for a leaf that is neither a tensor nor a JSON literal.
    """
    if isinstance(tree, torch.Tensor):
        tensors.append(tree)
        return {"tensor": len(tensors) - 1}
    if isinstance(tree, Mapping):
        if not all(isinstance(key, (str, int)) for key in tree):
            raise ProblemError("a mapping among inputs or outputs needs text or integer keys")
        return {"dict": [[key, describe(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, (tuple, list)):
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return {kind: [describe(value, tensors) for value in tree]}
    if isinstance(tree, _LITERALS):
        return {"value": tree}
    raise ProblemError(f"a {type(tree).__name__} cannot be handed to another process")


def rebuild(tree: Tree, tensors: Sequence[torch.Tensor]) -> Any:
    """The inverse of `describe`; named tuples come back as plain ones."""
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {key: rebuild(item, tensors) for key, item in value}
    if kind in ("tuple", "list"):
        made = [rebuild(item, tensors) for item in value]
        return tuple(made) if kind == "tuple" else made
    return value


def plan(tensors: Sequence[torch.Tensor]) -> tuple[list[Slot], int]:
    """(where each tensor lies, bytes of all). Strides are kept unless elements overlap."""
    slots: list[Slot] = []
    end = 0
    for t in tensors:
        stride = list(t.stride()) if _plain_strides(t) else _contiguous_stride(t.shape)
        span = 1 + sum((n - 1) * s for n, s in zip(t.shape, stride)) if t.numel() else 0
        slots.append(
            {"offset": end, "shape": list(t.shape), "stride": stride, "dtype": dtype_name(t.dtype)}
        )
        end += math.ceil(span * t.element_size() / ALIGNMENT) * ALIGNMENT
    return slots, end


def _plain_strides(t: torch.Tensor) -> bool:
    """No two elements share memory, and gaps at most double the size."""
    if t.numel() == 0:
        return False
    span = 1
    for step, n in sorted((s, n) for n, s in zip(t.shape, t.stride()) if n > 1):
        if step < span:
            return False
        span = step * (n - 1) + span
    return span <= 2 * t.numel()


def _contiguous_stride(shape: Sequence[int]) -> list[int]:
    stride = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        stride[i] = stride[i + 1] * max(1, shape[i + 1])
    return stride


def views(arena: Arena, slots: Sequence[Slot], base: int = 0) -> list[torch.Tensor]:
    """The tensors that lie at `slots`, moved by `base` bytes."""
    return [
        arena.tensor(base + s["offset"], s["shape"], s["stride"], dtype_of(s["dtype"]))
        for s in slots
    ]


def as_bytes(t: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor as integers of their size, for exact comparison and filling."""
    names = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if t.is_complex():
        return as_bytes(torch.view_as_real(t))
    return t.view(names[t.element_size()])


def poison(tensors: Sequence[torch.Tensor]) -> None:
    """Fill with what no kernel computes: NaN with a payload of its own, or 0x5A bytes."""
    patterns = {1: 0x5A, 2: 0x7FCA, 4: 0x7FCA5A5A, 8: 0x7FFA5A5A5A5A5A5A}
    for t in tensors:
        if t.numel() and t.dtype == torch.bool:
            t.view(torch.uint8).fill_(0x5A)  # no valid bool: the contestant writes 0 or 1
        elif t.numel():
            raw = as_bytes(t)
            raw.fill_(patterns[raw.element_size()])


def identical(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Bit for bit, NaN included."""
    return all(torch.equal(as_bytes(x), as_bytes(y)) for x, y in zip(a, b, strict=True))
