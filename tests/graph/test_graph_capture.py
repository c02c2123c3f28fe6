"""Modules of many kinds, captured and interpreted: equal to eager in value, shape and layout."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from cuda_agent.errors import CaptureError
from cuda_agent.graph import Graph, capture, interpret
from cuda_agent.problems import load_problem, materialize

PROBLEMS = sorted(Path(__file__).parents[2].glob("problems/level*/*.py"))


def flat(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if leaf is not None]


def check(model: nn.Module, inputs: tuple[Any, ...], **options: Any) -> Graph:
    """Capture, interpret, compare with eager."""
    graph = capture(model, inputs, **options)
    got = interpret(graph, lambda path: operator.attrgetter(path)(model), inputs,
                    check_layout=True)
    with torch.no_grad():
        expected = flat(model(*inputs))
    assert len(got) == len(expected)
    for a, b in zip(got, expected):
        assert a.shape == b.shape and a.dtype == b.dtype
        # a bias apart from its product is rounded once more
        tolerance = 1e-4 if a.dtype != torch.bfloat16 else 2e-2
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    return graph


class Fn(nn.Module):
    """A function as a module, with parts that it may use."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.rand(4))
        self.register_buffer("loose", torch.rand(4), persistent=False)
        self.plain = torch.rand(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.kept + self.loose - self.plain * torch.tensor([1.0, 2.0, 3.0, 4.0])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(3, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4)),
            (rand(2, 3, 8),)),
    "linear_1d": (lambda: nn.Linear(8, 5), (rand(8),)),
    "bilinear": (lambda: nn.Bilinear(4, 5, 6), (rand(3, 4), rand(3, 5))),
    "conv_stack": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8),
                                         nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)),
                   (rand(2, 3, 8, 8),)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 5, 3, stride=2), (rand(1, 3, 5, 5),)),
    "conv1d_groups": (lambda: nn.Conv1d(4, 8, 3, groups=2), (rand(2, 4, 9),)),
    "pools": (lambda: nn.Sequential(nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
              (rand(2, 3, 8, 8),)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (rand(1, 2, 4, 4),)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (rand(2, 6, 4, 4),)),
    "instance_norm": (lambda: nn.InstanceNorm2d(6, affine=True), (rand(2, 6, 4, 4),)),
    "rms_norm": (lambda: nn.RMSNorm(8), (rand(3, 8),)),
    "lstm": (lambda: nn.LSTM(4, 6, batch_first=True).requires_grad_(False), (rand(2, 5, 4),)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (rand(2, 5, 8),) * 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (rand(2, 5, 8),)),
    "tied": (Tied, (torch.arange(6).reshape(2, 3),)),
    "buffers": (Buffers, (rand(3, 4),)),
    "sdpa_causal": (lambda: Fn(lambda _, q, k, v: F.scaled_dot_product_attention(
        q, k, v, is_causal=True)), (rand(1, 2, 5, 4),) * 3),
    "weight_norm": (lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)),
                    (rand(2, 4),)),
    "cross_entropy": (lambda: Fn(lambda _, x, y: F.cross_entropy(x, y, label_smoothing=0.1)),
                      (rand(6, 5), torch.tensor([0, 1, 2, 3, 4, 0]))),
    "tuple": (lambda: Fn(lambda _, x: (x + 1, x.sum(), x.max(dim=-1).values)), (rand(3, 4),)),
    "list": (lambda: Fn(lambda _, x: [x.sin(), x.t()]), (rand(3, 4),)),
    "dict": (lambda: Fn(lambda _, x: {"a": x.sin(), "b": [x.cos(), None]}), (rand(3),)),
    "no_weights": (lambda: Fn(lambda m, x: m.attend(x, x, x, need_weights=False),
                              attend=nn.MultiheadAttention(8, 2)), (rand(2, 5, 8),)),
    "identity": (lambda: Fn(lambda _, x: x), (rand(3, 4),)),
    "nested": (lambda: Fn(lambda _, x, s: x * s[0] + s[1]), (rand(3), (rand(3), rand(3)))),
    "baked": (lambda: Fn(lambda _, x, flag, scale: x * scale if flag else x),
              (rand(3), True, 2.5)),
    "in_place": (lambda: Fn(lambda _, x: x.clone().mul_(2).add_(1).relu_()), (rand(3, 4),)),
    "index_copy": (lambda: Fn(lambda _, x: torch.zeros(4, 4).index_copy(
        0, torch.tensor([1, 2]), x)), (rand(2, 4),)),
    "einsum": (lambda: Fn(lambda _, a, b: torch.einsum("bij,bkj->bik", a, b)),
               (rand(2, 3, 4), rand(2, 5, 4))),
    "addmm": (lambda: Fn(lambda _, c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0)),
              (rand(4), rand(3, 5), rand(5, 4))),
    "baddbmm": (lambda: Fn(lambda _, c, a, b: torch.baddbmm(c, a, b, beta=2)),
                (rand(2, 3, 4), rand(2, 3, 5), rand(2, 5, 4))),
    "std": (lambda: Fn(lambda _, x: (x - x.mean(0)) / (x.std(0) + 1e-5)), (rand(7, 4),)),
    "square": (lambda: Fn(lambda _, x: x - x.mean(1)), (rand(4, 4),)),
    "full_mask": (lambda: Fn(lambda _, x: x.masked_fill(torch.ones(4, 4).triu(1).bool(), -9.0)),
                  (rand(4, 4),)),
    "noncontiguous": (lambda: nn.Linear(3, 2), (rand(3, 5).t(),)),
    "half": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).bfloat16(),
             (rand(2, 8).bfloat16(),)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_interpreted_graph_equals_eager(name: str) -> None:
    make, inputs = MODULES[name]
    torch.manual_seed(0)
    check(make().eval(), inputs)


@pytest.mark.parametrize("path", PROBLEMS, ids=lambda p: p.stem)
def test_problems_capture_equal_to_eager_in_valid_regions(path: Path) -> None:
    instance = materialize(load_problem(path, size="cpu"), "cpu")
    graph = check(instance.model, instance.inputs(3))
    _assert_partition(graph)
    again = capture(instance.model, instance.inputs(4))
    # as text: NaN, a constant of some losses, equals nothing
    assert repr(again.regions) == repr(graph.regions), "regions depend on the program alone"


def _assert_partition(graph: Graph) -> None:
    """Each value made once, before it is read; region inputs and outputs complete."""
    known = {*graph.input_values, *graph.attributes, *graph.constants}
    known |= {derived.name for derived in graph.derived}
    made: set[str] = set()
    for region in graph.regions:
        inputs = {tensor.name for tensor in region.inputs}
        assert inputs <= known | made, f"{region.id} reads what is not there yet"
        inside: set[str] = set()
        for op in region.ops:
            assert set(op.refs()) <= inputs | inside
            fresh = {name for name in op.outputs if name}
            assert fresh.isdisjoint(made | inside)
            inside |= fresh
        outputs = {tensor.name for tensor in region.outputs}
        assert outputs and outputs <= inside
        assert set(region.values) == inputs | inside
        read_later = {
            name for other in graph.regions if other is not region
            for op in other.ops for name in op.refs()
        } | set(graph.outputs)
        assert outputs == inside & read_later
        made |= outputs
    assert set(graph.outputs) <= known | made


def test_dropout_and_unused_parts_vanish() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).eval()
    graph = check(model, (rand(2, 4),))
    assert not any("dropout" in op.name for op in graph.ops)
    tied = Tied().eval()
    graph = check(tied, (torch.arange(3),))
    assert len(graph.attributes) == 1, "one weight, whatever its names"
    assert {held.path for held in graph.state} == {
        "embed.weight", "head.weight", "unused.weight", "unused.bias"}


def test_state_tells_parameters_buffers_and_constants_apart() -> None:
    graph = capture(Buffers(), (rand(3, 4),))
    assert {held.path: held.kind for held in graph.state} == {
        "kept": "buffer", "loose": "constant", "plain": "constant"}
    assert [len(numbers) for numbers in graph.constants.values()] == [4]


class Optional_(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, scale: float = 2.0) -> Any:
        return x * scale if mask is None else x * mask


def test_values_that_are_no_tensors_are_baked_in() -> None:
    graph = capture(Optional_(), (rand(3),))
    assert graph.input_names == ("x", "mask", "scale")
    assert graph.baked == {"mask": None, "scale": 2.0}
    assert graph.inputs == ("x", None, None)


def _mutating_buffer(module: Any, x: torch.Tensor) -> torch.Tensor:
    module.count.add_(1)
    return x + module.count


class WithBuffer(Fn):
    def __init__(self) -> None:
        super().__init__(_mutating_buffer)
        self.register_buffer("count", torch.zeros(1))


@pytest.mark.parametrize(
    ("model", "inputs", "message"),
    [
        (Fn(lambda _, x: x if x.sum() > 0 else -x), (rand(3),), "depends on the values"),
        (Fn(lambda _, x: x[: int(x.sum().item())]), (rand(3),), "depends on the values"),
        (WithBuffer(), (rand(3),), "buffer 'count'"),
        (Fn(lambda _, x: x.mul_(2)), (rand(3),), "in place"),
        (nn.BatchNorm1d(3).train(), (rand(4, 3),), "eval"),
        (Fn(lambda _, x: torch.max(x, dim=0)), (rand(3),), "returns a max"),
        (Fn(lambda _, x: x["a"]), ({"a": rand(3)},), "input 0 is a dict"),
        (Fn(lambda _, x: (x, 3)), (rand(3),), "no tensor"),
    ],
    ids=["branch", "item", "buffer", "input", "training", "named_out", "dict_in", "number_out"],
)
def test_what_cannot_be_captured_says_so_in_one_sentence(
    model: nn.Module, inputs: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(CaptureError, match=message) as caught:
        capture(model, inputs)
    assert "\n" not in str(caught.value)
