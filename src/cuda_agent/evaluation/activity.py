"""What ran on the device during one forward, as the device's own tracer (CUPTI) saw it.

A second look at what events beside the forward can't see: work on streams that nobody waits for,
and kernels that are never launched. The trace is taken inside the contestant, which is hostile, and
never in the timed path: it can accuse, and it excuses nobody.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.records import Activity, Finding, Track

_KERNELS = 64  # names in a record; the rest is counted together
_NAME = 120
_OTHERS = "(others)"
# torch's own kernels and those that torch.compile generates, but for those that move or fill data.
_TORCHS = re.compile(r"\bat::native::|\bat_cuda_detail::|^triton_(?:poi|red|per|tem)_")
_MOVES = re.compile(r"[cC]opy|[fF]ill|CatArray|_cat_|direct_copy")
# Tracing adds about a microsecond to a kernel, and event times of one call vary by a few.
_FACTOR, _SLACK_MS = 1.25, 0.03


@dataclass(frozen=True)
class Work:
    """One kernel or copy: microseconds of the tracer's clock."""

    name: str
    stream: int
    start_us: float
    end_us: float


def trace(call: Callable[[], Any]) -> dict[str, Any]:
    """Fields of Activity for whatever `call` starts on the current device.

    `call` must leave the device idle. {} where nothing can be traced (no GPU, no CUPTI).
    """
    if not torch.cuda.is_available() or not _available():
        return {}
    try:  # the first trace of a process may miss work
        _traced(lambda: torch.zeros(1, device="cuda"))
    except RuntimeError:  # another tracer is there already, or none is allowed
        return {}
    return summary(_traced(call))


def _available() -> bool:
    from torch.profiler import ProfilerActivity, supported_activities

    return ProfilerActivity.CUDA in supported_activities()


def _traced(call: Callable[[], Any]) -> list[Work]:
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        call()
        torch.cuda.synchronize()
    return [
        Work(e.name, int(e.device_resource_id), e.time_range.start, e.time_range.end)
        for e in seen.events() or ()
        if e.device_type == DeviceType.CUDA
    ]


def summary(work: Iterable[Work]) -> dict[str, Any]:
    """Fields of Activity. Times that overlap count once."""
    ordered = sorted(work, key=lambda w: w.start_us)
    busy, reached = 0.0, float("-inf")
    for w in ordered:
        busy += max(0.0, w.end_us - max(w.start_us, reached))
        reached = max(reached, w.end_us)
    counts = Counter(w.name[:_NAME] for w in ordered)
    kernels = dict(counts.most_common(_KERNELS))
    if more := len(ordered) - sum(kernels.values()):
        kernels[_OTHERS] = more
    return {
        "device_ms": busy / 1e3, "launches": len(ordered),
        "streams": len({w.stream for w in ordered}), "kernels": kernels,
    }


def record(answer: Mapping[str, Any]) -> Activity | None:
    """From a contestant's reply, whose form the protocol has checked."""
    return Activity(**answer["activity"]) if answer["activity"] else None


def check(
    seen: Activity | None, event_ms: float, own_kernels: Iterable[str], track: Track = "library"
) -> list[Finding]:
    """Work that the events did not see, a candidate none of whose kernels ran, and under the
    kernels track torch's own kernels: replayed from a graph, or launched by a thread, no recorder
    of operators sees them.

    `own_kernels`: names in the candidate's own binaries, mangled or not.
    """
    if seen is None:
        return []
    foreign = [name for name in seen.kernels if _TORCHS.search(name) and not _MOVES.search(name)]
    if track == "kernels" and foreign:
        return [Finding("E1", f"the device ran a kernel of torch's: {foreign[0]}")]
    if seen.device_ms > _FACTOR * event_ms + _SLACK_MS:
        return [
            Finding(
                "A1",
                f"the device worked for {seen.device_ms:.4g} ms during a forward of "
                f"{event_ms:.4g} ms by its events: work went where they do not look",
            )
        ]
    own = list(own_kernels)
    if own and not any(launched(name, seen) for name in own):
        names = ", ".join(own[:4])
        return [Finding("E2", f"none of the candidate's kernels was launched: {names}")]
    return []


def launched(kernel: str, seen: Activity) -> bool:
    """Whether `kernel`, as a binary names it (mangled, unless extern "C"), is in the trace, which
    demangles names and adds arguments. True where the trace is too long to hold every name."""
    found = {_identifier(name) for name in seen.kernels}
    return (
        _OTHERS in seen.kernels or kernel in found
        or any(f"{len(name)}{name}" in kernel for name in found)
    )


def _identifier(demangled: str) -> str:
    """"void space::fused<float>(float const*)": "fused"."""
    words = re.split(r"[(<]", demangled.replace("(anonymous namespace)::", ""))[0].split()
    return words[-1].rsplit("::", 1)[-1] if words else ""
