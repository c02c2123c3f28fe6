"""Between calls a contestant has nothing to do. One that works then works where no clock runs.

Inputs are written before a call begins. A thread that watches them could compute the outputs in the
meantime and have the call hand them out; another could keep weights in caches that are flushed for
everybody else. The judge counts processor time from outside, where the candidate reaches nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cuda_agent.records import Finding

_WINDOW_S = 0.03
_PATIENCE_S = 3.0  # compilers' helper processes may still be starting
_SHARE = 0.01  # of the window; a process that waits for a message uses none at all


def processor_s(pid: int) -> float | None:
    """Seconds that the threads of a process and of its descendants have run. None where /proc does
    not tell."""
    return _scheduled_s(pid, 0)


def waited_s(pid: int) -> float | None:
    """Seconds that they could have run and waited for a core instead: on a busy machine."""
    return _scheduled_s(pid, 1)


def _scheduled_s(pid: int, column: int) -> float | None:
    found: list[int] = []
    for thread in threads_below(pid):
        with suppress(OSError, ValueError, IndexError):  # a thread that has just ended
            found.append(int(Path(f"/proc/{thread}/schedstat").read_text().split()[column]))
    return sum(found) / 1e9 if found else None


def threads_below(pid: int) -> list[int]:
    """Every thread of a process and of its descendants, as far as /proc tells."""
    found, waiting = [], [pid]
    while waiting:
        for task in Path("/proc", str(waiting.pop()), "task").glob("*"):
            found.append(int(task.name))
            with suppress(OSError):
                waiting += [int(child) for child in (task / "children").read_text().split()]
    return found


def check(clock: Callable[[], float | None], renew: Callable[[], None]) -> list[Finding]:
    """A finding where work goes on while no call is running. Waits until it stops, for a while.

    clock: processor seconds of the contestant. renew: writes new inputs, as before a call.
    """
    begin = time.monotonic()
    while True:
        renew()
        before, start = clock(), time.monotonic()
        time.sleep(_WINDOW_S)
        after, window = clock(), time.monotonic() - start
        if before is None or after is None or after - before <= _SHARE * window:
            return []
        if time.monotonic() - begin > _PATIENCE_S:
            return [
                Finding(
                    "A2",
                    f"its threads ran for {(after - before) * 1e3:.2g} ms of {window * 1e3:.0f} ms "
                    "in which no call was running: forward must have done its work when it returns",
                )
            ]
