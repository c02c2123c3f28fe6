"""Bad input: exit status 2, one clear sentence on standard error, nothing on standard output."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_fakes import PROBLEM_TEXT, Workers

from cuda_agent import targets
from cuda_agent.cli import main
from cuda_agent.cli.optimize import folder_name

HEAD = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n"
INPUTS = "\n\ndef get_inputs():\n    return [torch.randn(4, 8)]\n"

CASES = {
    "syntax": ("def forward(:\n", "line 1"),
    "no_model": (PROBLEM_TEXT.replace("class Model(", "class Modell("), "`Model`"),
    "no_inputs": (HEAD + "        return x * 2\n", "get_inputs"),
    "inputs_raise": (
        HEAD + "        return x * 2\n" + INPUTS.replace("return", "raise OSError('gone') or"),
        "gone",
    ),
    "forward_raises": (HEAD + "        raise ValueError('no way')\n" + INPUTS, "no way"),
    "no_tensor": (HEAD + "        return 'text'\n" + INPUTS, "forward returned `str`"),
    "random": (HEAD + "        return x + torch.rand_like(x)\n" + INPUTS, "P-random"),
    "constant": (HEAD + "        return torch.ones_like(x)\n" + INPUTS, "P-constant"),
    "zeros": (HEAD + "        return x * 0\n" + INPUTS, "P-zeros"),
    "too_large": (
        HEAD + "        return x * 2\n" + INPUTS.replace("4, 8", "1 << 30, 1 << 14"), "GB",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_problems_that_cannot_be_judged(
    case: str, workers: Workers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = CASES[case]
    path = tmp_path / f"{case}.py"
    path.write_text(text)
    assert main(["optimize", str(path), "--target", "cpu", "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("cuda-agent: ") and message in lines[0]
    assert workers.judged == [] and not Path("runs").exists()


def test_missing_file(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["optimize", "no.py"], ["evaluate", "no.py", "candidate"]):
        assert main([*verb, "--target", "cpu"]) == 2
        assert "There is no problem file no.py" in capsys.readouterr().err


def test_class_without_inputs(workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "torch.nn:GELU", "--target", "cpu"]) == 2
    assert '--inputs "randn(8,512,1024)"' in capsys.readouterr().err


def test_target_that_is_absent(
    workers: Workers, problem: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(targets.get("cuda"), "unavailable", lambda: "no NVIDIA driver; install it")
    assert main(["optimize", str(problem), "--target", "cuda"]) == 2
    assert "target cuda is not available: no NVIDIA driver; install it" in capsys.readouterr().err


def test_no_compiler(
    workers: Workers, problem: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(targets.get("cuda"), "unavailable", lambda: "no NVIDIA driver")
    monkeypatch.setattr(targets.get("cpu"), "unavailable", lambda: "no C++ compiler; install g++")
    assert main(["optimize", str(problem)]) == 2
    assert "no C++ compiler; install g++" in capsys.readouterr().err


def test_candidate_that_is_absent_or_empty(
    workers: Workers, problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(problem), "nowhere", "--target", "cpu"]) == 2
    assert "There is no candidate nowhere" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["evaluate", str(problem), "empty", "--target", "cpu"]) == 2
    assert "ModelNew" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [], ["optimise"], ["optimize", "x.py", "--target", "tpu"],
        ["optimize", "x.py", "--dtype", "int8"], ["optimize", "x.py", "--budget", "many"],
        ["evaluate", "x.py"], ["evaluate", "x.py", "y", "--tier", "best"],
    ],
)
def test_usage_errors_are_status_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().out == ""


def test_help_names_every_verb_and_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0 and "exit status" in out
    assert all(verb in out for verb in ("optimize", "evaluate", "report", "doctor"))


def test_a_row_of_a_data_set_gets_a_folder_of_plain_letters() -> None:
    assert folder_name("torch#12") == "torch_12"
    assert folder_name("../../etc") == "_.._etc"
    assert folder_name("...") == "problem"
