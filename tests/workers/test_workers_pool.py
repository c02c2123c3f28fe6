"""Workers: same verdicts inline and in a pool; nothing is lost when a process dies."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from cuda_agent.errors import HarnessError, ProblemError, SettingsError
from cuda_agent.evaluation import Settings
from cuda_agent.problems import live_instance, materialize
from cuda_agent.records import Candidate, Problem
from cuda_agent.workers import InlineWorker, LocalPool

SOURCE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.randn(32, 64)]
"""
PROBLEM = Problem("softmax", SOURCE, "softmax.py")
SETTINGS = Settings(target="cpu", baselines=("eager",), threads=1, deadline_s=5.0)


def candidate(expression: str) -> Candidate:
    text = SOURCE.replace("Model", "ModelNew").replace("torch.softmax(x, -1)", expression)
    return Candidate(PROBLEM.hash, {"model_new.py": text})


RIGHT, WRONG = candidate("torch.softmax(x, 1)"), candidate("x.exp()")
CRASH = candidate('__import__("ctypes").string_at(8)')


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> LocalPool:
    made = LocalPool(PROBLEM, SETTINGS, cache_dir=tmp_path_factory.mktemp("cache"), workers=2)
    yield made  # type: ignore[misc]
    made.close()


def test_inline(tmp_path: Path) -> None:
    instance = materialize(PROBLEM, "cpu")
    with InlineWorker(PROBLEM, instance, SETTINGS, cache_dir=tmp_path) as worker:
        assert worker.evaluate(RIGHT).ok
        assert worker.submit(WRONG).result().status == "wrong"
        assert worker.submit(CRASH).result().status == "runtime_error"
        work = worker.judge.work
    assert not work.exists()


def test_inline_passes_user_errors_through_the_future(tmp_path: Path) -> None:
    instance = materialize(PROBLEM, "cpu")
    tight = Settings(target="cpu", baselines=("eager",), threads=1, memory_bytes=10)
    with InlineWorker(PROBLEM, instance, tight, cache_dir=tmp_path) as worker:
        future = worker.submit(RIGHT)
        with pytest.raises(ProblemError, match="may be used"):
            future.result()


@pytest.mark.slow
def test_a_pool_judges_many_in_parallel(pool: LocalPool) -> None:
    made = [RIGHT, WRONG, CRASH, RIGHT]
    verdicts = [f.result(timeout=120) for f in [pool.submit(c) for c in made]]
    assert [v.status for v in verdicts] == ["ok", "wrong", "runtime_error", "ok"]
    assert [v.candidate_hash for v in verdicts] == [c.hash for c in made]


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(pool: LocalPool) -> None:
    assert pool.evaluate(RIGHT).ok
    for process in pool.processes:
        if process is not None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    assert pool.evaluate(RIGHT).ok
    assert pool.submit(WRONG).result().status == "wrong"


@pytest.mark.slow
def test_a_worker_killed_while_it_judges_is_replaced(pool: LocalPool) -> None:
    assert pool.evaluate(RIGHT).ok
    slow = pool.submit(candidate("(__import__('time').sleep(0.5), torch.softmax(x, 1))[1]"))
    time.sleep(0.3)
    for process in pool.processes:
        if process is not None and process.pid is not None:
            os.kill(process.pid, signal.SIGKILL)
    assert slow.result(timeout=120).status == "ok"


@pytest.mark.slow
def test_user_errors_come_back_as_such(tmp_path: Path) -> None:
    broken = Problem("broken", SOURCE.replace("32, 64", "10**7, 10**7"), "broken.py")
    with (
        LocalPool(broken, SETTINGS, cache_dir=tmp_path, workers=1) as pool,
        pytest.raises(ProblemError, match="needs at least"),
    ):
        pool.evaluate(RIGHT)


def test_a_closed_pool_takes_nothing(tmp_path: Path) -> None:
    pool = LocalPool(PROBLEM, SETTINGS, cache_dir=tmp_path, workers=1)
    pool.close()
    pool.close()
    with pytest.raises(HarnessError, match="closed"):
        pool.submit(RIGHT)


def test_a_live_module_needs_the_inline_worker(tmp_path: Path) -> None:
    problem, _ = live_instance(torch.nn.Linear(4, 4), [torch.randn(2, 4)])
    with pytest.raises(SettingsError, match="InlineWorker"):
        LocalPool(problem, SETTINGS, cache_dir=tmp_path)
    with pytest.raises(SettingsError, match="at least one worker"):
        LocalPool(PROBLEM, SETTINGS, cache_dir=tmp_path, workers=0)
