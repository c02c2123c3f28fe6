"""The filters, the processes that run them, and a data set from the command line."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cuda_agent.cli import main
from cuda_agent.errors import SettingsError
from cuda_agent.problems import dataset_problems, load_problem, materialize, probe
from cuda_agent.records import Problem
from cuda_agent.synthesis import FILTERS, filters, run
from cuda_agent.synthesis.crew import Crew, Place
from cuda_agent.synthesis.filters import execute_filters
from cuda_agent.synthesis.journal import Draw, Journal
from cuda_agent.synthesis.publish import split_of
from cuda_agent.synthesis.seeds import Seed, crawl
from cuda_agent.synthesis.turns import Turns

ANY_TIME = (0.0, 1e6)


def problem(forward: str, inputs: str = "torch.randn(32, 64)", head: str = "") -> Problem:
    text = (
        f"import os, time\nimport torch\nfrom torch import nn\n{head}\n"
        f"class Model(nn.Module):\n    def forward(self, x):\n        {forward}\n\n"
        f"def get_inputs():\n    return [{inputs}]\n"
    )
    return Problem("p", text, "p")


REJECTED = {
    "memory": problem("return x", "torch.randn(1 << 25, 1 << 16)"),
    "eager": problem("return x @ x"),
    "random": problem("return x + 1e-7 * torch.rand_like(x)"),
    "constant": problem("return torch.zeros_like(x) + x.sum()"),
    "indistinguishable": problem("return torch.arange(64.0) + 1e-3 * x"),
    "probes": problem("return torch.log(x)"),
    "compile": problem("return x + 1 if not torch.compiler.is_compiling() else x - 1"),
}


@pytest.fixture
def turns(tmp_path: Path) -> Turns:
    return Turns(tmp_path)


@pytest.fixture
def no_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile traces, but compiles no C++ (seconds each); one test below does."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda module: real(module, backend="eager"))


@pytest.mark.parametrize("name", REJECTED)
def test_each_filter_rejects_what_it_is_for(
    name: str, turns: Turns, no_inductor: None
) -> None:
    assert execute_filters(REJECTED[name], "cpu", ANY_TIME, turns).rejected == name
    assert name in FILTERS


def test_a_sound_problem_passes_all_but_a_window_elsewhere(
    turns: Turns, no_inductor: None
) -> None:
    sound = problem("return torch.softmax(x * 2, -1)")
    outcome = execute_filters(sound, "cpu", ANY_TIME, turns)
    assert outcome.rejected == "" and outcome.eager_ms is not None and outcome.eager_ms > 0
    assert {"eager", "random", "probes", "time", "compile"} <= set(outcome.seconds)
    slow = execute_filters(sound, "cpu", (1e5, 1e6), turns)
    assert slow.rejected == "time" and "compile" not in slow.seconds


def test_time_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(0.004 if len(calls) % 2 else 0.002)
        time.sleep(calls[-1])

    assert 2.0 <= filters.time_ms(call, torch.device("cpu")) < 3.9
    assert 4 <= len(calls) <= 11


def test_a_crash_or_hang_costs_one_candidate(tmp_path: Path) -> None:
    """The process that dies, the one that hangs, and the sound one after both of them."""
    given = [
        problem("os.kill(os.getpid(), 11)"),
        problem("time.sleep(600)"),
        problem("return x @ x"),
    ]
    with Crew(Place("cpu", ANY_TIME, 1, tmp_path), workers=1, deadline_s=2) as crew:
        found = []
        for index, candidate in enumerate(given):
            if index == 1:  # started beforehand, so that the deadline is the candidate's own
                crew.give(9, problem("return x @ x"))
                assert [o.rejected for _, o in crew.outcomes()] == ["eager"]
            crew.give(index, candidate)
            assert crew.idle == 0 or index
            found += list(crew.outcomes())
        assert list(crew.outcomes()) == []
    assert [(i, o.rejected) for i, o in found] == [(0, "crash"), (1, "hang"), (2, "eager")]
    assert found[0][1].detail == f"exit code {-signal.SIGSEGV}"


def test_alone_means_alone(tmp_path: Path) -> None:
    one, other = Turns(tmp_path), Turns(tmp_path)
    with one.shared(), other.shared():
        pass
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        with Turns(tmp_path).alone():
            (tmp_path / "there").touch()
            time.sleep(0.5)
        os._exit(0)
    while not (tmp_path / "there").exists():
        time.sleep(0.01)
    with one.shared():
        assert time.monotonic() - started >= 0.45
    os.waitpid(child, 0)


def test_the_journal_survives_a_torn_line_and_refuses_other_settings(tmp_path: Path) -> None:
    with Journal(tmp_path, {"seed": 0}) as journal:
        journal.append(Draw(1, ops=("a", "b"), code="x"))
        journal.append(Draw(0, "time", "3 ms"))
        with pytest.raises(SettingsError, match="another run is at work"):
            Journal(tmp_path, {"seed": 0})
    with open(tmp_path / "journal.jsonl", "a") as file:
        file.write('{"index": 2, "rej')
    with Journal(tmp_path, {"seed": 0}) as journal:
        assert set(journal.draws) == {0, 1} and journal.draws[1].ops == ("a", "b")
        journal.append(Draw(2))
        assert [d.index for d in journal.admitted()] == [1, 2]
        assert [d.index for d in journal.admitted(below=2)] == [1]
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 3
    with pytest.raises(SettingsError, match="begun with seed = 0, not 1"):
        Journal(tmp_path, {"seed": 1})


def test_the_split_depends_on_the_combination_alone() -> None:
    names = [f"a{i} + b" for i in range(3000)]
    parts = [split_of(name) for name in names]
    assert parts == [split_of(name) for name in names]
    assert 230 < parts.count("held_out") < 370 and 230 < parts.count("validation") < 370


class Killed(Exception):
    pass


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crew that answers at once, out of order, and finds every third candidate too slow."""

    class Quick:
        def __init__(self, place: Any, workers: int) -> None:
            self.jobs: list[int] = []

        def __enter__(self) -> Quick:
            return self

        def __exit__(self, *_: object) -> None: ...

        @property
        def idle(self) -> int:
            return 3 - len(self.jobs)

        def give(self, index: int, problem: Problem) -> None:
            self.jobs.append(index)

        def outcomes(self, timeout_s: float = 0.0) -> Any:
            index = self.jobs.pop(len(self.jobs) // 2)
            rejected = "time" if index % 3 == 0 else ""
            yield index, filters.Outcome(rejected, "", 1.0, {"time": 0.1})

    monkeypatch.setattr(run, "Crew", Quick)
    monkeypatch.setattr(run, "crawl", seeds)


@cache
def seeds() -> list[Seed]:
    return crawl()


def test_killed_and_run_again_gives_the_same(tmp_path: Path, quick: None) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `data`)")

    def options(name: str, count: int = 20) -> run.Options:
        return run.Options(count, tmp_path / name, suites=("ours",), workers=1)

    report = run.synthesize(options("whole"))
    assert report["complete"] and report["admitted"] == 20

    def stop(now: run.Progress) -> None:
        if now.passed == 7:
            raise Killed

    with pytest.raises(Killed):
        run.synthesize(options("halves"), stop)
    run.synthesize(options("halves", 12))
    run.synthesize(options("halves"))
    for name in ("problems.parquet", "split.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halves" / name).read_bytes()
    packed = (tmp_path / "halves/problems.parquet").read_bytes()
    (tmp_path / "halves/problems.parquet").unlink()
    assert main(["synthesize", "--pack", "--out", str(tmp_path / "halves")]) == 0
    assert (tmp_path / "halves/problems.parquet").read_bytes() == packed
    files = sorted(p.name for p in (tmp_path / "halves/problems").iterdir())
    assert len(files) == 20 == len(list(dataset_problems(tmp_path / "halves/problems.parquet")))
    split = json.loads((tmp_path / "whole/split.json").read_text())
    assert sum(map(len, split.values())) == 20
    counts = {name: entry["count"] for name, entry in report["rejected"].items()}
    assert report["draws"] == sum(counts.values()) + report["passed"] and counts["time"] > 0


@pytest.mark.compiler
@pytest.mark.slow
def test_a_data_set_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `data`)")
    out = tmp_path / "set"
    wanted = ["synthesize", "--count", "3", "--out", str(out), "--target", "cpu", "--workers", "1"]
    assert main([*wanted, "--suite-to-avoid", "ours", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["admitted"] == 3 and report["complete"]
    for problem in dataset_problems(out / "problems.parquet"):
        instance = materialize(problem, "cpu")
        assert probe(instance) == []
    assert load_problem(f"{out}/problems.parquet#2").dtype == instance.problem.dtype


def test_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["synthesize", "--out", str(tmp_path / "x"), "--target", "cpu", "--count"]
    for options, message in (
        (["0"], "--count 0"), (["5", "--max-ops", "6"], "--max-ops 6"),
        (["5", "--workers", "0"], "--workers 0"),
        (["5", "--suite-to-avoid", str(tmp_path)], "no problem files"),
    ):
        assert main([*start, *options]) == 2
        captured = capsys.readouterr().err.strip().splitlines()
        assert len(captured) == 1 and message in captured[0]
    assert main(start[:-1]) == 2 and "--count N is missing" in capsys.readouterr().err
    assert main(["synthesize", "--pack", "--out", str(tmp_path / "x")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
