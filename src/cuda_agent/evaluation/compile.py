"""Build a candidate's sources, and lay its files out in a folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from cuda_agent import runtime_gemm
from cuda_agent.errors import CompileFailure
from cuda_agent.evaluation import builder, diagnostics, forms
from cuda_agent.evaluation.process import Pool
from cuda_agent.records import Candidate, Problem
from cuda_agent.targets.base import Build, Target


def compile_candidate(
    candidate: Candidate, form: forms.Form, target: Target, cache: Path, pool: Pool, seconds: float
) -> Build:
    """Check the Python's syntax and build kernels/ into `cache`, by content; those of candidates
    that are not trusted in a process of `pool`, in `seconds`.

    Forms that build themselves (load_inline, Triton, binding.cpp) only have their syntax checked.
    Raises CompileFailure, its message the first cause with the source line.
    """
    for name, text in candidate.files.items():
        if name.endswith(".py"):
            _check_syntax(name, text)
    sources = forms.kernel_sources(candidate.files)
    if form not in ("native", "host") or not sources:
        return Build(binaries={}, seconds=0.0, cached=True)
    try:
        if candidate.trusted or target.name == "null":
            return target.compile(sources, cache)
        return builder.compile_foreign(sources, target, cache, pool, seconds)
    except CompileFailure as failure:
        found = diagnostics.first_cause(failure.log or str(failure), sources)
        said = diagnostics.render(found) if found else diagnostics.shorten(str(failure))
        raise CompileFailure(said, failure.log, found) from None


def _check_syntax(name: str, text: str) -> None:
    try:
        forms.parse_python(name, text)
    except SyntaxError as error:
        found = diagnostics.of_syntax(name, error)
        raise CompileFailure(diagnostics.render(found), diagnostic=found) from None
    except (ValueError, RecursionError) as error:
        raise CompileFailure(f"{name} is not Python text: {error}") from None


def stage(
    candidate: Candidate, problem: Problem, build: Build, folder: Path, target: Target, cache: Path
) -> Path:
    """Write the candidate's files under `folder`, and beside them a build cache that holds only
    its own binaries: another candidate's can be neither read nor replaced. Returns that cache.

    A native candidate that does not bring runtime.py gets ours.
    """
    forms.check_names(candidate.files)
    files = dict(candidate.files)
    if forms.kernel_sources(files):
        for name, text in forms.own_runtime().items():
            files.setdefault(name, text)
    for name, text in files.items():
        path = folder / "candidate" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if problem.kind == "file":
        (folder / "problem.py").write_text(problem.source)
    private = folder / "cache"
    (private / "builds").mkdir(parents=True)
    binaries = [*build.binaries.values()]
    if "runtime_gemm.py" in files and target.name == "cuda":
        binaries += target.compile(runtime_gemm.SOURCES, cache).binaries.values()
    for binary in map(Path, binaries):
        shutil.copyfile(binary, private / "builds" / binary.name)
    return private
