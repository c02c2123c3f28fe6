"""`cuda-agent record` from the command line, with the analytic model in place of the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cuda_agent.cli import main
from cuda_agent.targets import get
from cuda_agent.training import simulated, sources
from cuda_agent.training.table import Table

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2 + 1, dim=-1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records one problem into t.jsonl.gz of the current, else empty folder."""
    if (reason := get("cpu").unavailable()) is not None:
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "softmax.py").write_text(PROBLEM)
    made = ["record", "--target", "cpu", "--problems", "softmax.py", "--space-limit", "5"]
    return [*made, "--out", "t.jsonl.gz"]


def test_a_table_and_its_resumption(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[Any] = []

    def model(environment: Any, **options: Any) -> simulated.SimulatedSource:
        opened.append(environment)
        return simulated.SimulatedSource()

    monkeypatch.setattr(sources, "open_source", model)
    assert main([*command, "--workers", "3"]) == 0
    got = capsys.readouterr()
    (environment,) = opened
    assert (environment.source, environment.target, environment.workers) == ("live", "cpu", 3)
    table = Table.load(Path("t.jsonl.gz"))
    (entry,) = table.entries.values()
    assert entry.complete and 2 <= table.rows <= 5 and table.about["target"] == "cpu"
    assert f"t.jsonl.gz: {table.rows} plans, 1 of 1 problems whole" in got.out
    assert "1/1 softmax" in got.err and "best eager" in got.err
    assert main(command) == 0
    assert "; 0 plans in" in capsys.readouterr().out  # nothing was left to do


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--space-limit", "1"], "--space-limit must be at least 2"),
        (["--minutes", "0"], "--minutes above 0"),
        (["--problems", "none.py"], "none.py"),
        (["--out", "softmax.py"], "is not a table of recorded verdicts"),
    ],
)
def test_bad_input(
    changed: list[str], said: str, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *changed]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err
