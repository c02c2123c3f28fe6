"""Who may use the device: many at once, or one alone for as long as it measures time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """A shared or exclusive turn at the device, among processes that know the same folder.

    Locks belong to open files, so the turn of a process that dies is free at once.
    """

    def __init__(self, folder: Path) -> None:
        self._files = [os.open(folder / name, os.O_CREAT | os.O_RDWR) for name in ("gate", "turn")]

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Together with others, but with nobody who is alone."""
        with self._turn(fcntl.LOCK_SH):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Waits until the others are done; who comes meanwhile waits at the gate."""
        with self._turn(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _turn(self, kind: int) -> Iterator[None]:
        gate, turn = self._files
        fcntl.flock(gate, fcntl.LOCK_EX)
        try:
            fcntl.flock(turn, kind)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(turn, fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
