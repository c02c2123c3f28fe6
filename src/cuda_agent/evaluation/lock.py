"""One timed candidate at a time on a device, also between processes that know nothing of each
other: runs side by side overlap their compilers and wait here for the device."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Hold the machine-wide lock of `device` (its name and index). Freed with its owner, however
    that ends, because the kernel drops it with the file descriptor."""
    name = re.sub(r"\W+", "-", device).strip("-").lower()
    path = Path(tempfile.gettempdir()) / f"cuda-agent-{os.getuid()}-{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)  # a child forked meanwhile has a copy of the descriptor
        os.close(fd)
