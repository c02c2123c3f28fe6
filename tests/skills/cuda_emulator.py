"""Runs our generated CUDA kernels on the CPU, so that their logic is tested without a GPU.

A source is compiled as C++ against a shim: every CUDA thread is a fiber, barriers and shuffles
switch between them, shared memory is poisoned before each block and a deadlock is reported.
Blocks run one after another, clusters block by block within one schedule. Only what our generators
write is understood. Misaligned vector accesses trap (`-fsanitize=alignment`).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

import torch

from cuda_agent.skills.emit import math_cpp

SHIM = r"""
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>
#include <ucontext.h>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (emu::current->thread)
#define blockIdx (emu::current->block)
struct Dim { unsigned x, y; };
namespace emu {
struct Barrier { unsigned arrived = 0, generation = 0; };
struct Warp { Barrier barrier; char slots[32][8]; };
struct Block {
    char* base; std::map<int, size_t> places; size_t used = 0;
    std::vector<Warp> warps; Barrier barrier; unsigned threads, rank;
};
struct Fiber {
    ucontext_t context; Dim thread, block; Block* home;
    unsigned cluster_generation = 0; bool done = false;
};
static Fiber* current; static ucontext_t scheduler; static unsigned long progress;
static std::vector<Block>* cluster; static Barrier cluster_barrier; static void (*body)();
static size_t dynamic_bytes, poisoned;
constexpr size_t STACK = 64 << 10, ARENA = 300 << 10;
// Memory of fiber stacks and of the blocks' shared memory, allocated once.
static char* pooled(std::vector<char*>& pool, size_t index, size_t bytes) {
    while (pool.size() <= index) pool.push_back((char*)aligned_alloc(64, bytes));
    return pool[index];
}
static std::vector<char*> stacks, arenas;
static void yield() { swapcontext(&current->context, &scheduler); }
static unsigned arrive(Barrier& b, unsigned count) {
    const unsigned mine = b.generation;
    if (++b.arrived == count) { b.arrived = 0; ++b.generation; ++progress; }
    return mine;
}
static void wait(Barrier& b, unsigned count) {
    const unsigned mine = arrive(b, count);
    while (b.generation == mine) yield();
}
static unsigned in_warp() {
    const unsigned first = current->thread.x / 32 * 32, rest = current->home->threads - first;
    return rest < 32 ? rest : 32;
}
static Warp& warp() { return current->home->warps[current->thread.x / 32]; }
template <typename T> T from_lane(T value, int source) {  // outside the warp: the lane's own
    Warp& w = warp();
    const unsigned lane = current->thread.x % 32;
    std::memcpy(w.slots[lane], &value, sizeof value);
    wait(w.barrier, in_warp());
    T other;
    std::memcpy(&other, w.slots[source < 0 ? lane : source], sizeof other);
    wait(w.barrier, in_warp());
    return other;
}
static int lane_now() { return current->thread.x % 32; }
template <typename T> T shuffle(T value, int distance) {
    return from_lane(value, lane_now() ^ distance);
}
template <typename T> T* shared_array(int id, size_t count) {
    Block& b = *current->home;
    const size_t bytes = (count * sizeof(T) + 31) / 16 * 16;
    if (!b.places.count(id)) b.places[id] = b.used, b.used += bytes;
    if (b.used > ARENA) std::fprintf(stderr, "too much shared memory\n"), std::abort();
    return reinterpret_cast<T*>(b.base + b.places[id]);
}
static unsigned char* dynamic() { return shared_array<unsigned char>(-1, dynamic_bytes); }
static void enter() { body(); current->done = true; ++progress; yield(); }
static void run_cluster(std::vector<Block>& blocks, unsigned first, unsigned y, unsigned threads) {
    std::vector<Fiber> fibers(blocks.size() * threads);
    cluster = &blocks; cluster_barrier = Barrier{};
    for (size_t b = 0; b < blocks.size(); ++b) {
        Block& block = blocks[b];
        block.base = pooled(arenas, b, ARENA);
        std::memset(block.base, 0xff, poisoned);
        block.warps.assign((threads + 31) / 32, Warp{}); block.threads = threads; block.rank = b;
        for (unsigned t = 0; t < threads; ++t) {
            Fiber& f = fibers[b * threads + t];
            f.thread = {t, 0}; f.block = {first + (unsigned)b, y};
            f.home = &block;
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = pooled(stacks, b * threads + t, STACK);
            f.context.uc_stack.ss_size = STACK;
            f.context.uc_link = nullptr;
            makecontext(&f.context, enter, 0);
        }
    }
    for (bool left = true; left;) {
        left = false;
        const unsigned long before = progress;
        for (Fiber& f : fibers) if (!f.done) {
            current = &f; swapcontext(&scheduler, &f.context); left |= !f.done;
        }
        if (left && progress == before) { std::fprintf(stderr, "deadlock\n"); std::abort(); }
    }
}
static void launch(unsigned gx, unsigned gy, unsigned threads, size_t shared, unsigned blocks) {
    dynamic_bytes = shared;
    poisoned = shared + (64 << 10);
    for (unsigned y = 0; y < gy; ++y)
        for (unsigned x = 0; x < gx; x += blocks) {
            std::vector<Block> group(blocks);
            run_cluster(group, x, y, threads);
        }
}
template <typename... A, size_t... I>
void call(void (*kernel)(A...), void** args, std::index_sequence<I...>) { kernel((A)args[I]...); }
template <typename... A> void call(void (*kernel)(A...), void** args) {
    call(kernel, args, std::index_sequence_for<A...>{});
}
}  // namespace emu
static void __syncthreads() { emu::wait(emu::current->home->barrier, emu::current->home->threads); }
static void __syncwarp() { emu::wait(emu::warp().barrier, emu::in_warp()); }
template <typename T> T __shfl_xor_sync(unsigned, T v, int d) { return emu::shuffle(v, d); }
template <typename T> T __shfl_sync(unsigned, T v, int source) { return emu::from_lane(v, source); }
template <typename T> T __shfl_up_sync(unsigned, T v, int d) {
    return emu::from_lane(v, emu::lane_now() - d);
}
static float __int_as_float(int b) { float f; std::memcpy(&f, &b, 4); return f; }
static double __longlong_as_double(long long b) { double f; std::memcpy(&f, &b, 8); return f; }
static float __uint_as_float(unsigned b) { float f; std::memcpy(&f, &b, 4); return f; }
static float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static double rsqrt(double x) { return 1.0 / sqrt(x); }
static unsigned cluster_rank() { return emu::current->home->rank; }
static unsigned cluster_threads() { return emu::cluster->size() * emu::current->home->threads; }
static void cluster_arrive() {
    emu::current->cluster_generation = emu::arrive(emu::cluster_barrier, cluster_threads());
}
static void cluster_wait() {
    while (emu::cluster_barrier.generation == emu::current->cluster_generation) emu::yield();
}
struct alignas(16) int4 { int x, y, z, w; };
template <typename T> static void __stcs(T* p, const T& v) { *p = v; }
template <typename T> T* in_block(T* address, unsigned rank) {
    return (T*)((*emu::cluster)[rank].base + ((char*)address - emu::current->home->base));
}
template <typename T> T nan_max(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> T nan_min(T a, T b) { return a < b || a != a ? a : b; }
#define INLINE static inline
"""

CONVERSIONS = ("float_bits", "bits_float", "bf16_to_float", "float_to_bf16", "half_to_float",
               "float_to_half")  # fmt: skip
_DEFINITION = (r"(?:template <typename T>\s*)?__device__ __forceinline__ [\w ]+\*? {name}\("
               r".*?\n\}}\n")
_REPLACED = ("nan_max", "nan_min", "cluster_rank", "cluster_arrive", "cluster_wait", "in_block",
             *CONVERSIONS)  # fmt: skip


def translate(source: str) -> str:
    """CUDA text of our generators as C++ for the shim."""
    for name in _REPLACED:
        one_line = rf"__device__ __forceinline__ [\w ]+ {name}\([^\n]*\}}\n"
        source = re.sub(one_line, "", source + "\n")
        source = re.sub(_DEFINITION.format(name=name), "", source, flags=re.S)
    source = re.sub(r"extern __shared__ __align__\(16\) unsigned char shared\[\];",
                    "unsigned char* const shared = emu::dynamic();", source)
    counter = iter(range(10_000))
    source = re.sub(
        r"__shared__ (\w+(?: \w+)?) (\w+)\[(.+?)\];",
        lambda m: f"{m[1]}* const {m[2]} = emu::shared_array<{m[1]}>({next(counter)}, {m[3]});",
        source)
    conversions = "\n".join(math_cpp.HELPERS[n] for n in CONVERSIONS)
    kernels = re.findall(r"void __launch_bounds__\(THREADS\) (\w+)\(", source)
    entries = "\n".join(
        f'static void** {k}_args;\nextern "C" void emulate_{k}(unsigned gx, unsigned gy, '
        f"unsigned threads, long shared, unsigned blocks, void** args) {{\n"
        f"    {k}_args = args;\n    emu::body = [] {{ emu::call({k}, {k}_args); }};\n"
        f"    emu::launch(gx, gy, threads, shared, blocks);\n}}" for k in kernels)
    return f'#include "shim.h"\n{conversions}\n{source}\n{entries}\n'


FLAGS = ["-std=c++17", "-O0", "-fPIC", "-w", "-fsanitize=alignment", "-fno-sanitize-recover=all"]


@functools.cache
def folder() -> Path:
    """A folder with the shim, precompiled."""
    path = Path(tempfile.mkdtemp(prefix="cuda_emulator_"))
    (path / "shim.h").write_text(SHIM)
    subprocess.run(["g++", *FLAGS, "-x", "c++-header", str(path / "shim.h")], check=True)
    return path


@functools.cache
def build(source: str) -> ctypes.CDLL:
    path = folder() / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.cpp"
    path.write_text(translate(source))
    done = subprocess.run(
        ["g++", *FLAGS, "-shared", str(path), "-o", str(path.with_suffix(".so"))],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{source}"
    return ctypes.CDLL(str(path.with_suffix(".so")))


def launch(
    source: str, kernel: str, grid: tuple[int, ...], block: int, tensors: list[torch.Tensor],
    shared: int = 0, cluster: int = 1,
) -> None:  # fmt: skip
    """Run one kernel on CPU tensors."""
    entry = getattr(build(source), f"emulate_{kernel}")
    args = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    gx, gy = (*grid, 1)[:2]
    entry(gx, gy, block, ctypes.c_long(shared), cluster, args)
