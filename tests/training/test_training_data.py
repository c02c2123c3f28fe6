"""The recorded tables in this repository: whole, readable, and of this version's spaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.training.recorded import RecordedSource, load_recorded
from cuda_agent.training.table import Table

DATA = Path(__file__).parents[2] / "data"
TABLES = sorted(DATA.glob("recorded-*/*.jsonl.gz"))


def test_there_are_some() -> None:
    assert TABLES


@pytest.mark.parametrize("path", TABLES, ids=lambda p: p.parent.name)
def test_a_recorded_table(path: Path) -> None:
    table = Table.load(path)
    assert path.with_name("README.md").exists() and table.about["command"].startswith("cuda-agent")
    assert path.stat().st_size < 8 << 20
    source = RecordedSource(table, name=str(path))
    problems = load_recorded(table, path, [str(path)])
    held_out = {p.problem.hash for p in load_recorded(table, path, [f"{path}#held-out"])}
    train = {p.problem.hash for p in load_recorded(table, path, [f"{path}#train"])}
    assert not held_out & train and len(held_out | train) == len(problems)
    assert 0.15 < len(held_out) / len(problems) < 0.45
    for made in problems:
        assert "/" not in made.problem.origin  # no folder of the machine that it was made on
        best = source.best(made)
        assert best is not None and best[1].speedup["compile_default"] is not None
        assert source.verdict(made, made.space.at(len(made.space) - 1)).status != "harness_error"
