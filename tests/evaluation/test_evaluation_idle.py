"""Processor time between calls, counted from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from cuda_agent.evaluation import idle


def test_a_process_that_waits_is_quiet_and_new_inputs_are_written_before_each_look() -> None:
    written = []
    assert idle.check(lambda: 5.0, lambda: written.append(1)) == []
    assert written == [1]


def test_one_that_never_rests_is_accused_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "_PATIENCE_S", 0.1)
    written = []
    found = idle.check(time.monotonic, lambda: written.append(1))
    assert [f.id for f in found] == ["A2"] and "no call was running" in found[0].detail
    assert len(written) > 2


def test_one_that_comes_to_rest_is_not() -> None:
    times: Iterator[float] = iter([0.0, 0.02, 0.02, 0.04, 0.04, 0.04])
    assert idle.check(lambda: next(times), lambda: None) == []


def test_nobody_is_accused_where_nothing_is_counted() -> None:
    assert idle.check(lambda: None, lambda: None) == []
    assert idle.processor_s(2**30) is None


def test_threads_and_descendants_count() -> None:
    work = "import time\nwhile time.process_time() < 0.2: pass\n"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {work!r}])"
    with subprocess.Popen([sys.executable, "-c", child]) as process:
        best = 0.0
        while process.poll() is None:
            best = max(best, idle.processor_s(process.pid) or 0.0)
            time.sleep(0.005)
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        pytest.skip("this kernel does not list a task's children")
    assert best > 0.15


def test_waiting_for_a_core_is_seen() -> None:
    """Two that want the same core at the same time wait for each other."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("no choice of cores here")
    core = min(os.sched_getaffinity(0))
    pinned = f"import os, time; os.sched_setaffinity(0, [{core}])"
    work = f"{pinned}\nwhile time.process_time() < 0.3: pass"
    both = [subprocess.Popen([sys.executable, "-S", "-c", work]) for _ in range(2)]
    most = [0.0, 0.0]
    while any(process.poll() is None for process in both):
        for i, process in enumerate(both):
            most[i] = max(most[i], idle.waited_s(process.pid) or 0.0)
        time.sleep(0.005)
    assert sum(most) > 0.1
