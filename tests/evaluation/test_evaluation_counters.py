"""Counters of a contestant, opened from outside."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import cases
from cuda_agent.evaluation import Judge, counters
from cuda_agent.records import Counters

SPIN = "import sys\nsys.stdin.readline()\nx = 0\nfor i in range({}): x += i\nprint(x, flush=True)\n"


def spun(loops: int) -> dict[str, float]:
    """What is counted of a process while it runs a loop."""
    command = [sys.executable, "-c", SPIN.format(loops) + "sys.stdin.readline()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        with counters.counting(child.pid) as (made, _):
            if not made:
                pytest.skip("perf_event_open is refused here")
            child.stdin.write(b"go\n")
            child.stdin.flush()
            child.stdout.readline()
            values = {c.name: c.read() for c in made}
        child.kill()
    return values


def test_twice_the_work_counts_more() -> None:
    few, many = spun(200_000), spun(4_000_000)
    name = "instructions" if "instructions" in few else "task_clock_ns"
    assert many[name] > 3 * few[name] > 0


def test_descriptors_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with counters.counting(os.getpid()):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.EACCES, "perf_event_paranoid"), (errno.ENOENT, "no such counter"),
     (errno.EINVAL, "perf_event_open: ")],
)  # fmt: skip
def test_why_not(number: int, says: str) -> None:
    assert says in counters.why(OSError(number, os.strerror(number)))


def test_how_it_reads() -> None:
    found = Counters("perf_event", "", {
        "cycles": 100.0, "instructions": 250.0, "cache_references": 10.0, "cache_misses": 5.0,
    })  # fmt: skip
    said = counters.describe(found)
    assert "2.50 instructions a cycle, 50% cache misses" in said and "cycles 100" in said
    assert counters.describe(Counters("ncu", "ncu is not on the PATH")) == (
        "ncu is not on the PATH"
    )


@pytest.mark.compiler
def test_a_candidate_is_counted_or_the_reason_given(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem())
    slow = cases.KERNEL.replace("float v =", "for (volatile int k = 0; k < 400; ++k); float v =")
    kernel = cases.KERNEL.replace("float v =", "for (volatile int k = 0; k < 20; ++k); float v =")
    fast, much = (
        counters.count(judge, cases.candidate(cases.native(kernel=k), judge.problem))
        for k in (kernel, slow)
    )
    assert set(fast.values) | set(counters.EVENTS) == set(counters.EVENTS)
    assert all(name in fast.missing for name in set(counters.EVENTS) - set(fast.values))
    for name in {"instructions", "task_clock_ns"} & set(fast.values):
        assert much.values[name] > 5 * fast.values[name] > 0


def test_a_failing_candidate_has_no_counters(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem())
    files = cases.python("raise ValueError('no')")
    found = counters.count(judge, cases.candidate(files, judge.problem))
    assert found.values == {} and "the candidate failed" in found.missing
