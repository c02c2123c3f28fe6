"""`optimize --policy endpoint` before the real judge: a kernel that a model wrote, on this CPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install '.[agent]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))

from chat_server import call, serving

from cuda_agent import cli

pytestmark = pytest.mark.compiler

PROBLEM = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x) + 0.5 * x

def get_inputs():
    return [torch.randn(512, 1024)]
"""
KERNEL = """#include <cstdint>
extern "C" void act(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) { float v = x[i]; y[i] = v > 0 ? 1.5f * v : 0.5f * v; }
}
"""


def model_new() -> str:
    """As the guide teaches it, with a C++ kernel."""
    from cuda_agent.skills.reading import documents

    text = documents()["cuda-agent"].text.split("```python\n")[1].split("```")[0]
    before, _, after = text.partition("        kernels.scale(")
    return f"{before}        kernels.act(x, out, x.numel())\n{after.partition(chr(10))[2]}"


def test_a_model_writes_a_kernel_and_it_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "relu.py").write_text(PROBLEM)
    broken = KERNEL.replace("1.5f", "1.4f")
    script = [
        call("write", path="kernels/act.cpp", text=KERNEL.replace("float v", "flot v")),
        call("write", path="model_new.py", text=model_new()), call("compile"),
        call("write", path="kernels/act.cpp", text=broken), call("verify"),
        call("write", path="kernels/act.cpp", text=KERNEL), call("profile"), call("submit"),
    ]
    with serving(*script) as at:
        status = cli.main(
            ["optimize", "relu.py", "--target", "cpu", "--policy", "endpoint", "--model", "m",
             "--base-url", at.url, "--baselines", "eager", "--audit-seconds", "0.5", "--json"]
        )  # fmt: skip
        said = str(at.requests[-1]["messages"])
    document = json.loads(capsys.readouterr().out)
    assert status in (0, 1) and document["verdict"]["status"] == "ok", document["verdict"]
    assert document["verdict"]["tier"] == "audit" and document["verdict"]["external_ops"] == []
    assert Path(document["solution"], "kernels", "act.cpp").read_text() == KERNEL
    for part in ("compile_error", "flot", "wrong\\n", "x eager"):
        assert part in said, part
    assert Path(document["solution"], "episode.html").exists()
