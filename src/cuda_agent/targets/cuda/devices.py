"""Facts of NVIDIA devices: of the one here, and of one to compile for where there is none."""

from __future__ import annotations

from ctypes import byref, c_int

import torch

from cuda_agent import runtime
from cuda_agent.targets import calibration
from cuda_agent.targets.base import DeviceFacts

# What torch reports on an H200 (SXM, 141 GB). No rates: those are only ever measured.
H200 = DeviceFacts(
    target="cuda",
    name="NVIDIA H200",
    arch="sm_90a",
    units=132,
    vector_bytes=16,
    cache_bytes=60 << 20,
    memory_bytes=143771 << 20,
    shared_bytes_per_block=227 << 10,
    shared_bytes_per_unit=228 << 10,
    registers_per_unit=65536,
    threads_per_unit=2048,
    blocks_per_unit=32,
)


def arch_of(major: int, minor: int) -> str:
    """NVRTC's name for exactly this device; Hopper's own instructions need the "a"."""
    return f"sm_{major}{minor}{'a' if (major, minor) == (9, 0) else ''}"


def _attribute(index: int, number: int) -> int:
    """A CU_DEVICE_ATTRIBUTE_*; torch's device properties lack some of them in some versions."""
    value = c_int()
    status = runtime.driver().cuDeviceGetAttribute(byref(value), number, index)
    runtime.check(status, f"device attribute {number}")
    return value.value


def read_facts(index: int) -> DeviceFacts:
    """Facts of CUDA device `index`, with the rates of its calibration."""
    torch.cuda.init()
    return calibration.apply(
        DeviceFacts(
            target="cuda",
            name=torch.cuda.get_device_name(index),
            arch=arch_of(*torch.cuda.get_device_capability(index)),
            units=_attribute(index, 16),  # MULTIPROCESSOR_COUNT
            vector_bytes=16,
            cache_bytes=_attribute(index, 38),  # L2_CACHE_SIZE
            memory_bytes=torch.cuda.get_device_properties(index).total_memory,
            shared_bytes_per_block=_attribute(index, 97),  # MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            shared_bytes_per_unit=_attribute(index, 81),  # MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
            registers_per_unit=_attribute(index, 82),  # MAX_REGISTERS_PER_MULTIPROCESSOR
            threads_per_unit=_attribute(index, 39),  # MAX_THREADS_PER_MULTIPROCESSOR
            blocks_per_unit=_attribute(index, 106),  # MAX_BLOCKS_PER_MULTIPROCESSOR
        )
    )
