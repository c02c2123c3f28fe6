"""Why CUDA cannot be used here, one sentence each with the mend; and the versions involved."""

from __future__ import annotations

import ctypes
import importlib
import tempfile
from pathlib import Path

import torch

from cuda_agent import runtime

_EMPTY = 'extern "C" __global__ void empty() {}\n'

Version = tuple[int, int]


def dotted(version: Version | None) -> str:
    return "unknown" if version is None else f"{version[0]}.{version[1]}"


def driver_version() -> Version | None:
    """Newest CUDA that the driver supports, e.g. (13, 0); None without a driver."""
    try:
        number = ctypes.c_int()
        if runtime.driver().cuDriverGetVersion(ctypes.byref(number)) != 0:
            return None
    except runtime.ToolMissing:
        return None
    return number.value // 1000, number.value % 1000 // 10


def nvrtc_version() -> Version | None:
    """Version of the NVRTC that cuda-core would load; None when it cannot be loaded."""
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        status, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # a missing library surfaces as RuntimeError, or as a class of its own
        return None
    return (int(major), int(minor)) if int(status) == 0 else None


def reason(index: int) -> str | None:
    """None when kernels can be built, loaded and launched on CUDA device `index`."""
    driver = driver_version()
    if driver is None:
        return "no NVIDIA driver (libcuda.so.1 does not load); install one or use --target cpu"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA; install a CUDA build of torch"
    if not torch.cuda.is_available():
        return f"torch sees no CUDA device: {_init_error()}"
    if index >= torch.cuda.device_count():
        return f"there is no CUDA device {index}; torch sees {torch.cuda.device_count()}"
    nvrtc = nvrtc_version()
    if nvrtc is None:
        return "NVRTC is missing; install it with: pip install 'cuda-agent[cuda]'"
    return mismatch(nvrtc, driver) or _try_kernel(index, nvrtc, driver)


def mismatch(nvrtc: Version, driver: Version) -> str | None:
    """A driver refuses cubins of a newer major CUDA; within one major they are compatible."""
    if nvrtc[0] <= driver[0]:
        return None
    return (
        f"NVRTC {dotted(nvrtc)} is newer than the driver's CUDA {dotted(driver)}; install "
        f"'nvidia-cuda-nvrtc=={dotted(driver)}.*' or update the driver"
    )


def _init_error() -> str:
    try:
        torch.cuda.init()
    except Exception as error:
        return (str(error).splitlines() or ["no reason given"])[0]
    return "no device is visible (CUDA_VISIBLE_DEVICES?)"


def _try_kernel(index: int, nvrtc: Version, driver: Version) -> str | None:
    """Build and launch an empty kernel: the only proof that all parts fit."""
    try:
        with tempfile.TemporaryDirectory() as cache, torch.cuda.device(index):
            built = runtime.build({"empty.cu": _EMPTY}, cache=Path(cache))
            runtime.Kernel("empty", built["empty.cu"].path)(1, 1)
            torch.cuda.synchronize()
    except (RuntimeError, OSError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return (
            f"an empty kernel from NVRTC {dotted(nvrtc)} does not run with the driver's CUDA "
            f"{dotted(driver)}: {first}"
        )
    return None
