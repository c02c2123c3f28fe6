"""Compilers behind the same walls as the code that they compile.

A source can make a compiler run for ever, fill the memory, or read files of whoever runs it
(`#include`, `.incbin`). So foreign sources are compiled in a contestant of their own
that sees the system's folders and one empty folder; the judge takes over the binaries that it
expects by content, and nothing else.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent import runtime
from cuda_agent.errors import CompileFailure, ContestantFailure
from cuda_agent.evaluation import sandbox
from cuda_agent.targets.base import Build, Target
from cuda_agent.targets.building import compile_sources

if TYPE_CHECKING:
    from cuda_agent.evaluation.process import Pool

MEMORY_BYTES = 16 << 30  # of addresses, for a compiler
_CONFINE_S = 30.0


def compile_foreign(
    sources: Mapping[str, str], target: Target, cache: Path, pool: Pool, seconds: float
) -> Build:
    """As target.compile. Raises CompileFailure also for a compiler that overruns `seconds`."""
    start = time.perf_counter()
    arch = target.facts().arch if target.torch_device().type == "cuda" else None
    if (found := _cached(sources, target, cache, arch)) is not None:
        return found
    builds = cache / "builds"
    builds.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix=".foreign-", dir=builds))
    try:
        build_behind_walls(sources, target, folder, pool, seconds)
        made = _cached(sources, target, folder, arch)
        if made is None:
            raise CompileFailure("the compiler left no binary")
        for path in map(Path, made.binaries.values()):
            for kept in (path.with_suffix(".log"), path):  # others see both, or no binary
                os.replace(kept, builds / kept.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    taken = _cached(sources, target, cache, arch)
    assert taken is not None
    return replace(taken, cached=False, seconds=time.perf_counter() - start)


def build_behind_walls(
    sources: Mapping[str, str], target: Target, folder: Path, pool: Pool, seconds: float,
    cpp_flags: Sequence[str] | None = None,
) -> None:
    """Binaries under `folder`/builds, made in a fresh contestant that can write nowhere else.
    Raises CompileFailure, also for a compiler that overruns `seconds` or dies."""
    client = pool.fresh()
    arch = target.facts().arch if target.torch_device().type == "cuda" else None
    try:
        client.request("confine", _CONFINE_S, readable=[], writable=[str(folder)])
        answer = client.request(
            "build", seconds, sources=dict(sources), suffixes=list(target.suffixes),
            folder=str(folder), arch=arch, cpp_flags=None if cpp_flags is None else [*cpp_flags],
        )
    except ContestantFailure as error:
        raise CompileFailure(_said(error, seconds)) from None
    finally:
        client.kill()
    if answer["error"]:
        raise CompileFailure(answer["error"], answer["log"])


def _cached(
    sources: Mapping[str, str], target: Target, cache: Path, arch: str | None
) -> Build | None:
    try:
        return compile_sources(sources, cache, target.suffixes, arch, missing=False)
    except FileNotFoundError:
        return None


def _said(error: ContestantFailure, seconds: float) -> str:
    if error.status == "timeout":
        return f"the compiler was stopped after {seconds:.3g} s"
    return f"the compiler failed: {error}"


def build(request: Mapping[str, Any]) -> dict[str, Any]:
    """The contestant's part: {"error": first cause or "", "log": ...}; binaries lie in a folder."""
    sandbox.limit(resource.RLIMIT_AS, MEMORY_BYTES)
    if request.get("cpp_flags"):  # this process builds nothing else
        runtime.FLAGS["cpp"] = tuple(request["cpp_flags"])
    try:
        compile_sources(
            request["sources"], Path(request["folder"]), tuple(request["suffixes"]), request["arch"]
        )
    except CompileFailure as failure:
        return {"error": str(failure)[:4000] or "does not compile", "log": failure.log[-200_000:]}
    return {"error": "", "log": ""}
