"""Data sets: one Parquet file with the published columns, a problem in each row.

`ops` lists the operators, `data_source` names the row ("torch#12") and `code` is the text of a
KernelBench-format file. CUDA-Agent-Ops-6K and what `cuda-agent synthesize` writes look like this.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cuda_agent.errors import ProblemError
from cuda_agent.problems.execute import declared_dtype, parse
from cuda_agent.records import Problem

COLUMNS = ("ops", "data_source", "code")
_ROW = re.compile(r"(?P<file>.+\.parquet)(?:[#:](?P<row>\d+))?", re.S)


def is_dataset(spec: str) -> bool:
    """Whether `spec` names a Parquet file, or one of its rows: `ops.parquet#12`."""
    return _ROW.fullmatch(spec.strip()) is not None


def dataset_problems(path: str | os.PathLike[str], dtype: str | None = None) -> Iterator[Problem]:
    """Every problem of a Parquet file, in order; their texts parse, but nothing is executed.

    Args:
        dtype: instead of the one that a text declares (`DTYPE = "bfloat16"`), or float32.
    Raises: ProblemError for a file that cannot be read, and for a row without a text that parses.
    """
    for row, data in enumerate(_read(Path(path))):
        yield _problem(Path(path), row, data, dtype)


def dataset_problem(spec: str, dtype: str | None = None) -> Problem:
    """The problem of one row, counted from 0: `ops.parquet#12` or `ops.parquet:12`.

    Raises: ProblemError.
    """
    match = _ROW.fullmatch(spec.strip())
    assert match is not None, spec
    path = Path(match["file"])
    rows = _read(path)
    if match["row"] is None:
        raise ProblemError(
            f"{path} is a data set of {len(rows)} problems; name one row, as in {path}#0."
        )
    row = int(match["row"])
    if row >= len(rows):
        raise ProblemError(f"{path} has no row {row}; its rows are 0 to {len(rows) - 1}.")
    return _problem(path, row, rows[row], dtype)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        raise ProblemError(f"There is no data set {path}; check the path.")
    parquet = pyarrow_parquet(path)
    try:
        file = parquet.ParquetFile(path)
        names = file.schema_arrow.names
        rows: list[dict[str, Any]] = file.read([n for n in COLUMNS if n in names]).to_pylist()
    except (OSError, ValueError) as error:
        raise ProblemError(f"{path} cannot be read as Parquet: {error}.") from error
    if "code" not in names:
        raise ProblemError(
            f"{path} has no column `code` with the problems' texts (its columns: "
            f"{', '.join(names)}); give a file with the columns {', '.join(COLUMNS)}."
        )
    return rows


def pyarrow_parquet(path: Path) -> Any:
    """The module pyarrow.parquet. Raises ProblemError where it is not installed."""
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ProblemError(
            f"{path} is a Parquet file, which needs pyarrow; pip install 'cuda-agent[data]'."
        ) from error
    return parquet


def _problem(path: Path, row: int, data: dict[str, Any], dtype: str | None) -> Problem:
    origin = f"{path}#{row}"
    code = data["code"]
    if not isinstance(code, str):
        raise ProblemError(f"{origin}: the column `code` holds no text; give the row a problem.")
    tree = parse(code, origin)
    name = str(data.get("data_source") or f"{path.stem}-{row}")
    return Problem(name, code, origin, dtype or declared_dtype(tree, origin))
