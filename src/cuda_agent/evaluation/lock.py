"""One user of a device at a time, also between processes that know nothing of each other: runs
side by side overlap their compilers and wait here for the device."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class _Held:
    """This process's hold on one device: by one thread, as often as that likes."""

    def __init__(self) -> None:
        self.thread = threading.RLock()
        self.depth = 0
        self.fd = -1


_HELD: dict[str, _Held] = {}


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """Hold the machine-wide lock of `device` (its name and index); the thread that holds it may
    take it again. Whatever runs on the device does so under it, or somebody else's times would be
    wrong. Freed with its owner, however that ends, because the kernel drops it with the file
    descriptor."""
    name = re.sub(r"\W+", "-", device).strip("-").lower()
    held = _HELD.setdefault(name, _Held())
    with held.thread:
        if not held.depth:
            path = Path(tempfile.gettempdir()) / f"cuda-agent-{os.getuid()}-{name}.lock"
            held.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held.depth += 1
        try:
            if held.depth == 1:
                fcntl.flock(held.fd, fcntl.LOCK_EX)
            yield
        finally:
            held.depth -= 1
            if not held.depth:
                # A child forked meanwhile has a copy of the descriptor.
                fcntl.flock(held.fd, fcntl.LOCK_UN)
                os.close(held.fd)
