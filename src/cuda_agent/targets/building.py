"""Compiling for a target: `runtime.build` with this package's errors and records around it."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from cuda_agent import runtime
from cuda_agent.errors import CompileFailure, TargetUnavailable
from cuda_agent.targets.base import Build


def compile_sources(
    sources: Mapping[str, str], cache: Path, suffixes: tuple[str, ...], arch: str | None = None,
    missing: bool = True,
) -> Build:
    """Build each source by content; see Target.compile for what it raises. With `missing=False`
    nothing is compiled: FileNotFoundError where the cache lacks one."""
    for name in sources:
        if not name.endswith((*suffixes, *runtime.HEADERS)):
            raise CompileFailure(f"{name}: this target builds {', '.join(suffixes)} files only")
    start = time.perf_counter()
    try:
        built = runtime.build(sources, arch=arch, cache=cache, missing=missing)
    except runtime.BuildError as error:
        raise CompileFailure(str(error), error.log) from error
    except runtime.ToolMissing as error:
        raise TargetUnavailable(str(error)) from error
    log = "\n".join(f"{name}:\n{one.log}" for name, one in built.items() if one.log.strip())
    return Build(
        binaries={name: str(one.path) for name, one in built.items()},
        seconds=time.perf_counter() - start,
        cached=all(one.cached for one in built.values()),
        log=log,
        resources=ptxas_resources(log),
    )


def ptxas_resources(log: str) -> dict[str, dict[str, int]]:
    """What `ptxas -v` says of each kernel; see Build.resources for the keys."""
    resources: dict[str, dict[str, int]] = {}
    kernel: dict[str, int] | None = None
    for line in log.splitlines():
        if entry := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = resources.setdefault(entry[1], {})
        if kernel is None:
            continue
        if frame := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", line):
            kernel["stack_bytes"], kernel["spill_bytes"] = int(frame[1]), int(frame[2])
        if used := re.search(r"Used (\d+) registers", line):
            kernel["registers"] = int(used[1])
            shared = re.search(r"(\d+) bytes smem", line)
            kernel["shared_bytes"] = int(shared[1]) if shared else 0
            kernel = None  # functions that are no entry may follow
    return resources
