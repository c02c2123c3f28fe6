"""Recurrent layers stay whole, are captured at once however long, and lie in memory as eager's."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

from cuda_agent.graph import capture, interpret

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...], str]] = {
    "lstm": (lambda: nn.LSTM(8, 16, 2), (torch.randn(5, 3, 8),), "lstm"),
    "lstm_projected": (
        lambda: nn.LSTM(8, 16, bidirectional=True, proj_size=4), (torch.randn(5, 3, 8),), "lstm"),
    "lstm_batch_first": (
        lambda: nn.LSTM(8, 16, batch_first=True), (torch.randn(3, 5, 8),), "lstm"),
    "gru_both_ways_with_state": (
        lambda: nn.GRU(8, 16, 2, bidirectional=True, batch_first=True),
        (torch.randn(3, 5, 8), torch.randn(4, 3, 16)), "gru"),
    "rnn_without_batch": (lambda: nn.RNN(8, 16), (torch.randn(5, 8),), "rnn_tanh"),
    "rnn_relu_without_bias": (
        lambda: nn.RNN(8, 16, nonlinearity="relu", bias=False), (torch.randn(5, 3, 8),),
        "rnn_relu"),
}  # fmt: skip


class Flat(nn.Module):
    """Outputs and final states in one tuple."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, state = self.layer(*args)
        return (out, *state) if isinstance(state, tuple) else (out, state)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
def test_layer_is_one_op_and_equals_eager(name: str) -> None:
    make, inputs, op = LAYERS[name]
    model = Flat(make()).eval()
    graph = capture(model, inputs)
    assert [o.target for o in graph.ops if o.name == op] == [f"aten.{op}.input"]
    got = interpret(graph, lambda p: operator.attrgetter(p)(model), inputs, check_layout=True)
    with torch.no_grad():
        expected = model(*inputs)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_time_does_not_grow_with_the_sequence() -> None:
    model = Flat(nn.LSTM(4, 4, 3)).eval()
    capture(model, (torch.randn(2, 1, 4),))
    seconds = []
    for steps in (2, 2000):
        start = time.process_time()
        capture(model, (torch.randn(steps, 1, 4),))
        seconds.append(time.process_time() - start)
    assert seconds[1] < 5 * seconds[0] + 1


def test_torch_is_left_as_it_was() -> None:
    before = nn.modules.rnn._VF
    capture(Flat(nn.GRU(4, 4)).eval(), (torch.randn(2, 1, 4),))
    assert nn.modules.rnn._VF is before
