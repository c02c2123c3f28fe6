"""Does a problem fit a device? Sizes come from meta tensors: nothing is allocated to find out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import ProblemTooLarge
from cuda_agent.problems import tree


def free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be allocated on `device`; None where it cannot be known."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + cached
    known = [n for n in (_meminfo_bytes(), _cgroup_bytes()) if n is not None]
    return min(known) if known else None


def _meminfo_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_bytes() -> int | None:
    """What a container's limit leaves (cgroup v2); page cache counts as free."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = int((folder / "memory.max").read_text())
        used = int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return limit - used + int(stat.get("inactive_file", 0))


def size_text(n: float) -> str:
    """`3.2 GB`, decimal units."""
    for unit in ("bytes", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} GB"


def needed_bytes(
    make_model: Callable[[], torch.nn.Module],
    make_inputs: Callable[[torch.nn.Module], Any],
    element_bytes: int,
    free: int,
) -> int | None:
    """Bytes of parameters + inputs + outputs at `element_bytes` per floating element.

    The forward is traced only if the rest already takes an eighth of `free`, because tracing costs
    time. None where the code cannot run on meta tensors (it looks at values, or names a device).
    """

    def size(t: torch.Tensor) -> int:
        return t.numel() * (element_bytes if t.is_floating_point() else t.element_size())

    try:
        with torch.device("meta"), torch.no_grad():
            model = make_model().eval()
            inputs = make_inputs(model)
            held = [*model.parameters(), *model.buffers(), *tree.tensors(inputs)]
            total = sum(size(t) for t in held)
            if total > free // 8:
                total += sum(size(t) for t in tree.tensors(model(*inputs)))
            return total
    except Exception:
        return None


def refuse(
    name: str, needed: int | None, free: int | None, device: torch.device
) -> ProblemTooLarge:
    """The error for a problem that does not fit."""
    what = f"at least {size_text(needed)}" if needed else "more memory"
    have = f"{size_text(free)} are free" if free is not None else "not enough is free"
    return ProblemTooLarge(
        f"{name} needs {what} for parameters, inputs and outputs, but {have} on {device}; "
        "use smaller shapes or free memory."
    )
