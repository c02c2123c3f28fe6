"""`cuda-agent optimize` on a made-up judge: exit status, JSON, solution folder, resume, Ctrl-C."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import Workers

from cuda_agent.agents import solution as solution_module
from cuda_agent.cli import main
from cuda_agent.records import Verdict
from cuda_agent.store import Store

RUN = ["--target", "cpu", "--budget", "8"]


def call(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, Any], str]:
    """(exit status, the JSON document, standard error)"""
    status = main([*argv, "--json"])
    captured = capsys.readouterr()
    return status, json.loads(captured.out), captured.err


def test_a_faster_solution_is_written_and_shown(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", "scaled_gelu.py", *RUN]) == 0
    captured = capsys.readouterr()
    folder = Path("solutions/scaled_gelu")
    written = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert written == {
        "model_new.py", "reference.py", "kernels/r0.cpp", "runtime.py", "runtime_gemm.py",
        "verdict.json", "report.html",
    }
    assert [p.name for p in folder.parent.iterdir()] == ["scaled_gelu"]
    verdict = Verdict.from_json(json.loads((folder / "verdict.json").read_text()))
    assert verdict.ok and verdict.tier == "audit"
    assert (folder / "reference.py").read_text() == problem.read_text()
    out = captured.out
    assert "solutions/scaled_gelu" in out and "PyTorch eager" in out and "torch.compile" in out
    assert "1.2e-07 against float64 eager" in out and "normalization" in out
    assert "vector=" in out and "95% interval" in out
    assert "evaluation 1/8" in captured.err and "best" in captured.err and "left" in captured.err


def test_json_is_one_document_on_standard_output(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem.write_text(problem.read_text() + '\nprint("hello from the problem")\n')
    status, document, progress = call(capsys, "optimize", str(problem), *RUN, "--out", "mine")
    assert status == 0 and set(document) == {"verdict", "solution", "run", "evaluations"}
    assert document["solution"] == "mine" and 0 < document["evaluations"] <= 8
    assert Verdict.from_json(document["verdict"]).ok
    assert "hello from the problem" in progress and document["run"] in progress


def test_exit_1_when_nothing_is_faster_but_the_best_correct_is_written(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers.options = {"screen": {"factor": 3.0}, "audit": {"factor": 3.0}}
    assert main(["optimize", str(problem), *RUN]) == 1
    assert "no solution faster" in capsys.readouterr().out
    assert Path("solutions/scaled_gelu/model_new.py").exists()


def test_exit_1_when_nothing_is_correct(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers.options["screen"] = {"failing": ("vector", "torch")}
    status, document, _ = call(capsys, "optimize", str(problem), *RUN)
    assert status == 1 and document["solution"] is None
    assert document["verdict"]["status"] == "wrong" and not Path("solutions").exists()
    assert main(["optimize", str(problem), *RUN]) == 1
    assert "no correct solution in 8 evaluations" in capsys.readouterr().out


def test_ctrl_c_keeps_the_best_and_the_run_is_resumable(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers.options["screen"] = {"interrupt_at": 4}
    status, document, progress = call(capsys, "optimize", str(problem), *RUN)
    assert status == 130 and f"--resume {document['run']}" in progress
    assert document["verdict"]["tier"] == "screen" and document["evaluations"] == 4
    assert Path("solutions/scaled_gelu/model_new.py").exists()
    assert not Store("runs").run(document["run"]).finished

    workers.options["screen"] = {}
    status, resumed, _ = call(capsys, "optimize", "--resume", document["run"])
    assert status == 0 and resumed["run"] == document["run"]
    assert resumed["verdict"]["tier"] == "audit" and resumed["evaluations"] > 4
    assert len(set(workers.judged)) == len(workers.judged)
    assert Store("runs").run(document["run"]).finished

    before = len(workers.judged)
    status, again, _ = call(capsys, "optimize", "--resume", document["run"], "--out", "other")
    assert status == 0 and again["verdict"] == resumed["verdict"]
    assert len(workers.judged) == before and Path("other/model_new.py").exists()


def test_ctrl_c_outside_the_search_is_130_without_a_traceback(
    workers: Workers, problem: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cuda_agent.cli.optimize.materialize", stop)
    assert main(["optimize", str(problem), *RUN]) == 130
    assert capsys.readouterr().err.strip() == "cuda-agent: interrupted"


def test_full_disk_while_writing_keeps_the_old_solution(
    workers: Workers, problem: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["optimize", str(problem), *RUN]) == 0
    folder = Path("solutions/scaled_gelu")
    old = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    capsys.readouterr()

    def full(path: Path, data: bytes) -> None:
        if path.name == "runtime.py":
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(solution_module, "write_file", full)
        assert main(["optimize", str(problem), *RUN]) == 2
    err = capsys.readouterr().err
    assert "No space left on device" in err and "is kept" in err and "Traceback" not in err
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == old
    assert [p.name for p in folder.parent.iterdir()] == ["scaled_gelu"]
    run_id = err.split("--resume ")[1].split()[0]
    assert main(["optimize", "--resume", run_id]) == 0


def test_a_folder_that_is_no_solution_is_not_replaced(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("precious").mkdir()
    Path("precious/thesis.tex").write_text("x")
    assert main(["optimize", str(problem), *RUN, "--out", "precious"]) == 2
    assert "not a solution that may be replaced" in capsys.readouterr().err
    assert main(["optimize", str(problem), *RUN, "--out", str(problem)]) == 2
    assert "is a file" in capsys.readouterr().err
    assert workers.judged == [] and Path("precious/thesis.tex").exists()


def test_runs_folder_by_option_and_by_environment(
    workers: Workers, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["optimize", str(problem), *RUN, "--runs", "here"]) == 0
    assert len(Store("here").runs()) == 1 and not Path("runs").exists()
    monkeypatch.setenv("CUDA_AGENT_RUNS", "there")
    assert main(["optimize", str(problem), *RUN]) == 0
    assert len(Store("there").runs()) == 1


def test_resume_refuses_what_contradicts_the_run(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, document, _ = call(capsys, "optimize", str(problem), *RUN)
    resume = ["optimize", "--resume", document["run"]]
    for extra, message in (
        (["--precision", "matched"], "was started with --precision strict, not matched"),
        (["--seed", "4"], "--seed 0, not 4"),
    ):
        assert main([*resume, *extra]) == 2
        assert message in capsys.readouterr().err
    problem.write_text(problem.read_text().replace("gelu", "silu"))
    assert main([*resume, str(problem)]) == 2
    assert "not, or no longer, the problem of run" in capsys.readouterr().err
    assert main(["optimize", "--resume", "nonsense"]) == 2
    assert f"the newest are {document['run']}" in capsys.readouterr().err


def test_a_class_with_inputs(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    status, document, _ = call(
        capsys, "optimize", "torch.nn:LayerNorm(16)", "--inputs", "randn(4, 16)", *RUN
    )
    assert status == 0 and document["solution"] == "solutions/LayerNorm"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["optimize"], "name a PROBLEM"),
        (["optimize", "PROBLEM", "--budget", "0"], "at least 1 evaluation"),
        (["optimize", "PROBLEM", "--minutes", "0"], "above 0"),
        (["optimize", "PROBLEM", "--policy", "genius"], "no policy 'genius'"),
    ],
)
def test_options_that_cannot_be(
    workers: Workers, problem: Path, capsys: pytest.CaptureFixture[str],
    argv: list[str], message: str,
) -> None:
    assert main([str(problem) if a == "PROBLEM" else a for a in argv]) == 2
    assert message in capsys.readouterr().err
