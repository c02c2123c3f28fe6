"""The parameters of a live module as a table, and code that builds a module with the same tree.

A live module has no source that we could import, so its solution holds parameters and buffers under
their original names, and nothing else of it. `load_state_dict(..., assign=True)` fills them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn


class Slot(NamedTuple):
    """`kind`: a parameter; a buffer of the state_dict; or "plain", a tensor outside of it (a
    non-persistent buffer or an ordinary attribute)."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    kind: Literal["parameter", "buffer", "plain"]


def state_table(module: nn.Module) -> tuple[Slot, ...]:
    """Every tensor that `module` holds. Tied ones appear under each of their names."""
    slots: list[Slot] = []
    for prefix, part in module.named_modules(remove_duplicate=False):
        path = f"{prefix}." if prefix else ""
        for name, parameter in part._parameters.items():
            if parameter is not None:
                slots.append(_slot(path + name, parameter, "parameter"))
        for name, buffer in part._buffers.items():
            if buffer is not None:
                persistent = name not in part._non_persistent_buffers_set
                slots.append(_slot(path + name, buffer, "buffer" if persistent else "plain"))
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                slots.append(_slot(path + name, value, "plain"))
    return tuple(slots)


def _slot(path: str, tensor: torch.Tensor, kind: Literal["parameter", "buffer", "plain"]) -> Slot:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Slot(path, tuple(tensor.shape), dtype, kind)


def state_literal(slots: Sequence[Slot]) -> str:
    """The table as Python source."""
    rows = [f'    ("{s.path}", {s.shape}, torch.{s.dtype}, "{s.kind}"),' for s in slots]
    note = "# Name, shape, dtype and kind of every tensor of the original module."
    return "\n".join([note, "_STATE = [", *rows, "]"])


HOLDER_INIT = '''\
def __init__(self):
    """Empty parameters and buffers under the names of the original: load its state_dict."""
    super().__init__()
    for path, shape, dtype, kind in _STATE:
        *parents, name = path.split(".")
        holder = self
        for parent in parents:
            if parent not in holder._modules:
                holder.add_module(parent, torch.nn.Module())
            holder = holder._modules[parent]
        value = torch.zeros(shape, dtype=dtype)
        if kind == "parameter":
            floating = dtype.is_floating_point or dtype.is_complex
            holder.register_parameter(name, torch.nn.Parameter(value, requires_grad=floating))
        else:
            holder.register_buffer(name, value, persistent=kind == "buffer")
'''
