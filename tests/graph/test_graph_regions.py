"""Which ops end up in one region."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cuda_agent.graph import Graph, Region, capture


class Fn(nn.Module):
    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def graph_of(function: Callable[..., Any], *shapes: tuple[int, ...], **parts: Any) -> Graph:
    inputs = [torch.randn(shape) for shape in shapes]
    return capture(Fn(lambda _, *args: function(*args), **parts).eval(), inputs)


def regions_of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[Region]:
    """Regions that compute."""
    return [r for r in graph_of(function, *shapes).regions if r.kind != "view"]


def only(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Region:
    regions = regions_of(function, *shapes)
    assert len(regions) == 1, [(r.kind, r.op_names) for r in regions]
    return regions[0]


def kinds(function: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    return [r.kind for r in regions_of(function, *shapes)]


def test_pointwise_chain_is_one_region() -> None:
    region = only(lambda x, y, b: F.gelu(x * y + b).tanh(), (4, 8), (4, 8), (8,))
    assert (region.kind, region.space, region.reduce_dims) == ("pointwise", (4, 8), ())
    assert [t.name for t in region.outputs] == [region.ops[-1].outputs[0]]


def test_small_operands_are_computed_where_they_are_used() -> None:
    region = only(lambda x, s: x * (1 + s.exp()), (4, 8), (8,))
    assert region.space == (4, 8) and len(region.inputs) == 2


def test_prologue_norm_and_epilogue_are_one_rowwise_region() -> None:
    region = only(lambda x, r: F.layer_norm(x + r, (8,)).relu() * 2, (2, 3, 8), (2, 3, 8))
    assert (region.kind, region.space, region.reduce_dims) == ("rowwise", (2, 3, 8), (2,))


def test_softmax_by_hand_is_one_region() -> None:
    def softmax(x: torch.Tensor) -> torch.Tensor:
        e = torch.exp(x - x.amax(-1, keepdim=True))
        return e / e.sum(-1, keepdim=True)

    assert only(softmax, (6, 16)).reduce_dims == (1,)


def test_row_values_without_keepdim_stay_in_the_region() -> None:
    region = only(lambda x: torch.log(x.exp().sum(-1)) - x.mean(-1), (6, 16))
    assert region.kind == "rowwise" and region.outputs[0].shape == (6,)
    unsqueezed = only(lambda x: x * x.square().mean(-1).rsqrt()[..., None], (6, 16))
    assert unsqueezed.kind == "rowwise" and "unsqueeze" in unsqueezed.op_names


def test_square_matrices_do_not_confuse_rows_with_columns() -> None:
    """x - x.mean(1) subtracts row means from columns: that is not one pass over rows."""
    assert len(regions_of(lambda x: x - x.mean(1), (6, 6))) == 2
    assert len(regions_of(lambda x: x - x.mean(0), (6, 6))) == 1


def test_reductions_over_other_dims_are_other_regions() -> None:
    regions = regions_of(lambda x: x.sum(0).unsqueeze(0) + x.sum(1, keepdim=True), (5, 7))
    assert sorted(r.reduce_dims for r in regions if r.kind == "rowwise") == [(0,), (1,)]


def test_full_reduction_runs_over_all_dims() -> None:
    region = only(lambda x, y: (x - y).abs().mean(), (5, 7), (5, 7))
    assert region.reduce_dims == (0, 1) and region.outputs[0].shape == ()


def test_group_norm_has_the_viewed_space() -> None:
    region = only(lambda x: F.silu(F.group_norm(x, 3)), (2, 6, 4, 5))
    assert (region.space, region.reduce_dims) == ((2, 3, 2, 20), (2, 3))


def test_instance_norm_is_a_group_norm_of_single_channels() -> None:
    region = only(lambda x: F.instance_norm(x), (2, 6, 4, 5))
    assert (region.space, region.reduce_dims) == ((2, 6, 1, 20), (2, 3))


def test_cross_entropy_is_one_region() -> None:
    labels = torch.tensor([0, 1, 2])
    model = Fn(lambda _, x, y: F.cross_entropy(x, y))
    graph = capture(model, (torch.randn(3, 5), labels))
    assert [r.kind for r in graph.regions] == ["rowwise"]


def test_total_of_a_softmax_is_summed_along_rows_first() -> None:
    rows, total = regions_of(
        lambda x, y: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction="sum"),
        (6, 16), (6, 16))
    assert rows.reduce_dims == (1,) and [t.shape for t in rows.outputs] == [(6,)]
    assert total.space == (6,)


def test_linear_takes_its_epilogue_through_the_reshape() -> None:
    linear = nn.Linear(8, 12)

    def forward(x: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return F.gelu(linear(x)) + r

    region = only(forward, (2, 3, 8), (2, 3, 12))
    assert region.kind == "gemm" and region.space == (6, 12)
    assert region.op_names == ("mm", "add", "gelu", "add")


def test_epilogue_goes_to_the_norm_that_follows() -> None:
    linear = nn.Linear(8, 12)
    gemm, rows = regions_of(lambda x: F.layer_norm(F.gelu(linear(x)), (12,)), (2, 3, 8))
    assert gemm.op_names == ("mm",)
    assert rows.op_names[-1] == "native_layer_norm" and "gelu" in rows.op_names


def test_two_products_do_not_share_a_region() -> None:
    up, gate, down = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8)
    regions = regions_of(lambda x: down(F.silu(gate(x)) * up(x)), (4, 8))
    assert [r.kind for r in regions] == ["gemm"] * 3


def test_regions_are_convex() -> None:
    """The residual leaves a row region and comes back through a product: two regions."""
    model = Fn(lambda m, x: m.norm(x).exp() + m.linear(m.norm(x)),
               norm=nn.LayerNorm(8), linear=nn.Linear(8, 8))
    graph = capture(model, (torch.randn(4, 8),))
    assert [r.kind for r in graph.regions if r.kind != "view"] == ["rowwise", "gemm"]


def test_scan_with_flip_mask_and_scale_is_one_region() -> None:
    region = only(lambda x, m: torch.where(m > 0, x, 0.0).flip(-1).cumsum(-1).flip(-1) * 2,
                  (4, 9), (4, 9))
    assert region.kind == "scan" and region.reduce_dims == (1,)


def test_inference_batch_norm_is_pointwise() -> None:
    norm = nn.BatchNorm2d(6).eval()
    region = only(lambda x: norm(x).relu(), (2, 6, 4, 4))
    assert region.kind == "pointwise" and len(region.inputs) == 5


def test_convolution_stays_a_torch_call() -> None:
    conv = nn.Conv2d(3, 4, 3).requires_grad_(False)
    assert kinds(lambda x: conv(x).relu(), (1, 3, 8, 8)) == ["torch", "pointwise"]


def test_row_sum_of_a_product_needs_no_product() -> None:
    regions = regions_of(lambda a, b: (a @ b).sum(1), (4, 5), (5, 6))
    assert [r.kind for r in regions] == ["rowwise", "rowwise"]


def test_diagonal_product_scales_rows() -> None:
    assert kinds(lambda d, b: torch.diag(d) @ b, (5,), (5, 6)) == ["pointwise"]
    assert kinds(lambda d, b: b @ torch.diag(d), (5,), (6, 5)) == ["pointwise"]


def test_equal_expressions_are_computed_once() -> None:
    region = only(lambda x: x.exp() + x.exp() * x.exp(), (7,))
    assert region.op_names.count("exp") == 1


def test_expanded_operands_are_read_as_they_lie() -> None:
    region = only(lambda x, s: x * s.expand(4, 8), (4, 8), (1, 8))
    assert {t.shape for t in region.inputs} == {(4, 8), (1, 8)}


def test_bytes_moved_counts_each_operand_once() -> None:
    region = only(lambda x: x.sum(-1), (4, 8))
    assert region.bytes_moved == 4 * (32 + 4)


def test_batch_norm_folds_into_the_convolution_on_request() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    inputs = (torch.randn(1, 3, 8, 8),)
    plain, folded = capture(model, inputs), capture(model, inputs, fold=True)
    assert not plain.derived and len(folded.derived) == 2
    assert [op.name for op in folded.ops] == ["convolution", "relu"]
