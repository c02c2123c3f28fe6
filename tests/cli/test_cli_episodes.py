"""Episodes and skills for others: listed, exported, read by those who shall read them."""

from __future__ import annotations

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from cli_fakes import Workers
from toolbox_cases import MODEL_NEW, TextWorker

from cuda_agent import cli
from cuda_agent.agents import optimize as optimize_module
from cuda_agent.agents.transcript import Answered, ChatTurn, Heading, Transcript
from cuda_agent.policies.chat import Call, Reply
from cuda_agent.training import episodes as training_episodes


@pytest.fixture(autouse=True)
def readers(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(problem: Any, instance: Any, settings: Any, **_: Any) -> TextWorker:
        return TextWorker(problem, settings.tier)

    monkeypatch.setattr(optimize_module, "InlineWorker", make)


@pytest.fixture
def searched(problem: Path) -> Path:
    command = ["optimize", str(problem), "--target", "cpu", "--budget", "3"]
    assert cli.main([*command, "--policy", "random", "--out", "a"]) in (0, 1)
    return problem


@pytest.fixture
def spoken(problem: Path, tmp_path: Path) -> Path:
    """An episode of a chat model, from a script."""
    script = Transcript.begin(
        tmp_path / "script.jsonl", Heading("s", {}, "m", "tools", (), ())
    )
    text = MODEL_NEW.format(ms=0.5)
    for name, arguments in (
        ("write", {"path": "model_new.py", "text": text}), ("profile", {}),
        ("apply_plan", {"plan": {}}), ("submit", {}),
    ):
        reply = Reply(f"I {name}.", calls=(Call("1", name, arguments),), finish="stop")
        script.add(ChatTurn(reply, (Answered("1", name, arguments, "ok", ""),)))
    command = ["optimize", str(problem), "--target", "cpu", "--out", "b"]
    assert cli.main([*command, "--policy", f"scripted:{script.path}"]) in (0, 1)
    return problem


def out_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


def test_episodes_are_listed(
    searched: Path, spoken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(out_of(capsys, "episodes", "list", "--json"))["episodes"]
    assert [one["turns"] for one in found] == [3, 4]
    assert found[1]["speedup"] == 2.0 and found[1]["policy"].startswith("scripted:")
    assert found[0]["id"] in out_of(capsys, "episodes", "list")


def test_plans_are_what_the_training_stages_read(
    searched: Path, spoken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(x) for x in out_of(capsys, "episodes", "export").splitlines()]
    assert [len(line["steps"]) for line in lines] == [3, 1] and all(x["submitted"] for x in lines)
    for line in lines:
        for step in line["steps"]:
            read = training_episodes._step(step)
            assert read.plan is not None and read.verdict is not None and read.status == "ok"
    packed = ["--out", "x/plans.jsonl.gz", "--min-speedup", "1.9"]
    assert cli.main(["episodes", "export", *packed]) == 0
    with gzip.open("x/plans.jsonl.gz", "rt") as file:
        assert all(json.loads(line) in lines for line in file)


def test_conversations_are_exported_whole(
    searched: Path, spoken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = out_of(capsys, "episodes", "export", "--format", "chat").splitlines()
    assert len(lines) == 1
    one = json.loads(lines[0])
    roles = [m["role"] for m in one["messages"]]
    assert roles == ["system", "user", *["assistant", "tool"] * 4]
    assert one["speedup"] == 2.0 and one["ended"] == "submitted"
    assert "profile" in {t["function"]["name"] for t in one["tools"]}
    called = {c["id"] for m in one["messages"] for c in m.get("tool_calls", ())}
    assert called == {m["tool_call_id"] for m in one["messages"] if m["role"] == "tool"}


@pytest.mark.parametrize("which", [0, 1])
def test_a_transcript_is_replayed(
    searched: Path, spoken: Path, capsys: pytest.CaptureFixture[str], which: int
) -> None:
    """Also one of a policy that does not speak."""
    found = json.loads(out_of(capsys, "episodes", "list", "--json"))["episodes"][which]
    command = ["episodes", "export", found["id"], "--format", "transcript", "--out", "t.jsonl"]
    assert cli.main(command) == 0
    again = ["optimize", str(searched), "--target", "cpu", "--policy", "scripted:t.jsonl"]
    assert cli.main([*again, "--out", "c", "--json"]) in (0, 1)
    listed = json.loads(out_of(capsys, "episodes", "list", "--json"))["episodes"]
    assert listed[-1]["speedup"] == found["speedup"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no run 'nothing'"),
        (["--format", "transcript"], "a transcript holds one episode"),
        (["--format", "chat"], "can be written as 'chat'"),
    ],
)
def test_what_cannot_be_exported_is_said(
    problem: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert cli.main(["episodes", "export", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_skills_are_exported_as_other_agents_load_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["skills", "export", str(tmp_path / "out")]) == 0
    folders = sorted(p.parent.name for p in (tmp_path / "out").glob("*/SKILL.md"))
    wanted = {"cuda-agent", "softmax", "pointwise", "hopper", "ampere", "cpu-x86", "debugging"}
    assert wanted <= set(folders)
    for folder in folders:
        text = (tmp_path / "out" / folder / "SKILL.md").read_text()
        match = re.match(r"---\nname: ([a-z0-9_-]{1,64})\ndescription: (.+)\n---\n", text)
        assert match and match[1] == folder and 20 < len(match[2]) <= 1024, folder
    out = out_of(capsys, "skills", "list")
    assert "softmax" in out and "hopper" in out
    (tmp_path / "file").write_text("")
    assert cli.main(["skills", "export", str(tmp_path / "file")]) == 2
