"""Structured inputs derived from a random set. Only floating tensors change."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cuda_agent.errors import SettingsError
from cuda_agent.problems import tree

STYLES = ("random", "zeros", "ones", "large", "small", "negative", "mixed", "noncontiguous")
LARGE = 100.0
SMALL = 1e-3

# Reading out of their domain these end in a device-side assert, which kills a CUDA context.
_INDEXING = {
    "index", "index_select", "gather", "take", "embedding", "_embedding_bag", "scatter",
    "scatter_", "scatter_add", "index_put", "index_put_", "index_add", "nll_loss_forward",
    "nll_loss2d_forward", "cross_entropy_loss",
}  # fmt: skip


class DomainRecorder(TorchDispatchMode):
    """Sees whether a forward restricts the values of its floating inputs.

    `bounded` is true if it computes binary cross-entropy, or turns floats to integers and indexes
    with integers: then values outside the range of the random inputs are not safe to try.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: set[str] = set()
        self._float_to_int = False

    @property
    def bounded(self) -> bool:
        probabilities = self.ops & {"binary_cross_entropy", "bernoulli", "multinomial"}
        return bool(probabilities) or (self._float_to_int and bool(self.ops & _INDEXING))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        self.ops.add(name)
        if name in ("_to_copy", "to", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            if isinstance(source, torch.Tensor) and isinstance(out, torch.Tensor):
                self._float_to_int |= source.is_floating_point() and not out.is_floating_point()
        return out


def restyle(
    inputs: tuple[Any, ...], style: str, bounded: bool, seed: int = 0
) -> tuple[Any, ...]:
    """`inputs` in another style; integers, booleans and everything else stay as they are.

    bounded: values are clamped to the range that each tensor already has.
    seed: of the magnitudes in "mixed", which no other style draws.
    Raises: SettingsError for an unknown style.
    """
    if style not in STYLES:
        raise SettingsError(f"There is no input style `{style}`; use one of {', '.join(STYLES)}.")
    if style == "random":
        return inputs

    generator = torch.Generator().manual_seed(seed)

    def change(x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or x.numel() == 0:
            return x
        if style == "noncontiguous":
            return noncontiguous(x)
        y = mixed(x, generator) if style == "mixed" else _value(x, style)
        return y.clamp(x.min(), x.max()) if bounded else y

    return tuple(tree.map_tensors(change, inputs))


def _value(x: torch.Tensor, style: str) -> torch.Tensor:
    if style == "zeros":
        return torch.zeros_like(x)
    if style == "ones":
        return torch.ones_like(x)
    if style == "large":
        return x * LARGE
    if style == "small":
        return x * SMALL
    return -x.abs()


def mixed(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Each row (along the last axis) with a magnitude of its own, from a hundredth to hundredfold,
    and one in sixteen elements zero: no recipe for one style holds for all rows."""
    rows = x.shape[:-1] if x.dim() > 1 else x.shape
    exponents = 4 * torch.rand(rows, generator=generator) - 2
    scale = (10.0**exponents).to(x.device, x.dtype)
    kept = (torch.rand(x.shape[-1:], generator=generator) > 1 / 16).to(x.device)
    return x * (scale[..., None] if x.dim() > 1 else scale) * kept


def noncontiguous(x: torch.Tensor) -> torch.Tensor:
    """The same values in another memory order: last two axes swapped, or every second element."""
    sizes = [i for i, n in enumerate(x.shape) if n > 1]
    if len(sizes) >= 2:
        a, b = sizes[-2], sizes[-1]
        return x.transpose(a, b).contiguous().transpose(a, b)
    wide = torch.empty((*x.shape, 2), dtype=x.dtype, device=x.device)
    spaced = wide[..., 0]
    spaced.copy_(x)
    return spaced
