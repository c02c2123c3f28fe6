"""The readings of libnvidia-ml that verdicts record. All optional: None where one fails."""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_char_p, c_uint, c_ulonglong, c_void_p


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == 0 else None


@functools.cache
def _device(uuid: str) -> c_void_p | None:
    """By UUID: NVML counts devices that CUDA_VISIBLE_DEVICES hides."""
    library, handle = _library(), c_void_p()
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    if library is None:
        return None
    status = library.nvmlDeviceGetHandleByUUID(c_char_p(name.encode()), byref(handle))
    return handle if status == 0 else None


def energy_mj(uuid: str) -> float | None:
    """Millijoules since the driver was loaded."""
    library, device, value = _library(), _device(uuid), c_ulonglong()
    if library is None or device is None:
        return None
    if library.nvmlDeviceGetTotalEnergyConsumption(device, byref(value)) != 0:
        return None
    return float(value.value)


def sm_clock_mhz(uuid: str) -> int | None:
    """The clock of the multiprocessors now."""
    library, device, value = _library(), _device(uuid), c_uint()
    if library is None or device is None:
        return None
    if library.nvmlDeviceGetClockInfo(device, 1, byref(value)) != 0:  # NVML_CLOCK_SM
        return None
    return value.value


def driver_version() -> str | None:
    library, text = _library(), ctypes.create_string_buffer(96)
    if library is None or library.nvmlSystemGetDriverVersion(text, 96) != 0:
        return None
    return text.value.decode()
