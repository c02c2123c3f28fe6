"""A language model's work on a GPU, from a script: no endpoint and no client is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cuda_agent import cli
from cuda_agent.agents.tools.folder import Folder
from cuda_agent.agents.tools.shell import Shell
from cuda_agent.agents.transcript import Answered, ChatTurn, Heading, Transcript
from cuda_agent.evaluation import sandbox
from cuda_agent.policies.chat import Call, Reply
from cuda_agent.skills.reading import documents

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return 2.0 * x

def get_inputs():
    return [torch.randn(4096, 4096)]
"""


def test_the_guides_own_example_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "double.py").write_text(PROBLEM)
    guide = documents()["cuda-agent"].text
    python, cuda = (guide.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "cuda"))
    script = Transcript.begin(tmp_path / "s.jsonl", Heading("s", {}, "m", "tools", (), ()))
    for name, arguments in (
        ("write", {"path": "kernels/scale.cu", "text": cuda}),
        ("write", {"path": "model_new.py", "text": python}),
        ("compile", {}), ("profile", {"counters": True}), ("submit", {}),
    ):
        reply = Reply(calls=(Call("1", name, arguments),), finish="stop")
        script.add(ChatTurn(reply, (Answered("1", name, arguments, "ok", ""),)))
    status = cli.main(
        ["optimize", "double.py", "--target", "cuda", "--policy", f"scripted:{script.path}",
         "--baselines", "eager", "--audit-seconds", "1", "--json"]
    )  # fmt: skip
    document = json.loads(capsys.readouterr().out)
    assert status in (0, 1) and document["verdict"]["status"] == "ok", document["verdict"]
    assert [k["name"] for k in document["verdict"]["kernels"]] == ["scale"]
    played = Transcript.load(next((tmp_path / "runs/transcripts").glob("*.jsonl")))
    said = {a.name: a.text for turn in played.turns for a in turn.answers}
    assert "kernel scale: " in said["compile"] and "registers" in said["compile"]
    assert "x eager" in said["profile"] and "counters: " in said["profile"]


def test_the_shell_reaches_the_gpu(tmp_path: Path) -> None:
    walls = sandbox.probe()
    if not all(text.startswith("works") for text in walls.values()):
        pytest.skip(str(walls))
    shell = Shell(Folder(tmp_path))
    try:
        code = "import torch; print(torch.full((4,), 2.0, device='cuda').sum().item())"
        ran = shell.run(f'python -c "{code}"', timeout_s=120)
        assert ran.text.strip().endswith("8.0"), ran
    finally:
        shell.close()
