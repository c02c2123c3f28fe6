"""`cuda-agent evaluate` with the real judge on the CPU, eager alone as baseline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_agent.cli import main
from cuda_agent.evaluation import settings
from cuda_agent.records import Verdict

RIGHT = """import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x):
        return torch.nn.functional.gelu(x * self.weight)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    for tier in ("screen", "audit"):
        short = {"baselines": ("eager",), "time_limit_s": 0.3, "min_rounds": 6, "placements": 1}
        monkeypatch.setitem(settings._TIERS, tier, {**settings._TIERS[tier], **short})


def test_a_right_candidate(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(RIGHT)
    assert main(["evaluate", str(problem), "mine.py", "--target", "cpu", "--json"]) == 0
    verdict = Verdict.from_json(json.loads(capsys.readouterr().out))
    assert verdict.ok and verdict.tier == "screen" and verdict.speedup["eager"] is not None
    assert main(["evaluate", str(problem), "mine.py", "--target", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "scaled_gelu: ok" in out and "PyTorch eager" in out and "relative error" in out


def test_a_wrong_candidate_is_status_1(problem: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(RIGHT.replace("gelu", "silu"))
    assert main(["evaluate", str(problem), "mine.py", "--target", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "wrong" in out and "speed-up" not in out


def test_a_problem_that_cannot_be_judged_is_status_2(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem.write_text(problem.read_text().replace("gelu(x * self.weight)", "dropout(x)"))
    Path("mine.py").write_text(RIGHT)
    assert main(["evaluate", str(problem), "mine.py", "--target", "cpu", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "invalid_problem" and document["findings"][0]["id"] == "P-random"


@pytest.mark.compiler
@pytest.mark.slow
def test_optimize_for_real_and_the_solution_runs_alone(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["optimize", str(problem), "--target", "cpu", "--budget", "2", "--json"]
    assert main(argv) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["status"] == "ok", document["verdict"]["feedback"]
    assert document["verdict"]["tier"] == "audit"
    folder = tmp_path / document["solution"]
    code = (
        "import importlib.util, sys, torch\n"
        "spec = importlib.util.spec_from_file_location('mine', sys.argv[1] + '/model_new.py')\n"
        "mine = importlib.util.module_from_spec(spec); spec.loader.exec_module(mine)\n"
        "assert not any(m.split('.')[0] == 'cuda_agent' for m in sys.modules)\n"
        "new, old = mine.ModelNew(), mine.reference.Model()\n"
        "new.load_state_dict(old.state_dict()); x = torch.randn(4, 8)\n"
        "with torch.no_grad(): torch.testing.assert_close(new(x), old(x))\n"
    )
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd="/", env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
