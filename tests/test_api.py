"""`cuda_agent.optimize` on live modules: real skills, real C++ kernels, a made-up clock."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "agents"))

from agents_fakes import verdict

import cuda_agent
from cuda_agent import runtime
from cuda_agent.agents import optimize as optimize_module
from cuda_agent.api import Solution, optimize
from cuda_agent.errors import CandidateError, OutputError, ProblemError, SettingsError
from cuda_agent.records import Candidate, Verdict
from cuda_agent.store import Store


def _compiler() -> bool:
    try:
        return bool(runtime.compiler("cpp"))
    except runtime.ToolMissing:
        return False


pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(not _compiler(), reason="no C++ compiler"),
]


class Block(nn.Module):
    """The tail of a transformer layer: bias, GELU, residual, layer norm."""

    def __init__(self, width: int = 32, scale: float = 1.0) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width))
        self.norm = nn.LayerNorm(width)
        self.scale = scale
        self.register_buffer("shift", torch.randn(width), persistent=False)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(x + self.bias) * self.scale + residual
        return self.norm(hidden) + self.shift


class Net(nn.Module):
    """Blocks like the optimized one, one with other settings, one of another width, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(16, 32)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.scaled = Block(scale=2.0)
        self.unused = Block()
        self.narrow = Block(16)
        self.leave = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.enter(x)
        for block in self.blocks:
            hidden = block(hidden, residual=hidden)
        hidden = self.scaled(hidden, hidden)
        out = self.leave(hidden)
        return self.narrow(out, out)


class ClockWorker:
    """Checks the candidate's output for real, in this process, and makes the times up."""

    def __init__(
        self, problem: Any, instance: Any, settings: Any, *, cache_dir: Path, pool: Any
    ) -> None:
        self.instance, self.settings = instance, settings

    def evaluate(self, candidate: Candidate) -> Verdict:
        from cuda_agent.agents.binding import bind

        made = bind(candidate, self.instance.model, self.instance)
        inputs = self.instance.inputs(5)
        with torch.no_grad():
            same = torch.allclose(made(*inputs), self.instance.model(*inputs), atol=1e-5)
        status = "ok" if same else "wrong"
        return verdict(
            0.5, status, candidate.hash, self.instance.problem, self.settings.tier
        )

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Solution, Block, Any]]:
    """(solution, the module, its example inputs)"""
    torch.manual_seed(0)
    module, inputs = Block().train(), (torch.randn(4, 32), torch.randn(4, 32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_AGENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(optimize_module, "InlineWorker", ClockWorker)
        patch.setattr(optimize_module, "contestant_pool", mock.Mock())
        yield optimize(module, inputs, budget=2), module, inputs


@pytest.fixture
def net() -> Net:
    torch.manual_seed(1)
    return Net().eval()


X = torch.randn(4, 16, generator=torch.Generator().manual_seed(2))


def test_module_is_a_drop_in_that_shares_parameters(made: Any) -> None:
    solution, module, inputs = made
    assert solution.faster and solution.verdict.tier == "audit"
    assert module.training and module.norm.training, "the caller's module is as it was"
    assert list(solution.module.state_dict()) == list(module.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(solution.module(*inputs), module.eval()(*inputs))
        module.bias.add_(1.0)
        module.shift.mul_(2.0)
        torch.testing.assert_close(solution.module(*inputs), module(*inputs))
    module.train()
    assert solution.module.bias is module.bias
    assert "2.00× PyTorch eager" in repr(solution)
    assert "kernels/" in solution.report and "<svg" in solution.report


def test_other_shapes_and_gradients_are_refused(made: Any) -> None:
    solution, _, inputs = made
    with torch.no_grad(), pytest.raises(ValueError, match="shape"):
        solution.module(torch.randn(5, 32), torch.randn(5, 32))
    with pytest.raises((ValueError, RuntimeError), match="no_grad"):
        solution.module(*inputs)


def test_saved_solution_runs_alone(made: Any, tmp_path: Path) -> None:
    solution, module, inputs = made
    folder = solution.save(tmp_path / "solution")
    names = {p.name for p in folder.iterdir()}
    assert {"model_new.py", "kernels", "runtime.py", "verdict.json", "report.html"} <= names
    spec = importlib.util.spec_from_file_location("saved_solution", folder / "model_new.py")
    assert spec is not None and spec.loader is not None
    text = (folder / "model_new.py").read_text()
    assert "cuda_agent" not in text.replace("cuda_agent_", "")
    saved = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(saved)
    new = saved.ModelNew.adopt(module)
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), module(*inputs))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    with pytest.raises(OutputError, match="not a solution"):
        solution.save(tmp_path / "mine")


def test_apply_replaces_what_is_alike_and_checks_the_whole(made: Any, net: Net) -> None:
    solution = made[0]
    with torch.no_grad():
        before = net(X)
    with pytest.warns(UserWarning, match="unused: the model does not call it"):
        report = solution.apply(net, (X,))
    assert report.replaced == ["blocks.0", "blocks.1"]
    assert set(report.skipped) == {"scaled", "narrow", "unused"}
    assert "other settings" in report.skipped["scaled"]
    assert "other shapes" in report.skipped["narrow"]
    assert report.error is not None and report.error < report.tolerance
    assert type(net.blocks[0]).__name__ == "ModelNew" and type(net.unused) is Block
    with torch.no_grad():
        torch.testing.assert_close(net(X), before)


def test_apply_without_inputs_checks_the_first_call(made: Any, net: Net) -> None:
    solution = made[0]
    with torch.no_grad():
        before = net(X)
    report = solution.apply(net)
    assert report.error is None and "unused" in report.replaced
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(net(X), before)
    assert report.error is not None and report.replaced == ["blocks.0", "blocks.1"]
    assert type(net.unused) is Block


def test_apply_leaves_calls_of_other_shapes_alone(made: Any, net: Net) -> None:
    solution = made[0]
    with pytest.raises(SettingsError, match="inputs of other shapes"):
        solution.apply(net, (torch.randn(3, 16),))
    assert type(net.blocks[0]) is Block


def test_apply_raises_with_numbers_and_puts_the_model_back(
    made: Any, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = made[0]
    kind = type(solution.module)
    right = kind.forward
    monkeypatch.setattr(kind, "forward", lambda self, *args, **kw: right(self, *args, **kw) + 0.01)
    with pytest.raises(CandidateError, match=r"differs by \d\.\d+e-0\d .* 1e-04 is allowed"):
        solution.apply(net, (X,))
    assert all(type(block) is Block for block in net.blocks)
    solution.apply(net)
    with torch.no_grad(), pytest.raises(CandidateError, match="is as it was"):
        net(X)
    assert all(type(block) is Block for block in net.blocks)


def test_apply_says_why_it_cannot(made: Any, net: Net) -> None:
    solution, module, _ = made
    with pytest.raises(SettingsError, match=r"call model\.eval"):
        solution.apply(net.train())
    with pytest.raises(SettingsError, match=r"use solution\.module"):
        solution.apply(module.eval())
    module.train()
    with pytest.raises(SettingsError, match="holds no Block"):
        solution.apply(nn.Sequential(nn.Linear(2, 2)).eval())


def test_bad_modules_and_options() -> None:
    x = torch.randn(4, 32)
    with pytest.raises(ProblemError, match="not function"):
        optimize(lambda: None, (x,))  # type: ignore[arg-type]
    with pytest.raises(ProblemError, match="P-random"):
        optimize(_Noisy(), (x,))
    with pytest.raises(SettingsError, match="lies on cpu"):
        optimize(Block(), (x, x), target="cuda")
    with pytest.raises(SettingsError, match="at least 1"):
        optimize(Block(), (x, x), budget=0)


class _Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_no_correct_candidate_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Strict(ClockWorker):
        def evaluate(self, candidate: Candidate) -> Verdict:
            return verdict(0, "wrong", candidate.hash, self.instance.problem)

    monkeypatch.setattr(optimize_module, "InlineWorker", Strict)
    monkeypatch.setattr(optimize_module, "contestant_pool", mock.Mock())
    x = torch.randn(4, 32)
    with pytest.raises(CandidateError, match="no correct solution for Block: it is wrong"):
        cuda_agent.optimize(Block(), (x, x), budget=1, runs=tmp_path / "runs")
    assert len(Store(tmp_path / "runs").runs()) == 1
