"""Operand addressing: strides over a space, collapsing, vector widths, offsets."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from cuda_agent.graph.ir import Op, Ref, Tensor
from cuda_agent.skills.emit.indexing import (
    Layout,
    Unaddressable,
    channel_operands,
    collapse,
    coordinates,
    offset,
    place,
)


def _tensor(name: str, value: torch.Tensor) -> Tensor:
    return Tensor(name, tuple(value.shape), tuple(value.stride()), "float32")


def _layout(*values: torch.Tensor, space: tuple[int, ...]) -> Layout:
    tensors = [_tensor(f"t{i}", v) for i, v in enumerate(values)]
    return collapse(space, [(t, place(t, space)) for t in tensors])


def test_contiguous_tensors_collapse_to_one_dim() -> None:
    layout = _layout(torch.empty(2, 3, 4), torch.empty(2, 3, 4), space=(2, 3, 4))
    assert layout.sizes == (24,) and layout.flat
    assert [o.walk for o in layout.operands] == ["vector", "vector"]


def test_a_row_and_a_column_operand_split_the_space_where_they_must() -> None:
    layout = _layout(torch.empty(4), torch.empty(3, 1), torch.empty(2, 3, 4), space=(2, 3, 4))
    assert layout.sizes == (2, 3, 4)
    assert [o.walk for o in layout.operands] == ["vector", "uniform", "vector"]
    only_row = _layout(torch.empty(4), torch.empty(2, 3, 4), space=(2, 3, 4))
    assert only_row.sizes == (6, 4)


def test_dims_follow_the_outputs_memory() -> None:
    out = torch.empty(2, 8, 5, 6).to(memory_format=torch.channels_last)
    same = torch.empty(2, 8, 5, 6).to(memory_format=torch.channels_last)
    assert _layout(same, out, space=(2, 8, 5, 6)).flat
    bias = torch.empty(8, 1, 1)
    assert _layout(bias, out, space=(2, 8, 5, 6)).sizes == (60, 8)


def test_transposed_operands_are_found() -> None:
    layout = _layout(torch.empty(40, 50).t(), torch.empty(50, 40), space=(50, 40))
    dim, operands = layout.transposed()
    assert dim == 0 and [o.name for o in operands] == ["t0"]
    assert _layout(torch.empty(50, 40), torch.empty(50, 40), space=(50, 40)).transposed()[1] == ()


@pytest.mark.parametrize(
    ("shape", "limit", "width"),
    [((10, 16), 4, 4), ((10, 6), 4, 2), ((10, 5), 4, 1), ((10, 16), 8, 8)],
)
def test_vectors_fit_rows(shape: tuple[int, ...], limit: int, width: int) -> None:
    layout = _layout(torch.empty(shape[-1]), torch.empty(shape), space=shape)
    assert layout.vector_width(limit) == width


def test_a_row_pitch_that_is_not_aligned_narrows_the_access() -> None:
    sliced = torch.empty(10, 18)[:, :16]
    layout = _layout(sliced, torch.empty(10, 16), space=(10, 16))
    assert layout.vector_width(4) == 2


def test_batch_norm_operands_lie_along_dim_1() -> None:
    values = {n: Tensor(n, (3,), (1,), "float32") for n in "wbmv"}
    values |= {n: Tensor(n, (2, 3, 4, 5), (60, 20, 5, 1), "float32") for n in "xy"}
    op = Op("aten._native_batch_norm_legit_no_training.default",
            (Ref("x"), Ref("w"), Ref("b"), Ref("m"), Ref("v"), 0.1, 1e-5), ("y", "", ""))
    assert channel_operands([op], values) == set("wbmv")
    assert place(values["w"], (2, 3, 4, 5), channel=True) == (0, 1, 0, 0)


def test_what_does_not_broadcast_is_refused() -> None:
    with pytest.raises(Unaddressable):
        place(Tensor("x", (3,), (1,), "float32"), (2, 4))
    with pytest.raises(Unaddressable):
        place(Tensor("x", (1, 2, 4), (8, 4, 1), "float32"), (2, 4))


@pytest.mark.parametrize("seed", range(30))
def test_collapsed_offsets_reach_every_element(seed: int) -> None:
    """Walking the collapsed space touches exactly the elements that broadcasting touches."""
    draw = random.Random(seed)
    space = tuple(draw.choice((1, 2, 3, 4)) for _ in range(draw.choice((1, 2, 3, 4))))
    values = []
    for _ in range(2):
        shape = [n if draw.random() < 0.7 else 1 for n in space][draw.choice((0, 0, 1)):]
        order = list(range(len(shape)))
        draw.shuffle(order)
        stored = torch.arange(0, 10_000)[: max(1, int(torch.tensor(shape).prod()))]
        tensor = stored.view([shape[d] for d in order]).permute(
            [order.index(d) for d in range(len(order))])
        values.append(tensor)
    out = torch.arange(0, int(torch.tensor(space).prod())).view(space)
    layout = _layout(*values, out, space=space)
    walked = []
    for point in itertools.product(*(range(n) for n in layout.sizes)):
        names = [str(c) for c in point]
        walked.append(tuple(eval(offset(o.strides, names)) for o in layout.operands))
    wide = [v.expand(space).flatten().tolist() for v in values]
    assert sorted(walked) == sorted(zip(*wide, out.flatten().tolist()))


def test_coordinates_undo_the_linear_index() -> None:
    sizes = (3, 4, 5)
    lines = coordinates(sizes, "index", ["a", "b", "c"], "int")
    for index in range(60):
        scope = {"index": index}
        for line in lines:
            name, text = line.removeprefix("const int ").removesuffix(";").split(" = ")
            scope[name] = eval(text.replace("/", "//"), {}, scope)
        assert (scope["a"] * 4 + scope["b"]) * 5 + scope["c"] == index
