"""The four forms a candidate comes in, told from its files; and reading one from disk."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from cuda_agent import runtime
from cuda_agent.errors import CandidateError
from cuda_agent.records import Candidate, Problem

Form = Literal["native", "host", "single", "work_folder"]
ENTRY = "model_new.py"
CLASS_NAME = "ModelNew"
KERNEL_SUFFIXES = (".cu", ".cpp", ".cc", *runtime.HEADERS)
TEXT_SUFFIXES = (".py", *KERNEL_SUFFIXES)
MAX_FILE_BYTES = 4 << 20
_SKIPPED = {"__pycache__", "build", "node_modules", "utils"}


def detect_form(files: Mapping[str, str]) -> Form:
    """native: model_new.py and kernels/ built without torch headers; host: the same with a `.cu`
    that launches its own kernels; work_folder: binding.cpp beside them; single: Python only.

    Raises CandidateError when no file defines ModelNew.
    """
    entry_of(files)
    if "binding.cpp" in files or any(name.endswith("_binding.cpp") for name in files):
        return "work_folder"
    kernels = kernel_sources(files)
    kinds = {runtime.kind_of(name, text) for name, text in kernels.items()} - {""}
    if not kinds:
        return "single"
    return "host" if "host" in kinds else "native"


def kernel_sources(files: Mapping[str, str]) -> dict[str, str]:
    """{file name: text} of the sources and headers directly in kernels/."""
    return {
        name.removeprefix("kernels/"): text
        for name, text in files.items()
        if name.startswith("kernels/") and name.count("/") == 1 and name.endswith(KERNEL_SUFFIXES)
    }


def entry_of(files: Mapping[str, str]) -> str:
    """The Python file that defines ModelNew: model_new.py, or the only one that does."""
    pattern = re.compile(rf"^\s*class\s+{CLASS_NAME}\b|^{CLASS_NAME}\s*=", re.M)
    found = sorted(
        name for name, text in files.items() if name.endswith(".py") and pattern.search(text)
    )
    if ENTRY in found:
        return ENTRY
    if len(found) == 1:
        return found[0]
    if not found:
        raise CandidateError(
            f"no Python file of the candidate defines class {CLASS_NAME}, the replacement of Model"
        )
    raise CandidateError(
        f"{', '.join(found)} all define {CLASS_NAME}; name the one that is meant {ENTRY}"
    )


def load_candidate(path: str | os.PathLike[str], problem: Problem) -> Candidate:
    """A folder or a Python file, in any form, as a Candidate for `problem`. It is not trusted.

    Raises CandidateError: nothing there, not text, too large, or no ModelNew.
    """
    root = Path(path)
    if not root.exists():
        raise CandidateError(f"There is no candidate {root}; give a folder or a .py file.")
    if root.is_dir():
        names = sorted(p for p in root.rglob("*") if p.suffix in TEXT_SUFFIXES and p.is_file())
        files = {
            str(p.relative_to(root)): _read(p)
            for p in names
            if not any(part in _SKIPPED or part[0] == "." for part in p.relative_to(root).parts)
        }
    elif root.suffix == ".py":
        files = {ENTRY: _read(root)}
    else:
        raise CandidateError(f"{root} is not a candidate; give a folder or a .py file.")
    try:
        entry_of(files)
    except CandidateError as error:
        raise CandidateError(f"{root}: {error}.") from None
    return Candidate(problem_hash=problem.hash, files=files, author=str(root.name))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CandidateError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise CandidateError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise CandidateError(f"{path} cannot be read: {error.strerror}.") from None


def own_runtime() -> dict[str, str]:
    """The files that ship with every solution, as they are in this package."""
    folder = Path(runtime.__file__).parent
    return {name: (folder / name).read_text() for name in runtime.FILES}


def foreign_python(candidate: Candidate, problem: Problem) -> dict[str, str]:
    """The candidate's Python without verbatim copies of our runtime and of the problem."""
    known = {*own_runtime().values(), problem.source}
    return {
        name: text
        for name, text in candidate.files.items()
        if name.endswith(".py") and text not in known
    }


def check_names(files: Mapping[str, str]) -> None:
    """Refuse paths that would leave the candidate's folder. Raises CandidateError."""
    for name in files:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or not name or "\0" in name:
            raise CandidateError(f"{name!r} is not a path inside the candidate's folder")


def parse_python(name: str, text: str) -> ast.Module:
    """The syntax tree. Raises SyntaxError with the file's name."""
    return ast.parse(text, filename=name)
