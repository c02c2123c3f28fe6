"""Trees of tensors as JSON and bytes."""

from __future__ import annotations

import json
from collections import namedtuple

import pytest
import torch

from cuda_agent import targets
from cuda_agent.errors import ProblemError
from cuda_agent.evaluation import layout

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "tree",
    [
        torch.ones(2),
        (torch.ones(2), 3, None, "text", True, 2.5),
        [torch.ones(2), [torch.zeros(1), (torch.ones(()),)]],
        {"a": torch.ones(2), "b": {"c": [torch.zeros(3), 7]}},
        {0: torch.ones(1)},
        (),
    ],
)
def test_a_tree_survives_json(tree: object) -> None:
    tensors: list[torch.Tensor] = []
    text = json.dumps(layout.describe(tree, tensors))
    back = layout.rebuild(json.loads(text), tensors)
    again: list[torch.Tensor] = []
    assert json.dumps(layout.describe(back, again)) == text
    assert all(a is b for a, b in zip(tensors, again, strict=True))


def test_a_named_tuple_comes_back_as_a_tuple() -> None:
    tensors: list[torch.Tensor] = []
    back = layout.rebuild(layout.describe(Pair(torch.ones(1), 2), tensors), tensors)
    assert type(back) is tuple and back[1] == 2


@pytest.mark.parametrize("leaf", [torch.float32, slice(1), object(), 1 + 2j])
def test_other_leaves_are_refused_by_name(leaf: object) -> None:
    with pytest.raises(ProblemError, match=type(leaf).__name__):
        layout.describe([leaf], [])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 5),
        torch.randn(3, 5).t(),
        torch.randn(4, 6, 2).permute(2, 0, 1),
        torch.randn(4, 6)[:, ::2],
        torch.randn(5, 1).expand(5, 4),  # overlapping: comes back contiguous
        torch.randn(100, 100)[:2, :2],  # mostly gaps: comes back contiguous
        torch.randn(()),
        torch.randn(0, 3),
        torch.randint(0, 9, (7,)),
        torch.rand(9) > 0.5,
        torch.randn(6).to(torch.bfloat16),
        torch.randn(6, dtype=torch.complex64),
    ],
    ids=lambda t: f"{tuple(t.shape)}-{t.dtype}",
)
def test_values_and_plain_strides_survive_an_arena(tensor: torch.Tensor) -> None:
    slots, nbytes = layout.plan([torch.ones(3), tensor])
    arena = targets.get("cpu").arena(nbytes + 4096)
    _, view = layout.views(arena, json.loads(json.dumps(slots)), base=4096)
    view.copy_(tensor)
    assert layout.identical([view], [tensor])
    gaps = 0 in tensor.stride() or tensor.stride()[:1] == (100,)
    if tensor.numel() and not gaps:
        assert view.stride() == tensor.stride()
    del view, _
    arena.close()


def test_tensors_in_an_arena_do_not_touch() -> None:
    tensors = [torch.ones(n) for n in (1, 129, 0, 7)]
    slots, nbytes = layout.plan(tensors)
    ends = [s["offset"] + t.numel() * 4 for s, t in zip(slots, tensors)]
    assert all(s["offset"] >= end for s, end in zip(slots[1:], ends))
    assert nbytes >= ends[-1] and all(s["offset"] % layout.ALIGNMENT == 0 for s in slots)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8,
     torch.complex64],
)
def test_poison_is_seen_and_is_nan_where_there_is_one(dtype: torch.dtype) -> None:
    t = torch.zeros(5, dtype=dtype)
    layout.poison([t])
    assert not layout.identical([t], [torch.zeros(5, dtype=dtype)])
    if dtype.is_floating_point:
        assert bool(torch.isnan(t).all())


def test_identical_tells_negative_zero_and_knows_nan() -> None:
    nan = torch.tensor([float("nan")])
    assert layout.identical([nan], [nan.clone()])
    assert not layout.identical([torch.tensor([0.0])], [torch.tensor([-0.0])])


def test_a_name_that_is_no_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="no dtype"):
        layout.dtype_of("manual_seed")
