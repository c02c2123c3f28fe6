"""Measure a device's peaks: copy and read bandwidth, matrix rates, launch overhead.

They are the physical floors of the audit, so each figure is the best that we can get: the fastest
of several ways. On a GPU each is the median of repeated runs, on a CPU the best run, since other
processes share its cores and a floor set too high would call an honest kernel a cheat.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch

from cuda_agent import runtime
from cuda_agent.errors import TargetUnavailable
from cuda_agent.targets import calibration
from cuda_agent.targets.base import DeviceFacts, Target
from cuda_agent.targets.calibration import Calibration

_CUDA_SOURCE = r"""
// Four 16-byte accesses in flight for each thread; a block covers one contiguous piece.
extern "C" __global__ void __launch_bounds__(512) copy(const float4* __restrict__ x,
                                                       float4* __restrict__ y, long long n) {
    long long i = blockIdx.x * 2048ll + threadIdx.x;
    if (i + 3 * 512 >= n) return;
    float4 v[4];
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(x + i + j * 512);
    for (int j = 0; j < 4; ++j) __stcs(y + i + j * 512, v[j]);
}
extern "C" __global__ void __launch_bounds__(512) read(const float4* __restrict__ x,
                                                       float4* __restrict__ y, long long n) {
    long long i = blockIdx.x * 2048ll + threadIdx.x;
    if (i + 3 * 512 >= n) return;
    float sum = 0;
    for (int j = 0; j < 4; ++j) {
        float4 v = __ldcs(x + i + j * 512);
        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == -1.25f) y[0].x = sum;  // never true for ones, but the compiler cannot know
}
extern "C" __global__ void empty(const float4* x, float4* y, long long n) {}
"""

_CPU_SOURCE = r"""
#include <cstdint>
#include <cstring>
extern "C" void copy(const float* x, float* y, int64_t n, int threads) {
    #pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t part = 0; part < threads; ++part) {  // memcpy streams past the cache when large
        int64_t first = n * part / threads, last = n * (part + 1) / threads;
        std::memcpy(y + first, x + first, (last - first) * sizeof(float));
    }
}
extern "C" void read(const float* x, float* y, int64_t n, int threads) {
    float sum = 0;
    #pragma omp parallel for simd num_threads(threads) schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    y[0] = sum;
}
extern "C" void empty(const float* x, float* y, int64_t n, int threads) {}
"""

Timer = Callable[[Callable[[], object]], float]


def calibrate(target: Target) -> tuple[Calibration, Path]:
    """Measure `target` and store the result; returns it with the file's path.

    Raises TargetUnavailable when the target does not work here, OutputError when the file cannot
    be written.
    """
    reason = target.unavailable()
    if reason is not None:
        raise TargetUnavailable(f"target {target.name} is not available: {reason}")
    if target.name not in ("cuda", "cpu"):
        raise TargetUnavailable(f"target {target.name} has no peaks to measure")
    facts = target.facts()
    start = time.perf_counter()
    measure = _measure_cuda if target.name == "cuda" else _measure_cpu
    with torch.no_grad():
        copy, read, matrix, launch = measure(target, facts)
    result = Calibration(
        device=facts.name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        copy_bytes_per_s=copy,
        read_bytes_per_s=read,
        matrix_flops_per_s=matrix,
        launch_s=launch,
        seconds=time.perf_counter() - start,
        versions=target.environment(),
    )
    return result, calibration.save(facts, result)


Peaks = tuple[float, float, dict[str, float], float]


def _measure_cuda(target: Target, facts: DeviceFacts) -> Peaks:
    device = target.torch_device()
    with torch.cuda.device(device):
        kernels = runtime.Kernels(lambda: {"calibrate.cu": _CUDA_SOURCE}, "calibrate.py")
        nbytes = _buffer_bytes(target, facts, 1 << 30)
        x, y = (torch.ones(nbytes // 4, device=device) for _ in range(2))
        vectors = nbytes // 16
        grid = vectors // 2048
        copy_s = min(
            _cuda_seconds(lambda: kernels.copy(grid, 512, x, y, vectors)),
            _cuda_seconds(lambda: y.copy_(x)),
        )
        read_s = _cuda_seconds(lambda: kernels.read(grid, 512, x, y, vectors))
        matrix = _matrix_rates(
            {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
             "fp16": torch.float16},
            (4096, 8192), device, _cuda_seconds,
        )
        launch_s = _launch_seconds(lambda: kernels.empty(1, 32, x, y, 0), target)
    return 2 * nbytes / copy_s, nbytes / read_s, matrix, launch_s


def _measure_cpu(target: Target, facts: DeviceFacts) -> Peaks:
    kernels = runtime.Kernels(lambda: {"calibrate.cpp": _CPU_SOURCE}, "calibrate.py")
    nbytes = _buffer_bytes(target, facts, 256 << 20)
    x, y = torch.ones(nbytes // 4), torch.ones(nbytes // 4)
    with _threads(facts.units):
        args = (x, y, x.numel(), runtime.i32(facts.units))
        copy_s = min(_cpu_seconds(lambda: kernels.copy(*args)), _cpu_seconds(lambda: y.copy_(x)))
        read_s = min(_cpu_seconds(lambda: kernels.read(*args)), _cpu_seconds(x.sum))
        matrix = _matrix_rates(
            {"fp32": torch.float32, "bf16": torch.bfloat16}, (512, 1024), torch.device("cpu"),
            _cpu_seconds,
        )
        launch_s = _launch_seconds(lambda: kernels.empty(*args), target)
    return 2 * nbytes / copy_s, nbytes / read_s, matrix, launch_s


def _buffer_bytes(target: Target, facts: DeviceFacts, least: int) -> int:
    """Several times the last-level cache, a multiple of what a block copies, within memory."""
    wanted = max(4 * facts.cache_bytes, least)
    return min(wanted, target.free_memory_bytes() // 8) // 32768 * 32768


def _matrix_rates(
    precisions: dict[str, torch.dtype], sizes: tuple[int, ...], device: torch.device, timer: Timer
) -> dict[str, float]:
    """Operations a second of square products on random operands, the best over `sizes`."""
    rates = dict.fromkeys(precisions, 0.0)
    for size in sizes:
        a, b = (torch.randn(size, size, device=device) for _ in range(2))
        for precision, dtype in precisions.items():
            x, y = a.to(dtype), b.to(dtype)
            out = torch.empty(size, size, dtype=dtype, device=device)
            call = _product(x, y, out, precision)
            rates[precision] = max(rates[precision], 2 * size**3 / timer(call))
    return rates


def _product(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, precision: str
) -> Callable[[], object]:
    return lambda: runtime.matmul(x, y, out=out, precision=precision)


def _cuda_seconds(call: Callable[[], object], repeats: int = 11) -> float:
    """Median device time of one call, by events."""
    for _ in range(3):
        call()
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(repeats)
    ]
    for start, end in events:
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1e3


def _cpu_seconds(call: Callable[[], object], repeats: int = 15) -> float:
    """Least wall time of one call."""
    call()
    samples = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return min(samples)


def _launch_seconds(call: Callable[[], object], target: Target, calls: int = 500) -> float:
    """Host time of one launch among many. Fewer than the driver queues, so none has to wait."""
    samples = []
    for _ in range(9):
        target.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter() - start) / calls)
    target.synchronize()
    return statistics.median(samples)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """All cores, whatever OMP_NUM_THREADS says: a floor must hold for the fastest candidate."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
