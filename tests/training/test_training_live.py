"""Plans judged on this machine's CPU: many problems in few processes, each candidate once."""

from __future__ import annotations

import json
from concurrent.futures import wait
from pathlib import Path

import pytest

from cuda_agent.errors import HarnessError, ProblemError, SettingsError
from cuda_agent.evaluation import Settings
from cuda_agent.targets import get
from cuda_agent.training.config import Environment
from cuda_agent.training.live import LiveSource, _Kept
from cuda_agent.training.sources import load_problems, open_source
from cuda_agent.training.tasks import TrainingProblem

PROBLEM = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2 + {bias}, dim=-1)

def get_inputs():
    return [torch.randn(64, 512)]

def get_init_inputs():
    return []
"""
ENVIRONMENT = Environment(source="live", target="cpu", space_limit=4)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def problems(cache: Path) -> list[TrainingProblem]:
    for bias in (1, 2):
        (cache / f"softmax{bias}.py").write_text(PROBLEM.format(bias=bias))
    paths = [str(cache / f"softmax{bias}.py") for bias in (1, 2)]
    return load_problems(ENVIRONMENT, paths, cache=cache)


def test_many_plans_of_two_problems_each_candidate_once(
    cache: Path, problems: list[TrainingProblem]
) -> None:
    with open_source(ENVIRONMENT, cache=cache) as source:
        futures = [
            source.submit(made, made.space.at(number))
            for made in problems for number in range(len(made.space))
        ]
        again = source.submit(problems[0], problems[0].space.difference(problems[0].space.at(1)))
        assert again is futures[1]
        verdicts = [future.result(300) for future in futures]
    assert [v.status for v in verdicts] == ["ok"] * len(verdicts), verdicts
    for v in verdicts:
        assert v.tier == "screen" and v.speedup["eager"] and v.speedup["compile_default"]
        assert v.timing is not None and not v.timing.samples_ms
    by_candidate = {v.candidate_hash: v for v in verdicts}
    assert all(by_candidate[v.candidate_hash] == v for v in verdicts)
    assert 2 <= len(by_candidate) < len(verdicts)  # torch leaves knobs without a meaning
    with open_source(ENVIRONMENT, cache=cache) as source:  # another run: all is known
        known = [
            source.submit(made, made.space.at(number)).result(300)
            for made in problems for number in range(len(made.space))
        ]
    assert known == verdicts


def test_a_problem_that_cannot_be_built_and_a_closed_source(
    cache: Path, problems: list[TrainingProblem]
) -> None:
    (made, other) = problems
    broken = TrainingProblem(
        type(made.problem)("broken", "raise ValueError('no')", "test"), made.task
    )
    source = LiveSource(Settings(target="cpu"), cache=cache, workers=1)
    first = source.submit(broken, {})
    with pytest.raises(SettingsError, match="no region 'r9'"):
        source.submit(made, {"regions": {"r9": {"skill": "torch"}}})
    with pytest.raises(ProblemError):
        first.result(120)
    assert source.submit(broken, {}) is not first  # failures of ours or the user's are not kept
    waiting = [source.submit(other, other.space.at(number)) for number in range(3)]
    source.close()
    done, _ = wait(waiting, 60)
    assert len(done) == 3 and waiting[-1].cancelled()
    with pytest.raises(HarnessError, match="closed"):
        source.submit(made, {})
    with pytest.raises(SettingsError, match="at least one worker"):
        LiveSource(Settings(target="cpu"), cache=cache, workers=0)


def test_kept_verdicts_survive_a_torn_line(cache: Path, problems: list[TrainingProblem]) -> None:
    with open_source(ENVIRONMENT, cache=cache) as source:
        verdict = source.submit(problems[0], {}).result(300)
    path = cache / "torn.jsonl"
    line = json.dumps(verdict.to_json())
    path.write_text(line[: len(line) // 2])
    kept = _Kept(path)
    assert kept.get(verdict.candidate_hash) is None
    kept.put(verdict)
    assert _Kept(path).get(verdict.candidate_hash) == verdict


@pytest.mark.gpu
@pytest.mark.skipif(get("cuda").unavailable() is not None, reason="no NVIDIA GPU that works here")
def test_several_workers_share_a_gpu(tmp_path: Path) -> None:
    environment = Environment(source="live", target="cuda", space_limit=8, workers=3)
    for bias in (1, 2, 3):
        (tmp_path / f"softmax{bias}.py").write_text(PROBLEM.format(bias=bias))
    paths = [str(tmp_path / f"softmax{bias}.py") for bias in (1, 2, 3)]
    made = load_problems(environment, paths, cache=tmp_path)
    assert {p.task.device.target for p in made} == {"cuda"}
    with open_source(environment, cache=tmp_path) as source:
        futures = [source.submit(p, p.space.at(i)) for p in made for i in range(len(p.space))]
        verdicts = [future.result(500) for future in futures]
        audit = source.submit(made[0], {}, "audit").result(500)
    assert {v.status for v in [*verdicts, audit]} == {"ok"}, [v.feedback for v in verdicts]
    assert audit.tier == "audit" and audit.speedup["compile_default"] is not None
