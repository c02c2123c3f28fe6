"""Theoretical occupancy of a kernel: which share of a multiprocessor's threads can be resident.

As in NVIDIA's occupancy calculator (CUDA C++ Best Practices Guide, "Calculating Occupancy"), for
compute capability 7.0 and later: registers are given to warps in units of 256, warps lie in four
partitions, shared memory comes in units of 128 bytes with 1 KiB a block reserved from 8.0 on.
"""

from __future__ import annotations

from cuda_agent.targets.base import DeviceFacts

_WARP, _PARTITIONS = 32, 4
_REGISTER_UNIT, _SHARED_UNIT = 256, 128
_RESERVED_SHARED = 1024
_BLOCKS = 32  # where a device does not say; the most of any so far


def occupancy(
    facts: DeviceFacts, block: int, registers: int, shared_bytes: int
) -> tuple[float, str]:
    """(resident threads over the most that fit, what limits it) for blocks of `block` threads.

    `registers` of one thread; `shared_bytes` of one block, static and dynamic. The limit is
    "threads", "blocks", "registers" or "shared memory"; the share is 0 where no block fits.
    """
    warps = -(-block // _WARP)
    most = facts.threads_per_unit // _WARP
    each = -(-max(registers, 1) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    held = facts.registers_per_unit // _PARTITIONS // each * _PARTITIONS
    shared = -(-(shared_bytes + _RESERVED_SHARED) // _SHARED_UNIT) * _SHARED_UNIT
    limits = {
        "threads": most // warps,
        "blocks": facts.blocks_per_unit or _BLOCKS,
        "registers": held // warps,
        "shared memory": facts.shared_bytes_per_unit // shared,
    }
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit] * warps / most, limit
