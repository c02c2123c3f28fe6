"""What /proc, /sys and the control group say of this machine. Every function re-reads."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_GROUP = Path("/sys/fs/cgroup")


def read(path: Path) -> str:
    """The text of a file, stripped; empty when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def model_name() -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", read(Path("/proc/cpuinfo")), re.M)
    return found[1].strip() if found else platform.processor() or platform.machine()


def physical_cores() -> int:
    """Physical cores that this process may run on, no more than its control group's quota."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        topology = _CPUS / f"cpu{cpu}" / "topology"
        core = read(topology / "core_id")
        cores.add((read(topology / "physical_package_id"), core) if core else cpu)
    quota, _, period = read(_GROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return max(1, min(len(cores), round(int(quota) / int(period))))
    return len(cores)


def simd() -> tuple[str, int]:
    """(name, bytes of a vector register) of the widest instruction set."""
    flags = set(re.findall(r"\w+", read(Path("/proc/cpuinfo"))))
    for flag, name, width in (("avx512f", "avx512", 64), ("avx2", "avx2", 32), ("avx", "avx", 32)):
        if flag in flags:
            return name, width
    return ("neon", 16) if platform.machine() in ("aarch64", "arm64") else ("sse2", 16)


def last_level_cache_bytes() -> int:
    """Size of the highest-level cache of the first usable CPU; 32 MiB where /sys is silent."""
    cpu = min(os.sched_getaffinity(0))
    best = (0, 32 << 20)
    for index in (_CPUS / f"cpu{cpu}" / "cache").glob("index*"):
        level, size = read(index / "level"), re.fullmatch(r"(\d+)([KM]?)", read(index / "size"))
        if level.isdigit() and size and read(index / "type") != "Instruction":
            unit = {"": 1, "K": 1 << 10, "M": 1 << 20}[size[2]]
            best = max(best, (int(level), int(size[1]) * unit))
    return best[1]


def _meminfo(key: str) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", read(Path("/proc/meminfo")), re.M)
    return int(found[1]) << 10 if found else 0


def memory_bytes() -> int:
    """RAM, or the control group's limit where that is lower."""
    limit = read(_GROUP / "memory.max")
    total = _meminfo("MemTotal")
    return min(total, int(limit)) if limit.isdigit() else total


def free_memory_bytes() -> int:
    """What can still be allocated without swapping."""
    free = _meminfo("MemAvailable")
    limit, used = read(_GROUP / "memory.max"), read(_GROUP / "memory.current")
    return max(0, min(free, int(limit) - int(used))) if limit.isdigit() and used else free


def energy_mj() -> float | None:
    """Sum of the processor packages' RAPL counters; None where there are none or no permission."""
    packages = Path("/sys/class/powercap").glob("intel-rapl:*")
    readings = [read(p / "energy_uj") for p in packages if p.name.count(":") == 1]
    if not readings or not all(r.isdigit() for r in readings):
        return None
    return sum(map(int, readings)) / 1e3
