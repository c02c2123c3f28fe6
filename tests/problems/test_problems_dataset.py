"""Data sets: rows of a Parquet file are problems like any other."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.errors import ProblemError
from cuda_agent.problems import dataset_problems, load_problem, materialize

TEXT = """\
import torch
from torch import nn

DTYPE = "bfloat16"


class Model(nn.Module):
    def forward(self, x):
        return x * {}


def get_inputs():
    return [torch.randn(4, 8)]
"""


def write(path: Path, columns: dict[str, list[Any]]) -> str:
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `data`)")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table(columns), path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    texts = [TEXT.format(2), TEXT.format(3).replace("bfloat16", "float32"), TEXT.format(4)]
    return write(
        tmp_path / "ops.parquet",
        {"ops": ["['torch.mul']"] * 3, "data_source": ["torch#1", "torch#1", None], "code": texts},
    )


def refused(spec: str, **options: Any) -> str:
    with pytest.raises(ProblemError) as caught:
        load_problem(spec, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_row_is_a_problem(data: str) -> None:
    found = list(dataset_problems(data))
    assert [p.name for p in found] == ["torch#1", "torch#1", "ops-2"]
    assert [p.dtype for p in found] == ["bfloat16", "float32", "bfloat16"]
    assert [p.origin for p in found] == [f"{data}#{i}" for i in range(3)]
    assert {p.dtype for p in dataset_problems(data, "float16")} == {"float16"}


@pytest.mark.parametrize("sign", ["#", ":"])
def test_one_row_runs(data: str, sign: str) -> None:
    problem = load_problem(f"{data}{sign}2")
    instance = materialize(problem, "cpu")
    (x,) = instance.inputs(0)
    assert str(x.dtype) == "torch.bfloat16"
    assert (instance.reference((x,)) == x * 4).all()
    other = load_problem(f"{data}{sign}2", inputs="ones(2,3)", dtype="float32")
    assert materialize(other, "cpu").inputs(0)[0].shape == (2, 3)


def test_what_cannot_be_read(data: str, tmp_path: Path) -> None:
    assert "data set of 3 problems; name one row, as in" in refused(data)
    assert "has no row 3; its rows are 0 to 2." in refused(f"{data}#3")
    assert "There is no data set" in refused(str(tmp_path / "none.parquet"))
    (tmp_path / "text.parquet").write_text("no Parquet at all")
    assert "cannot be read as Parquet" in refused(f"{tmp_path}/text.parquet#0")
    bare = write(tmp_path / "bare.parquet", {"text": ["x"]})
    assert "no column `code`" in refused(f"{bare}#0")
    bad = write(tmp_path / "bad.parquet", {"code": ["x = 1\ndef (", None]})
    assert "bad.parquet#0, line 2" in refused(f"{bad}#0")
    assert "bad.parquet#1: the column `code` holds no text" in refused(f"{bad}#1")
    odd = write(tmp_path / "odd.parquet", {"code": [TEXT.replace("bfloat16", "float8")]})
    assert "line 4: there is no problem dtype `float8`" in refused(f"{odd}#0")


def test_pyarrow_is_asked_for(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'cuda-agent[data]'" in refused(f"{data}#0")
