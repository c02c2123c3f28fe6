"""`optimize --policy endpoint` from the command to the solution, over a real socket."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install '.[agent]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))
sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from chat_server import KEY, Behaviour, ChatServer, Say, call, fails, serving
from cli_fakes import Workers
from toolbox_cases import MODEL_NEW, TextWorker

from cuda_agent import cli
from cuda_agent.agents import optimize as optimize_module


def write(ms: Any) -> Say:
    return call("write", path="model_new.py", text=MODEL_NEW.format(ms=ms))


@pytest.fixture(autouse=True)
def readers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Workers:
    def make(problem: Any, instance: Any, settings: Any, **_: Any) -> TextWorker:
        workers.made.append(TextWorker(problem, settings.tier))
        return workers.made[-1]  # type: ignore[return-value]

    monkeypatch.setattr(optimize_module, "InlineWorker", make)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    return workers


def optimize(at: ChatServer, *arguments: object) -> int:
    return cli.main(
        ["optimize", *map(str, arguments), "--policy", "endpoint", "--model", "m",
         "--base-url", at.url, "--target", "cpu"]
    )  # fmt: skip


SCRIPT: list[Behaviour] = [
    write(0.5), call("profile"), write("wrong"), call("profile"), write(0.7), call("submit"),
]  # fmt: skip


def test_from_the_command_to_the_solution(
    problem: Path, readers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(*SCRIPT) as at:
        assert optimize(at, problem, "--json") == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["evaluations"] == 3 and document["verdict"]["tier"] == "audit"
    # The best anywhere wins, after an audit.
    assert "ms = 0.5" in Path(document["solution"], "model_new.py").read_text()
    assert [tier for tier, _ in readers.judged].count("audit") == 2
    assert "turn 2" in err and "best 2.00x eager" in err and KEY not in out + err
    page = Path(document["solution"], "report.html").read_text()
    assert KEY not in page and "1 / 0.5" not in page


def test_a_run_that_stopped_is_resumed(
    problem: Path, readers: Workers, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(*SCRIPT[:2]) as at:
        assert optimize(at, problem, "--turns", 2, "--json") == 0
    run = json.loads(capsys.readouterr().out)["run"]
    with serving(write(0.25), call("submit")) as at:
        command = ["optimize", "--resume", run, "--turns", "10", "--base-url", at.url, "--json"]
        assert cli.main(command) == 0
        assert len(at.requests) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["speedup"]["eager"]["value"] == 4.0
    assert cli.main(["optimize", "--resume", run, "--model", "other"]) == 2


def test_nothing_correct_is_said_so(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(write("wrong"), call("profile"), call("submit", give_up=True)) as at:
        assert optimize(at, problem) == 1
    out = capsys.readouterr().out
    assert "episode 0 ended: submitted" in out and "no correct solution in 1 evaluations" in out


def test_a_model_that_refuses_leaves_nothing_measured(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Say("", refusal="I cannot write kernels.")) as at:
        assert optimize(at, problem) == 1
    out = capsys.readouterr().out
    assert "no action in 3 replies: I cannot write kernels." in out
    assert "nothing was measured" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "endpoint"], "needs --model NAME"),
        (["--policy", "endpoint", "--model", "m", "--max-cost", "1"], "needs --prices FILE"),
        (["--policy", "endpoint", "--model", "m", "--turns", "0"], "turns is 0"),
        (["--policy", "endpoint", "--model", "m", "--base-url", "x"], "no address"),
        (["--samples", "2"], "--samples is for --policy endpoint"),
        (["--policy", "scripted:nothing.jsonl"], "nothing.jsonl cannot be read"),
        (["--policy", "nonsense"], "there is no policy 'nonsense'"),
    ],
)
def test_bad_options_are_one_sentence(
    problem: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["optimize", str(problem), "--target", "cpu", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_a_key_that_is_refused_is_bad_input(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(fails(401, f"bad key {KEY}")) as at:
        assert optimize(at, problem) == 2
    err = capsys.readouterr().err
    assert "the key was refused" in err and KEY not in err


def test_an_episode_is_replayed_by_the_command(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(*SCRIPT) as at:
        assert optimize(at, problem, "--runs", "first") == 0
    transcript = next(Path("first/transcripts").glob("*.jsonl"))
    capsys.readouterr()
    command = ["optimize", str(problem), "--target", "cpu", "--policy", f"scripted:{transcript}"]
    assert cli.main([*command, "--json", "--out", "again"]) == 0
    assert json.loads(capsys.readouterr().out)["evaluations"] == 3
    assert "ms = 0.5" in Path("again/model_new.py").read_text()
