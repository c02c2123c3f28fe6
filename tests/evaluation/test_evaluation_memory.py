"""A forward's freed memory stays with its process: no page faults that depend on its past."""

from __future__ import annotations

import subprocess
import sys

from cuda_agent.evaluation.process import child_environment

# Each tensor is larger than any before: by its usual rules glibc may map such anew and unmap it
# when it is freed. The first ones only make the heap grow.
GROWING = """
import resource, torch
counts = []
for i in range(24):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty((1 << 21) + (i << 14)).fill_(1)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(max(counts[12:]))
"""


def faults(environment: dict[str, str]) -> float:
    """Page faults for a tensor of 8 MiB (2,048 pages), at most."""
    made = subprocess.run(
        [sys.executable, "-c", GROWING], env=environment, capture_output=True, text=True, check=True
    )
    return float(made.stdout)


def test_contestants_keep_what_they_free() -> None:
    kept = child_environment(1)
    usual = {name: value for name, value in kept.items() if not name.startswith("MALLOC_")}
    assert faults(kept) < 200
    assert faults({**usual, "MALLOC_MMAP_THRESHOLD_": "131072"}) > 1000  # what it is there for
