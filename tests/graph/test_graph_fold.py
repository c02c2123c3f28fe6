"""Folding keeps the meaning, and derived values follow their parameters."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn

from cuda_agent.graph import capture, interpret

MODELS = {
    "conv": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)),
    "conv_bias": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)),
    "grouped": lambda: nn.Sequential(nn.Conv2d(3, 6, 3, groups=3), nn.BatchNorm2d(6), nn.ReLU()),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_folded_graph_equals_eager(name: str) -> None:
    torch.manual_seed(1)
    model = MODELS[name]().eval()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2.0)
    x = torch.randn(2, 3, 8, 8)
    graph = capture(model, (x,), fold=True)
    assert graph.derived
    assert "_native_batch_norm_legit_no_training" not in {op.name for op in graph.ops}
    (got,) = interpret(graph, lambda path: operator.attrgetter(path)(model), (x,))
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)


def test_product_folds_too() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    x = torch.randn(3, 5)
    graph = capture(model, (x,), fold=True)
    (got,) = interpret(graph, lambda path: operator.attrgetter(path)(model), (x,))
    torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-5)
    assert "_native_batch_norm_legit_no_training" not in {op.name for op in graph.ops}


class PositionBias(nn.Module):
    """A bias that a small network computes from fixed coordinates, as in Swin V2."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("coordinates", torch.rand(6, 2), persistent=False)
        self.network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 16 * torch.sigmoid(self.network(self.coordinates))).softmax(-1)


def test_a_network_of_parameters_alone_is_computed_once() -> None:
    model, x = PositionBias().eval(), torch.randn(3, 6, 6)
    graph = capture(model, (x,), fold=True)
    assert [region.kind for region in graph.regions] == ["rowwise"]
    (derived,) = graph.derived
    assert "mm" in {op.name for op in derived.ops}
    named = {n for op in derived.ops for n in (*op.outputs, *op.refs()) if n}
    assert named <= set(graph.values), "code generation needs the shapes of what lies inside"
    (got,) = interpret(graph, lambda path: operator.attrgetter(path)(model), (x,))
    torch.testing.assert_close(got, model(x).detach())
