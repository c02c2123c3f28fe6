"""Draws that passed -> problem files, one Parquet file, a split and a report."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.problems.dataset import pyarrow_parquet
from cuda_agent.store import write_file
from cuda_agent.synthesis.filters import FILTERS
from cuda_agent.synthesis.journal import JOURNAL, Draw
from cuda_agent.synthesis.seeds import short

PARQUET = "problems.parquet"
SPLITS = ("held_out", "validation", "train")
_NAME = re.compile(r"\d{6}_\w+\.py")


def split_of(combination: str) -> str:
    """One tenth of all operator combinations is held out, one tenth is for validation.

    The hash of the combination decides, so that a problem's part does not depend on the others.
    """
    part = int(hashlib.sha256(combination.encode()).hexdigest(), 16) % 10
    return SPLITS[min(part, 2)]


def publish(
    folder: Path, draws: Sequence[Draw], report: Mapping[str, Any], *, parquet: bool = True
) -> None:
    """Writes problems/*.py, problems.parquet, split.json and report.json under `folder`."""
    _write_files(folder / "problems", draws)
    if parquet:
        _write_parquet(folder / PARQUET, draws)
    split: dict[str, list[str]] = {name: [] for name in reversed(SPLITS)}
    for draw in draws:
        split[split_of(draw.combination)].append(draw.name)
    write_file(folder / "split.json", json.dumps(split, indent=1).encode())
    write_file(folder / "report.json", json.dumps(report, indent=1).encode())


def pack(folder: Path) -> int:
    """Writes the Parquet file of a folder that has all the rest; returns the number of rows.

    Raises: SettingsError where the folder was not written by `synthesize`; ProblemError without
    pyarrow.
    """
    try:
        split = json.loads((folder / "split.json").read_text(encoding="utf-8"))
        lines = (folder / JOURNAL).read_bytes().splitlines()
    except OSError as error:
        raise SettingsError(
            f"{error.filename} cannot be read ({error.strerror}); give a folder that "
            "`cuda-agent synthesize` has written."
        ) from error
    names = {name for part in split.values() for name in part}
    draws = [d for d in map(Draw.from_json, map(json.loads, lines)) if d.name in names]
    _write_parquet(folder / PARQUET, sorted(draws, key=lambda d: d.index))
    return len(draws)


def _write_files(folder: Path, draws: Sequence[Draw]) -> None:
    folder.mkdir(exist_ok=True)
    wanted = {f"{d.index:06d}_{'_'.join(map(short, d.ops))}.py": d.code for d in draws}
    for old in folder.iterdir():
        if _NAME.fullmatch(old.name) and old.name not in wanted:
            old.unlink()
    for name, code in wanted.items():
        (folder / name).write_text(code, encoding="utf-8")


def _write_parquet(path: Path, draws: Sequence[Draw]) -> None:
    parquet = pyarrow_parquet(path)
    import pyarrow as pa

    columns = {
        "ops": [json.dumps(d.ops) for d in draws],
        "data_source": [d.name for d in draws],
        "code": [d.code for d in draws],
    }
    table = pa.table(columns, pa.schema([(name, pa.string()) for name in columns]))
    partial = path.with_suffix(".partial")
    parquet.write_table(table, partial, compression="zstd", compression_level=19)
    partial.replace(path)


def summary(draws: Mapping[int, Draw], admitted: Sequence[Draw]) -> dict[str, Any]:
    """Rejections by filter, seconds by filter, and what the admitted problems are like."""
    made = [draws[i] for i in sorted(draws)]
    rejected = Counter(d.rejected for d in made)
    seconds: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for draw in made:
        seconds.update(draw.seconds)
        runs.update(list(draw.seconds))
    times = sorted(d.eager_ms for d in admitted if d.eager_ms is not None)
    return {
        "draws": len(made),
        "passed": rejected[""],
        "admitted": len(admitted),
        "rejected": {
            name: {"count": rejected[name], "because": why} for name, why in FILTERS.items()
        },
        "seconds_per_candidate": {n: round(seconds[n] / runs[n], 4) for n in seconds},
        "operators": dict(sorted(Counter(len(d.ops) for d in admitted).items())),
        "distinct_operators": len({short(op) for d in admitted for op in d.ops}),
        "combinations": len({d.combination for d in admitted}),
        "structures": dict(Counter(d.structure for d in admitted).most_common()),
        "layouts": dict(Counter(d.layout for d in admitted).most_common()),
        "dtypes": dict(Counter(d.dtype for d in admitted).most_common()),
        "eager_ms": _quantiles(times),
        "similarity": _quantiles(sorted(d.similarity for d in admitted)),
        "split": dict(Counter(split_of(d.combination) for d in admitted)),
    }


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    at = {"min": 0.0, "p10": 0.1, "median": 0.5, "p90": 0.9, "max": 1.0}
    return {name: values[round(q * (len(values) - 1))] for name, q in at.items()}
