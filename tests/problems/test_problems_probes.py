"""Probes: each bad reference gets its own finding, sound ones get none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent.problems import load_problem, materialize, probe
from cuda_agent.problems.probes import relative_error

FILE = """
import torch
from torch import nn
from torch.nn import functional as F
class Model(nn.Module):
    def forward(self, x, k):
        {body}
def get_inputs():
    return [{x}, torch.randint(0, 8, (64,))]
"""


@pytest.fixture
def ids(tmp_path: Path):
    def _ids(body: str, x: str = "torch.randn(64, 8)", dtype: str = "float32") -> list[str]:
        path = tmp_path / "my.py"
        path.write_text(FILE.format(body=body, x=x))
        return [f.id for f in probe(materialize(load_problem(path, dtype=dtype), "cpu"))]

    return _ids


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return self.nothing(x)", ["P-raises"]),
        ("return x.sum().item()", ["P-output"]),
        ("return F.dropout(x, 0.5)", ["P-random"]),
        ("return x + 1e-2 * torch.rand_like(x)", ["P-random"]),
        ("return torch.randint(0, 9, (64,))", ["P-random"]),
        ("return torch.softmax(x, -1).sum(-1)", ["P-constant"]),
        ("return torch.ones(4)", ["P-constant"]),
        ("return x - x", ["P-constant", "P-zeros"]),
        ("return x.clone()", ["P-identity"]),
        ("return x.reshape(8, 64)", ["P-identity"]),
        ("return x + 1e-9", ["P-identity"]),
        ("return torch.log(x)", ["P-nonfinite"]),
        ("return x * float('inf')", ["P-nonfinite", "P-constant"]),
        ("return x.masked_fill(x > 2, float('inf'))", ["P-nonfinite"]),
        ("return k.clone()", ["P-identity"]),
    ],
)
def test_bad_references(ids, body: str, expected: list[str]) -> None:
    found = ids(body)
    assert found[: len(expected)] == expected


@pytest.mark.parametrize(
    "body",
    [
        "return F.relu(x)",
        "return torch.softmax(x, dim=-1)",
        "return x.argmax(dim=-1)",
        "return x.masked_fill(torch.ones(64, 8).triu(1).bool(), float('-inf')) * 2",
        "return x, F.gelu(x)",
        "return 1e-12 * torch.tanh(x)",
        "return 1000.0 + torch.tanh(x)",
        "return F.cross_entropy(x, k)",
        "return (x @ x.t()).sum(-1)",
        "return torch.view_as_real(torch.fft.fft(x))",
        "return torch.fft.fft(x)",
        "return {'y': x.norm(dim=-1), 'k': k}",
    ],
)
def test_sound_references(ids, body: str) -> None:
    assert ids(body) == []


def test_relu_of_positive_inputs_is_an_identity(ids) -> None:
    assert ids("return F.relu(x)", x="torch.rand(64, 8)") == ["P-identity"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision(ids, dtype: str) -> None:
    assert ids("return F.gelu(x)", dtype=dtype) == []
    assert ids("return x - x", dtype=dtype) == ["P-constant", "P-zeros"]


def test_findings_tell_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "my.py"
    path.write_text(FILE.format(body="return F.dropout(x, 0.5)", x="torch.randn(64, 8)"))
    (finding,) = probe(materialize(load_problem(path), "cpu"))
    assert "remove dropout and random numbers" in finding.detail


def test_a_mean_over_everything_needs_a_finer_tolerance(ids, tmp_path: Path) -> None:
    """The mean of a million squares barely moves: a loose limit lets a constant pass."""
    path = tmp_path / "my.py"
    path.write_text(FILE.format(body="return x.square().mean()", x="torch.randn(1024, 1024)"))
    instance = materialize(load_problem(path), "cpu")
    assert probe(instance, tolerance=1e-6) == []
    assert [f.id for f in probe(instance, tolerance=1e-2)] == ["P-constant"]


def test_relative_error_is_against_the_spread() -> None:
    reference = 100.0 + torch.randn(10_000)
    assert relative_error(torch.full_like(reference, float(reference.mean())), reference) > 0.99
    assert relative_error(torch.zeros_like(reference), reference) > 10
    assert relative_error(reference * (1 + 1e-7), reference) < 1e-4
    assert relative_error(reference, reference) == 0
    single = torch.tensor(5.0)
    assert relative_error(torch.tensor(5.5), single) == pytest.approx(0.1)
    same = torch.full((8,), 5.0)
    assert relative_error(same * 1.1, same) == pytest.approx(0.1, rel=1e-5)
    zero = torch.zeros(8)
    assert relative_error(zero, zero) == 0 and relative_error(zero + 1e-30, zero) == float("inf")
    assert relative_error(torch.arange(3), torch.tensor([0, 1, 3])) == float("inf")
    mask = torch.tensor([1.0, 3.0, float("-inf")])
    assert relative_error(mask.clone(), mask) == 0
    assert relative_error(torch.tensor([1.0, 3.0, 0.0]), mask) == float("inf")


def test_relative_error_over_several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = torch.randn(1000)
    got = reference.clone()
    got[777] += 1.0
    whole = relative_error(got, reference)
    monkeypatch.setattr("cuda_agent.problems.probes._CHUNK", 64)
    assert relative_error(got, reference) == pytest.approx(whole)
