"""What each kernel of a candidate takes of a multiprocessor, from the compiler and the sources."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cuda_agent.records import KernelUse
from cuda_agent.targets.base import Build, DeviceFacts
from cuda_agent.targets.cuda.occupancy import occupancy

_BLOCK = 256  # threads, where the source does not say


def of_kernels(
    build: Build, facts: DeviceFacts, sources: Mapping[str, str]
) -> tuple[KernelUse, ...]:
    """One record for each kernel that was compiled, by name. Empty on a CPU, and for forms that
    build themselves."""
    used = []
    for symbol, values in sorted(build.resources.items()):
        name = plain_name(symbol)
        registers, shared = values.get("registers", 0), values.get("shared_bytes", 0)
        bound = launch_bound(name, sources)
        block = bound or _BLOCK
        share, limit = occupancy(facts, block, registers, shared)
        used.append(
            KernelUse(
                name, registers, shared, values.get("stack_bytes", 0),
                values.get("spill_bytes", 0), block, bound is not None, share, limit,
            )
        )
    return tuple(used)


def plain_name(symbol: str) -> str:
    """"_Z5fusedIfEvPf" -> "fused"; nested names keep the last part."""
    if not symbol.startswith("_Z"):
        return symbol
    name, rest = "", re.sub(r"^_ZN?K?", "", symbol)
    while length := re.match(r"\d+", rest):
        rest = rest[length.end() :]
        name, rest = rest[: int(length[0])], rest[int(length[0]) :]
    return name or symbol


def launch_bound(name: str, sources: Mapping[str, str]) -> int | None:
    """Threads of a block as `__launch_bounds__` promises them, where it is a plain number."""
    word = re.escape(name)
    pattern = rf"__launch_bounds__\s*\(\s*(\d+)[^)]*\)\s*(?:\w+\s+)*{word}\s*\("
    for text in sources.values():
        if hit := re.search(pattern, text):
            return int(hit[1]) if 1 <= int(hit[1]) <= 1024 else None
    return None
