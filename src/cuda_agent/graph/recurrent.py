"""Recurrent layers as single ops while a module is traced.

torch finds the shapes of `aten.lstm` by unrolling it over time, minutes for long sequences. During
a trace, torch.nn's recurrent layers call ops of our own instead, whose shapes are known at once;
the graph then names ATen's op again.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.nn.modules import rnn

_SETTINGS = (
    "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, "
    "bool batch_first"
)
_SINGLE = ("gru", "rnn_tanh", "rnn_relu")

ATEN_NAMES = {
    f"cuda_agent.{name}.default": f"aten.{name}.input" for name in ("lstm", *_SINGLE)
}
"""Our op -> the ATen op that it stands for."""


@contextlib.contextmanager
def whole_layers() -> Iterator[None]:
    """nn.LSTM, nn.GRU and nn.RNN trace to one op each."""
    original = rnn._VF
    _define()
    ours = {name: _dispatch(name, original) for name in ("lstm", *_SINGLE)}
    with mock.patch.object(rnn, "_VF", SimpleNamespace(**ours)):
        yield


def _dispatch(name: str, original: Any) -> Any:
    def call(*args: Any) -> Any:
        # A packed sequence comes with its batch sizes second and keeps torch's own way.
        packed = isinstance(args[3], (tuple, list))
        function = getattr(original if packed else torch.ops.cuda_agent, name)
        return function(*args)

    return call


@functools.cache
def _define() -> torch.library.Library:
    """The ops exist once a process; they can be traced, not run."""
    library = torch.library.Library("cuda_agent", "FRAGMENT")
    library.define(f"lstm(Tensor x, Tensor[] hx, Tensor[] params, {_SETTINGS}) "
                   "-> (Tensor, Tensor, Tensor)")
    torch.library.register_fake("cuda_agent::lstm", _lstm_shapes, lib=library)
    for name in _SINGLE:
        library.define(f"{name}(Tensor x, Tensor hx, Tensor[] params, {_SETTINGS}) "
                       "-> (Tensor, Tensor)")
        torch.library.register_fake(f"cuda_agent::{name}", _single_shapes, lib=library)
    return library


def _lstm_shapes(
    x: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    out = _sequence(x, hx[0], bidirectional, batch_first)
    return out, x.new_empty(hx[0].shape), x.new_empty(hx[1].shape)


def _single_shapes(
    x: torch.Tensor, hx: torch.Tensor, params: Sequence[torch.Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    return _sequence(x, hx, bidirectional, batch_first), x.new_empty(hx.shape)


def _sequence(
    x: torch.Tensor, state: torch.Tensor, bidirectional: bool, batch_first: bool
) -> torch.Tensor:
    """The layer's output; time is outermost in memory, whatever `batch_first` says."""
    features = state.shape[-1] * (2 if bidirectional else 1)
    if batch_first:
        batch, steps = x.shape[:2]
        return x.new_empty((steps, batch, features)).transpose(0, 1)
    return x.new_empty((*x.shape[:2], features))
