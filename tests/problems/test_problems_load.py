"""Loading: every bad input is one sentence that names the file, the line and how to mend it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from cuda_agent.errors import ProblemError
from cuda_agent.problems import load_problem
from cuda_agent.problems.inputspec import input_expressions

GOOD = """\
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(4, 8)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a problem file into an empty current folder."""
    monkeypatch.chdir(tmp_path)

    def _write(text: str, name: str = "my.py") -> str:
        (tmp_path / name).write_text(text)
        return name

    return _write


def message(spec: str, **kwargs) -> str:
    with pytest.raises(ProblemError) as caught:
        load_problem(spec, **kwargs)
    text = str(caught.value)
    assert "\n" not in text, "one sentence, one line"
    assert text.endswith((".", "?"))
    return text


def test_good_file(write) -> None:
    problem = load_problem(write(GOOD), dtype="bfloat16")
    assert (problem.name, problem.origin, problem.dtype) == ("my", "my.py", "bfloat16")
    assert problem.source == GOOD and problem.kind == "file"


def test_missing_file(write) -> None:
    assert message("nothing/here.py") == (
        "There is no problem file nothing/here.py; give a KernelBench-format .py file, or "
        "package.module:Class with --inputs."
    )


def test_folder(write, tmp_path: Path) -> None:
    (tmp_path / "level1").mkdir()
    assert message("level1").startswith("level1 is a folder, not a problem file; give one .py file")


def test_binary_file(write, tmp_path: Path) -> None:
    (tmp_path / "weights.py").write_bytes(b"\x80\x81\xff")
    assert message("weights.py") == "weights.py is not UTF-8 text; give a Python (.py) file."


def test_syntax_error_names_line_and_text(write) -> None:
    text = message(write("import torch\n\ndef forward(x:\n    return x\n"))
    assert text.startswith("my.py, line 3: ") and "`def forward(x:`" in text


def test_no_model_suggests_the_module_that_is_there(write) -> None:
    text = message(write(GOOD.replace("class Model", "class Block")))
    assert text == (
        "my.py defines no class `Model`, the module to make faster; rename `Block` to it or give "
        "my.py:Block."
    )


def test_no_model_at_all(write) -> None:
    assert "defines no class `Model`" in message(write("x = 1\n"))
    assert "defines no class `Model`" in message(write("", "empty.py"))


def test_model_of_another_kind(write) -> None:
    text = message(write("class Model:\n    pass\ndef get_inputs():\n    return []\n"))
    assert text == "my.py: `Model` must be a class derived from torch.nn.Module."


def test_no_get_inputs(write) -> None:
    text = message(write(GOOD.replace("get_inputs()", "make_inputs()")))
    assert "my.py defines no function `get_inputs()`" in text and "--inputs" in text


def test_missing_package_is_named(write) -> None:
    text = message(write("import torch\nimport no_such_package_xyz.part\n" + GOOD))
    assert text.startswith("my.py, line 2: ModuleNotFoundError")
    assert "install `no_such_package_xyz` in this environment" in text


def test_file_that_raises_when_loaded(write) -> None:
    text = message(write(GOOD + "\nlimit = 1 // 0\n"))
    assert text.startswith("my.py, line 14: the file raised ZeroDivisionError")


def test_file_that_exits_when_loaded(write) -> None:
    assert "raised SystemExit" in message(write(GOOD + "\nraise SystemExit(3)\n"))


def test_unknown_dtype_and_size(write) -> None:
    name = write(GOOD)
    assert "no problem dtype `int8`" in message(name, dtype="int8")
    assert "no problem size `huge`" in message(name, size="huge")


def test_imports_beside_the_file_work_and_leave_sys_path_alone(write) -> None:
    write("FACTOR = 3\n", "helper_beside_problem.py")
    before = list(sys.path)
    load_problem(write("from helper_beside_problem import FACTOR\n" + GOOD))
    assert sys.path == before


def test_inputs_replace_those_of_a_file(write) -> None:
    problem = load_problem(write(GOOD), inputs="ones(2, 3)")
    assert problem.source.startswith(GOOD) and "torch.ones((2, 3))" in problem.source


def test_class_of_a_file(write) -> None:
    name = write("from torch import nn\nclass Block(nn.Linear):\n    pass\n")
    problem = load_problem(f"{name}:Block(8, 4, bias=False)", inputs="randn(2, 8)")
    assert problem.name == "Block" and "super().__init__(8, 4, bias=False)" in problem.source
    assert "no class `Blok` in my.py; did you mean `Block`?" in message(
        f"{name}:Blok", inputs="randn(2, 8)"
    )


def test_class_of_a_package() -> None:
    problem = load_problem("torch.nn:LayerNorm(16, eps=1e-6)", inputs="randn(4, 16)")
    assert problem.name == "LayerNorm" and problem.origin == "torch.nn:LayerNorm(16, eps=1e-6)"
    assert "from torch.nn import LayerNorm" in problem.source


@pytest.mark.parametrize(
    ("spec", "inputs", "expected"),
    [
        ("torch.nn:LayerNom(4)", "randn(4)", "no class `LayerNom` in torch.nn; did you mean"),
        ("no_such_module_xyz:A", "randn(4)", "there is no module `no_such_module_xyz`"),
        ("torch.nn:LayerNorm(4)", None, 'needs its inputs; add for example --inputs "randn'),
        ("torch.nn:LayerNorm(torch.int)", "randn(4)", "must be literals"),
        ("torch.nn.functional:relu", "randn(4)", "is not a class derived from torch.nn.Module"),
        ("torch.nn:ReLU", "", "No inputs were given"),
    ],
)
def test_bad_class_specs(spec: str, inputs: str | None, expected: str) -> None:
    assert expected in message(spec, inputs=inputs)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("randn(8,512,1024)", ["torch.randn((8, 512, 1024))"]),
        ("randn((8, 4))", ["torch.randn((8, 4))"]),
        ("torch.rand(2); 3.5; None", ["torch.rand((2,))", "3.5", "None"]),
        ("randint(0, 100, 8, 4)", ["torch.randint(0, 100, (8, 4))"]),
        ("randint(-5, 5, 8, dtype=int32)", ["torch.randint(-5, 5, (8,), dtype=torch.int32)"]),
        ("full(0.5, 2, 3)", ["torch.full((2, 3), 0.5)"]),
        ("full((2, 3), 0.5)", ["torch.full((2, 3), 0.5)"]),
        ("arange(16)", ["torch.arange(16)"]),
        ("mask(4, 4)", ["torch.rand((4, 4)) < 0.5"]),
        ("randn(8), randn(8)", ["torch.randn((8,))", "torch.randn((8,))"]),
        ("(randn(2), zeros(2))", ["torch.randn((2,))", "torch.zeros((2,))"]),
        ("[randn(2), zeros(2)]", ["[torch.randn((2,)), torch.zeros((2,))]"]),
        ("0.1 * randn(4, 2*8) - 1", ["0.1 * torch.randn((4, 2 * 8)) - 1"]),
        ("(1, 2)", ["(1, 2)"]),
        ("'mean'", ["'mean'"]),
        (["randn(2)", "ones(3)"], ["torch.randn((2,))", "torch.ones((3,))"]),
    ],
)
def test_input_expressions(spec: str | list[str], expected: list[str]) -> None:
    assert input_expressions(spec) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("randm(3)", "there is no input function `randm`"),
        ("randn(3", "it is not a Python expression"),
        ("randn()", "`randn` needs a shape"),
        ("randn(2.5)", "`2.5` is not a size"),
        ("randn(-1)", "`-1` is not a size"),
        ("randint(0, 10)", "`randint` is written randint(low, high, 8, 512)"),
        ("randn(3, dtype=quad)", "`dtype=quad` is not a dtype"),
        ("__import__('os').system('true')", "there is no input function"),
        ("open('x')", "there is no input function `open`"),
        ("x", "`x` is not a number or a known function"),
    ],
)
def test_bad_input_specs(spec: str, expected: str) -> None:
    with pytest.raises(ProblemError, match=re.escape(expected)) as caught:
        input_expressions(spec)
    assert spec in str(caught.value) and "for example" in str(caught.value)


def test_size_rewrites_one_line_and_changes_the_hash(write) -> None:
    text = 'SIZE = "gpu"\nSHAPES = {"gpu": 4096, "cpu": 4}\n' + GOOD.replace("4, 8", "SHAPES[SIZE]")
    name = write(text)
    plain, gpu, cpu = (load_problem(name, size=s) for s in (None, "gpu", "cpu"))
    assert plain.source == gpu.source == text and plain.hash == gpu.hash != cpu.hash
    assert cpu.source == text.replace('SIZE = "gpu"', 'SIZE = "cpu"')
    untouched = load_problem(write(GOOD, "other.py"), size="cpu")
    assert untouched.source == GOOD
