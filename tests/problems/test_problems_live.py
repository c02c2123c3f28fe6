"""Live modules: the object stays the reference, inputs look like the examples."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cuda_agent.errors import ProblemError
from cuda_agent.problems import live_instance, materialize, probe


def test_module_itself_is_the_reference() -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    module.train()
    problem, instance = live_instance(module, (torch.randn(4, 8),))
    assert instance.model is module and not module.training
    assert problem.kind == "live" and problem.name == "Sequential" and problem.dtype == "float32"
    assert "float32[4, 8] strides [8, 1]" in problem.source
    assert probe(instance) == []
    x = instance.inputs(1)
    with torch.no_grad():
        assert torch.equal(instance.reference(x), module(*x))


def test_floats_have_the_examples_form_and_moments() -> None:
    example = (5.0 + 3.0 * torch.randn(64, 128)).t()
    _, instance = live_instance(nn.ReLU(), (example,))
    x = instance.inputs(1)[0]
    assert x.shape == example.shape and x.stride() == example.stride()
    assert not torch.equal(x, example)
    assert abs(float(x.mean()) - 5.0) < 0.3 and abs(float(x.std()) - 3.0) < 0.3
    assert not torch.equal(x, instance.inputs(2)[0]) and torch.equal(x, instance.inputs(1)[0])


def test_probabilities_stay_probabilities_and_expanded_inputs_are_taken() -> None:
    example = torch.rand(4, 1).expand(4, 16)
    _, instance = live_instance(nn.Identity(), (example,))
    x = instance.inputs(1)[0]
    assert x.shape == (4, 16) and float(x.min()) >= 0 and float(x.max()) <= 1


class Lookup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, ids, positions, keep, mask, scale):
        return (self.table(ids) + positions[:, None]) * keep[:, None] * scale + mask


def test_integers_come_from_the_examples_values_and_structure_is_kept() -> None:
    ids, positions = torch.tensor([9, 3, 3, 7, 0, 1]), torch.arange(6)
    keep = torch.tensor([True, False, True, True, True, False])
    mask = torch.zeros(6, 4).masked_fill(torch.rand(6, 4) > 0.5, float("-inf"))
    _, instance = live_instance(Lookup(), (ids, positions, keep, mask, 0.5))
    made = [instance.inputs(seed) for seed in range(8)]
    assert all(sorted(x[0].tolist()) == sorted(ids.tolist()) for x in made)
    assert any(not torch.equal(x[0], ids) for x in made)
    for x in made:
        assert torch.equal(x[1], positions) and torch.equal(x[2], keep)
        assert torch.equal(x[3], mask) and x[4] == 0.5
    instance.reference(made[0])


def test_dtype_converts_a_copy_and_leaves_the_module() -> None:
    module = nn.Linear(8, 8)
    problem, instance = live_instance(module, [torch.randn(2, 8)], dtype="bfloat16")
    assert module.weight.dtype == torch.float32 and instance.model is not module
    assert problem.dtype == "bfloat16" and instance.inputs(1)[0].dtype == torch.bfloat16
    assert instance.reference(instance.inputs(1)).dtype == torch.bfloat16
    own, _ = live_instance(module.to(torch.float16), [torch.randn(2, 8).half()])
    assert own.dtype == "float16"


def test_fingerprint_sees_values_structure_and_inputs() -> None:
    module = nn.Linear(8, 8)
    x = torch.randn(2, 8)
    same = live_instance(copy.deepcopy(module), [x])[0].hash
    assert live_instance(module, [torch.randn(2, 8)])[0].hash == same
    assert live_instance(module, [torch.randn(3, 8)])[0].hash != same
    with torch.no_grad():
        module.weight[0, 0] += 1
    assert live_instance(module, [x])[0].hash != same
    assert live_instance(nn.Linear(8, 8), [x])[0].hash != same


def test_bad_arguments() -> None:
    with pytest.raises(ProblemError, match=r"needs a torch\.nn\.Module, not function"):
        live_instance(lambda x: x, [torch.ones(1)])  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="hold no tensor"):
        live_instance(nn.ReLU(), [3])
    with pytest.raises(ProblemError, match="no problem dtype `int8`"):
        live_instance(nn.ReLU(), [torch.ones(1)], dtype="int8")
    with pytest.raises(ProblemError, match="lie on several devices"):
        live_instance(nn.Linear(2, 2), [torch.ones(2, device="meta")])
    with pytest.raises(ProblemError, match="use live_instance"):
        materialize(live_instance(nn.ReLU(), [torch.ones(2)])[0], "cpu")


def test_a_failing_forward_names_the_line() -> None:
    _, instance = live_instance(Lookup(), [torch.ones(3)])
    with pytest.raises(ProblemError, match=r"live .*Lookup.*forward of `Lookup` raised TypeError"):
        instance.reference(instance.inputs(1))
