"""Hardware counters of one forward on a CPU, by Linux's perf_event_open.

The judge opens the counters from outside, on the threads of a contestant that runs for nothing
else: the candidate can neither see nor set them, and no timed call is near. A burst of the same
copies without the forwards is taken off. Many virtual machines have no hardware counters; what the
kernel counts itself is then all there is, and `missing` says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_agent.errors import CompileFailure, ContestantFailure
from cuda_agent.evaluation import forms, sandbox, trial
from cuda_agent.evaluation.idle import threads_below
from cuda_agent.records import Candidate, Counters

if TYPE_CHECKING:
    from cuda_agent.evaluation.entrant import Entrant
    from cuda_agent.evaluation.judge import Judge

TOOL = "perf_event"
_CALLS = 32
_SIZE = 112  # of perf_event_attr as of version 5
_TIMES = 1 | 2  # read_format: total time enabled, and running
_INHERIT, _USER_ONLY = 1 << 1, 1 << 5 | 1 << 6  # flags: also new threads; no kernel, no hypervisor

# name: (type, config) of <linux/perf_event.h>; type 0 is hardware, 1 the kernel's own.
EVENTS: dict[str, tuple[int, int]] = {
    "cycles": (0, 0), "instructions": (0, 1), "cache_references": (0, 2), "cache_misses": (0, 3),
    "branch_misses": (0, 5), "task_clock_ns": (1, 1), "page_faults": (1, 2),
}  # fmt: skip


@dataclass
class Counter:
    """One event on several threads. Open until `close`."""

    name: str
    fds: list[int]

    @classmethod
    def open(cls, name: str, threads: list[int]) -> Counter:
        """Raises OSError where the machine or its settings do not offer the event."""
        kind, config = EVENTS[name]
        made = cls(name, [])
        for thread in threads:
            attributes = struct.pack(
                "=IIQQQQQ", kind, _SIZE, config, 0, 0, _TIMES, _INHERIT | _USER_ONLY
            ).ljust(_SIZE, b"\0")
            fd = sandbox.system_call(
                "perf_event_open", attributes, thread, -1, -1, 8  # 8: close on exec
            )
            if fd < 0:
                made.close()
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            made.fds.append(fd)
        return made

    def read(self) -> float:
        """Events so far; scaled where counters had to share the hardware."""
        total = 0.0
        for fd in self.fds:
            value, enabled, running = struct.unpack("=QQQ", os.read(fd, 24))
            total += value * enabled / running if running else 0.0
        return total

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()


@contextlib.contextmanager
def counting(pid: int) -> Iterator[tuple[list[Counter], dict[str, str]]]:
    """(counters on `pid` and below, why the others could not be had)."""
    counters: list[Counter] = []
    refused: dict[str, str] = {}
    threads = threads_below(pid)
    try:
        for name in EVENTS:
            try:
                counters.append(Counter.open(name, threads))
            except OSError as error:
                refused[name] = why(error)
        yield counters, refused
    finally:
        for counter in counters:
            counter.close()


def why(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return "not allowed: see kernel.perf_event_paranoid, or the container's filter"
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV):
        return "this machine has no such counter (a virtual machine?)"
    return f"perf_event_open: {error.strerror}"


def count(judge: Judge, candidate: Candidate) -> Counters:
    """Events of one forward with warm caches, in user mode only."""
    if judge.target.name != "cpu":
        where = "is not run behind the walls" if shutil.which("ncu") else "is not on the PATH"
        return Counters("ncu", f"ncu {where}")
    if not sandbox.knows_calls():
        return Counters(TOOL, f"there is no perf_event on {platform.system()}")
    form = forms.detect_form(candidate.files)
    try:
        with trial.Trial(judge, candidate, form).apart() as entrant, judge.timing_mode():
            return _counted(entrant)
    except (ContestantFailure, CompileFailure) as failure:
        return Counters(TOOL, f"the candidate failed: {str(failure).splitlines()[0][:200]}")


def _counted(entrant: Entrant) -> Counters:
    entrant.run(0)
    for copy_only in (True, False):  # every thread and buffer is there now
        entrant.burst([0] * _CALLS, copy_only=copy_only)
    pid = entrant.client.pid
    assert pid is not None
    with counting(pid) as (counters, refused):
        marks = [[c.read() for c in counters]]
        for copy_only in (True, False):
            entrant.burst([0] * _CALLS, copy_only=copy_only)
            marks.append([c.read() for c in counters])
    start, copied, end = marks
    values = {}
    for counter, s, m, e in zip(counters, start, copied, end, strict=True):
        own = (e - m) - (m - s)
        if own < 0:  # zero would be a claim
            refused[counter.name] = "too few to tell from those of the copies"
        else:
            values[counter.name] = own / _CALLS
    missing = "; ".join(
        f"no {', '.join(n for n, r in refused.items() if r == reason)}: {reason}"
        for reason in dict.fromkeys(refused.values())
    )
    return Counters(TOOL, missing, values)


def describe(found: Counters) -> str:
    """One line: rates first, then what is missing."""
    values = found.values
    parts = []
    if values.get("cycles"):
        parts.append(f"{values.get('instructions', 0) / values['cycles']:.2f} instructions a cycle")
    if values.get("cache_references") and "cache_misses" in values:
        parts.append(f"{values['cache_misses'] / values['cache_references']:.0%} cache misses")
    parts += [f"{name} {value:.4g}" for name, value in values.items()]
    said = f"of one forward: {', '.join(parts)}" if parts else ""
    return "; ".join(filter(None, (said, found.missing)))
