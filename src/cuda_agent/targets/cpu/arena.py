"""Shared memory between judge and contestant on a CPU: an anonymous file that both map."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch

# From linux/fcntl.h; the fcntl module has them only on some builds of Python.
_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1, 2, 4


def view(
    base: torch.Tensor, offset: int, shape: Sequence[int], stride: Sequence[int],
    dtype: torch.dtype,
) -> torch.Tensor:
    """The tensor at byte `offset` of the uint8 tensor `base`. Raises ValueError if outside."""
    size = dtype.itemsize
    span = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    span = 0 if 0 in shape else span
    if offset < 0 or offset % size or min(stride, default=0) < 0:
        raise ValueError(f"offset {offset} and stride {tuple(stride)} do not suit {dtype}")
    if offset + span * size > base.numel():
        raise ValueError(f"a view of {span * size} bytes at {offset} ends outside the arena")
    return base[offset : offset + span * size].view(dtype).as_strided(shape, stride)


class MemoryArena:
    """`nbytes` of shared memory behind the file descriptor `fd`.

    The file is sealed against resizing: a contestant that could shrink it would kill the judge by
    a bus error at the next access.
    """

    def __init__(self, nbytes: int, fd: int | None = None) -> None:
        self.nbytes = nbytes
        length = max(nbytes, mmap.PAGESIZE)
        if fd is None:
            fd = os.memfd_create("cuda-agent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(fd, length)
            fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW)
        self.fd: int | None = fd
        memory = mmap.mmap(fd, length)
        self._base: torch.Tensor | None = torch.frombuffer(memory, dtype=torch.uint8)[:nbytes]

    def tensor(
        self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        if self._base is None:
            raise ValueError("the arena is closed")
        return view(self._base, offset, shape, stride, dtype)

    def handle(self) -> dict[str, Any]:
        return {"kind": "memfd", "nbytes": self.nbytes}

    def close(self) -> None:
        """Give up the file. The mapping goes when the last tensor in it goes."""
        self._base = None
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None
