"""The command line on a made-up judge."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from cli_fakes import PROBLEM_TEXT, Workers

from cuda_agent.agents import optimize as optimize_module


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workers:
    """A made-up planner and judge, in an empty current folder."""
    from agents_fakes import FakePlanner

    made = Workers()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("CUDA_AGENT_RUNS", raising=False)
    monkeypatch.setattr(optimize_module, "InlineWorker", made)
    monkeypatch.setattr(optimize_module, "contestant_pool", mock.Mock())
    monkeypatch.setattr(
        optimize_module.Planner, "make", lambda instance, facts: FakePlanner(instance.problem)
    )
    return made


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "scaled_gelu.py"
    path.write_text(PROBLEM_TEXT)
    return path
