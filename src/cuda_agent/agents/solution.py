"""A solution folder: the candidate's files, its verdict and its report. Whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from cuda_agent import runtime
from cuda_agent.errors import OutputError
from cuda_agent.records import Candidate, Problem, Verdict
from cuda_agent.store import write_file

VERDICT = "verdict.json"
REPORT = "report.html"


def solution_files(problem: Problem, candidate: Candidate) -> dict[str, str]:
    """All that runs the solution without this package: the candidate, the reference's text and the
    two files of the runtime."""
    package = Path(runtime.__file__).parent
    own = {name: (package / name).read_text(encoding="utf-8") for name in runtime.FILES}
    reference = {"reference.py": problem.source} if problem.kind == "file" else {}
    return {**own, **reference, **candidate.files}


def check_out(out: Path) -> None:
    """Refuses, before any work, a folder that must not be replaced. Raises OutputError."""
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file; give --out a folder.")
    if out.is_dir() and any(out.iterdir()) and not (out / VERDICT).exists():
        raise OutputError(
            f"{out} holds other files and no {VERDICT}, so it is not a solution that may be "
            "replaced; give --out another folder."
        )


def write_solution(out: Path, files: Mapping[str, str], verdict: Verdict, report: str) -> None:
    """As write_files, with verdict and report. Raises OutputError also where `out` holds what is no
    solution."""
    check_out(out)
    proof = {VERDICT: json.dumps(verdict.to_json(), indent=1) + "\n", REPORT: report}
    write_files(out, {**files, **proof})


def write_files(out: Path, files: Mapping[str, str]) -> None:
    """Writes a new folder beside `out`, then swaps the two. Raises OutputError, also for a name
    that leads out of the folder; what stood there before is then as it was."""
    for name in files:
        if ".." in Path(name).parts or Path(name).is_absolute():
            raise OutputError(f"{name!r} is not a path inside the solution's folder.")
    out = out.absolute()
    mark = f"{os.getpid()}-{secrets.token_hex(3)}"
    new, old = out.with_name(f".{out.name}.new-{mark}"), out.with_name(f".{out.name}.old-{mark}")
    try:
        for name, text in files.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, text.encode())
        _swap(new, out, old)
    except OSError as error:
        raise OutputError(
            f"{out} cannot be written ({error.strerror or error}); what stood there before is kept."
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _swap(new: Path, out: Path, old: Path) -> None:
    if not out.exists():
        os.rename(new, out)
        return
    os.rename(out, old)
    try:
        os.rename(new, out)
    except OSError:
        with contextlib.suppress(OSError):
            os.rename(old, out)
        raise
