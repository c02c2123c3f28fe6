"""Device memory that judge and contestant share by a CUDA IPC handle.

Driver calls, not torch's allocator: an IPC handle opens the whole allocation it points into, and
torch's blocks hold other tensors. The driver places small allocations side by side in pages of
2 MiB, so an arena takes whole pages.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_uint, c_uint64
from typing import Any

import torch

from cuda_agent import runtime
from cuda_agent.targets.cpu.arena import view

_PAGE = 2 << 20
_LAZY_ENABLE_PEER_ACCESS = 1


class _IpcHandle(ctypes.Structure):  # CUipcMemHandle, passed by value
    _fields_ = (("reserved", ctypes.c_char * 64),)


class _Pointer:
    """Device memory as torch.as_tensor reads it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }


def _call(name: str, *args: Any) -> None:
    status = getattr(runtime.driver(), name)(*args)
    if status == 2:  # CUDA_ERROR_OUT_OF_MEMORY
        raise torch.OutOfMemoryError(f"CUDA out of memory: {name} for an arena")
    runtime.check(status, name)


class DeviceArena:
    """`nbytes` of memory on CUDA device `index`: allocated here, or opened from a handle."""

    fd: int | None = None

    def __init__(self, nbytes: int, index: int, handle: str | None = None) -> None:
        self.nbytes = nbytes
        self._device = torch.device("cuda", index)
        self._opened = handle is not None
        pointer = c_uint64()
        with torch.cuda.device(self._device):
            runtime.activate(index)
            if handle is None:
                pages = -(-max(nbytes, 1) // _PAGE)
                _call("cuMemAlloc_v2", byref(pointer), c_size_t(pages * _PAGE))
            else:
                raw = _IpcHandle.from_buffer_copy(bytes.fromhex(handle))
                flags = c_uint(_LAZY_ENABLE_PEER_ACCESS)
                _call("cuIpcOpenMemHandle_v2", byref(pointer), raw, flags)
            self._address = pointer.value
            self._base: torch.Tensor | None = torch.as_tensor(
                _Pointer(self._address, max(nbytes, 1)), device=self._device
            )[:nbytes]
        if nbytes and self._base.data_ptr() != self._address:
            raise RuntimeError("torch copied the arena instead of wrapping it")

    def tensor(
        self, offset: int, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        if self._base is None:
            raise ValueError("the arena is closed")
        return view(self._base, offset, shape, stride, dtype)

    def handle(self) -> dict[str, Any]:
        """Only the owner can make one; another process opens it, never this one."""
        raw = _IpcHandle()
        with torch.cuda.device(self._device):
            runtime.activate(self._device.index)
            _call("cuIpcGetMemHandle", byref(raw), c_uint64(self._address))
        return {"kind": "cuda_ipc", "nbytes": self.nbytes, "ipc": bytes(raw).hex()}

    def close(self) -> None:
        """Wait for the device, then free or unmap. Views of the arena must not be used again."""
        if self._base is None:
            return
        self._base = None
        with torch.cuda.device(self._device):
            torch.cuda.synchronize()
            runtime.activate(self._device.index)
            free = "cuIpcCloseMemHandle" if self._opened else "cuMemFree_v2"
            _call(free, c_uint64(self._address))
