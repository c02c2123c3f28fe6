"""Views that merge dims give way to fusion, and every pass comes to rest."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cuda_agent.graph import Graph, capture, interpret
from cuda_agent.graph.capture import trace
from cuda_agent.graph.passes import regroup, run_passes
from cuda_agent.graph.passes.regroup import dim_groups, operand_shape
from cuda_agent.graph.program import Rewriter


def check(model: nn.Module, *inputs: torch.Tensor) -> Graph:
    """The graph, once its interpretation equals eager in values and layout."""
    graph = capture(model.eval(), inputs)
    got = interpret(graph, lambda p: operator.attrgetter(p)(model), inputs, check_layout=True)
    with torch.no_grad():
        expected = model(*inputs)
    torch.testing.assert_close(got[0], expected)
    assert got[0].stride() == expected.stride()
    return graph


class SpatialSoftmax(nn.Module):
    """Softmax over all positions: the reduction needs them merged, what is around it does not."""

    def __init__(self, per_position: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        shape = (1, 4, 6, 1) if per_position else (1, 4, 1, 1)
        self.scale = nn.Parameter(torch.rand(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).clamp(0, 1)
        return x.flatten(2).softmax(-1).view_as(x) * self.scale


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.gate = nn.RMSNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return self.up(y) * F.silu(self.gate(y)) * F.silu(x)


def kinds(graph: Graph) -> list[str]:
    return [region.kind for region in graph.regions if region.kind != "view"]


def test_prologue_and_epilogue_meet_across_views() -> None:
    graph = check(SpatialSoftmax(), torch.randn(2, 3, 8, 8))
    assert kinds(graph) == ["torch", "rowwise"]
    (row,) = [region for region in graph.regions if region.kind == "rowwise"]
    assert row.op_names == ("clamp", "_softmax", "mul")
    assert row.space == (2, 4, 36)


def test_an_operand_broadcast_along_part_of_merged_dims_stays_behind() -> None:
    graph = check(SpatialSoftmax(per_position=True), torch.randn(2, 3, 8, 8))
    assert kinds(graph) == ["torch", "rowwise", "pointwise"]


def test_the_operands_of_an_epilogue_come_along() -> None:
    graph = check(Gated(), torch.randn(2, 3, 8))
    assert kinds(graph) == ["rowwise", "gemm", "gemm"]


@pytest.mark.parametrize("model", [SpatialSoftmax(), Gated()], ids=["softmax", "gated"])
def test_passes_come_to_rest(model: nn.Module) -> None:
    shape = (2, 3, 8) if isinstance(model, Gated) else (2, 3, 8, 8)
    program = trace(model.eval(), (torch.randn(shape),))
    run_passes(program)
    for rule in (regroup.hoist_rule, regroup.sink_rule):
        assert not Rewriter(program).run(rule), f"{rule.__name__} still finds something to move"


@pytest.mark.parametrize(
    ("shape", "target", "groups"),
    [
        ((6, 4), (2, 3, 4), [([0], [0, 1]), ([1], [2])]),
        ((2, 3, 4), (6, 4), [([0, 1], [0]), ([2], [1])]),
        ((4, 6), (6, 4), [([0, 1], [0, 1])]),
        ((1, 5), (5, 1), [([0], []), ([1], [0]), ([], [1])]),
        ((), (1, 1), [([], [0]), ([], [1])]),
    ],
)
def test_dim_groups(
    shape: tuple[int, ...], target: tuple[int, ...], groups: list[tuple[list[int], list[int]]]
) -> None:
    assert dim_groups(shape, target) == groups


@pytest.mark.parametrize(
    ("own", "shape", "target", "expected"),
    [
        ((4,), (6, 4), (2, 3, 4), (4,)),
        ((6, 1), (6, 4), (2, 3, 4), (2, 3, 1)),
        ((1, 4, 1, 1), (2, 4, 5, 6), (2, 4, 30), (1, 4, 1)),
        ((4, 5, 1), (2, 4, 5, 6), (2, 4, 30), None),
        ((4, 1, 1), (2, 4, 5, 6), (8, 30), None),
        ((1,), (2, 3), (6,), (1,)),
    ],
)
def test_operand_shape(
    own: tuple[int, ...], shape: tuple[int, ...], target: tuple[int, ...],
    expected: tuple[int, ...] | None,
) -> None:
    got = operand_shape(own, shape, target)
    assert got == expected
    if got is not None:  # it really selects the same elements
        operand = torch.randn(own)
        full = operand.expand(shape).reshape(target)
        assert torch.equal(operand.reshape(got).expand(target), full)
