"""Folders of problems: our own suite, a KernelBench checkout, or any folder of problem files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from cuda_agent.errors import ProblemError

_LEVEL = re.compile(r"level(\d+)")


def own_suite() -> Path | None:
    """The folder `problems/` of a source checkout; None for an installed package without it."""
    folder = Path(__file__).resolve().parents[3] / "problems"
    return folder if (folder / "level1").is_dir() else None


def suite_problems(suite: str | Path = "ours", levels: Iterable[int] | None = None) -> list[Path]:
    """Problem files of a suite, sorted by level, then by number or name.

    Args:
        suite: "ours", or a folder: with `level1/ level2/ ...`, a KernelBench checkout (whose
            levels lie in `KernelBench/`), or a plain folder of problem files.
        levels: only these. A plain folder has none.
    Raises: ProblemError if there is no such folder, level or file.
    """
    root = own_suite() if suite == "ours" else Path(suite)
    if root is None:
        raise ProblemError(
            "The suite `ours` lies in problems/ of a source checkout, which is not here; clone the "
            "repository or give a folder of problem files."
        )
    if not root.is_dir():
        raise ProblemError(f"There is no suite folder {root}; give `ours` or a folder of problems.")
    if not _levels(root) and _levels(root / "KernelBench"):
        root = root / "KernelBench"
    folders = _levels(root)
    if not folders:
        if levels is not None:
            raise ProblemError(
                f"{root} has no level folders (level1, level2, ...); leave out levels."
            )
        return _files(root)
    wanted = sorted(folders) if levels is None else sorted(set(levels))
    if missing := [level for level in wanted if level not in folders]:
        raise ProblemError(
            f"{root} has no level {missing[0]}; it has {', '.join(map(str, sorted(folders)))}."
        )
    return [path for level in wanted for path in _files(folders[level])]


def level_of(path: str | Path) -> int | None:
    """The level that a problem file's folder names; None outside a level folder."""
    match = _LEVEL.fullmatch(Path(path).resolve().parent.name)
    return int(match[1]) if match else None


def _levels(root: Path) -> dict[int, Path]:
    if not root.is_dir():
        return {}
    named = ((_LEVEL.fullmatch(p.name), p) for p in root.iterdir() if p.is_dir())
    return {int(match[1]): path for match, path in named if match}


def _files(folder: Path) -> list[Path]:
    files = [p for p in folder.glob("*.py") if not p.name.startswith(("_", "."))]
    if not files:
        raise ProblemError(f"{folder} holds no problem files (*.py).")

    def order(path: Path) -> tuple[int, str]:
        number = re.match(r"\d+", path.name)
        return (int(number[0]) if number else 0, path.name)

    return sorted(files, key=order)
