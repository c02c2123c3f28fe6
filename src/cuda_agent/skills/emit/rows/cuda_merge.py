"""CUDA text that merges what threads have reduced: one struct for each round of reductions."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.skills.emit.rows.emitter import c_name
from cuda_agent.skills.emit.rows.program import Reduce, RowProgram
from cuda_agent.skills.emit.types import compute_type

NAN_MINMAX = {
    "float": """
// One instruction each; NaN wins, as in torch.
__device__ __forceinline__ float nan_max(float a, float b) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

__device__ __forceinline__ float nan_min(float a, float b) {
    float c;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}""",
    "other": """
// NaN wins, as in torch.
template <typename T>
__device__ __forceinline__ T nan_max(T a, T b) {
    return a > b || a != a ? a : b;
}

template <typename T>
__device__ __forceinline__ T nan_min(T a, T b) {
    return a < b || a != a ? a : b;
}""",
}

BEATS = """
// Whether value a at column i goes before b at column j in argmax: NaN first, then the earlier.
template <typename T>
__device__ __forceinline__ bool beats_max(T a, unsigned long long i, T b, unsigned long long j) {
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan;
    return a > b || ((a == b || a_nan) && i < j);
}

template <typename T>
__device__ __forceinline__ bool beats_min(T a, unsigned long long i, T b, unsigned long long j) {
    const bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan) return a_nan;
    return a < b || ((a == b || a_nan) && i < j);
}"""

EXP_BASE = """
// Exponentials are taken relative to the running maximum, or to 0 while that is infinite.
__device__ __forceinline__ float exp_base(float top) {
    return fabsf(top) == __int_as_float(0x7f800000) ? 0.0f : top;
}"""

LANES_MERGE = """
// Butterfly over LANES neighbouring lanes; all of them get the result.
template <int LANES, typename Sums>
__device__ __forceinline__ Sums lanes_merge(Sums mine) {
    #pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) mine.merge(mine.from(distance));
    return mine;
}"""

BLOCK_MERGE = """
// One barrier: each warp leaves its result in `slots`, then every warp merges all of them.
template <int WARPS, typename Sums>
__device__ __forceinline__ Sums block_merge(Sums mine, Sums* slots) {
    mine = lanes_merge<32>(mine);
    if (WARPS == 1) return mine;
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = mine;
    __syncthreads();
    return lanes_merge<WARPS>(slots[threadIdx.x % WARPS]);
}"""

CLUSTER_MERGE = """
__device__ __forceinline__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The same shared-memory address in block `rank` of the cluster.
template <typename T>
__device__ __forceinline__ T* in_block(T* address, unsigned rank) {
    unsigned long long there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(address), "r"(rank));
    return reinterpret_cast<T*>(there);
}

// Every block writes its result into all blocks of the cluster, then merges its own copy.
template <int BLOCKS, typename Sums>
__device__ __forceinline__ Sums cluster_merge(Sums mine, Sums* slots) {
    if (threadIdx.x < BLOCKS) *in_block(slots + cluster_rank(), threadIdx.x) = mine;
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    return lanes_merge<BLOCKS>(slots[threadIdx.x % BLOCKS]);
}"""

TILE_MERGE = """
// Threads of one column of the tile merge their results; one barrier before `slots` is used again.
template <int LANES, int PARTS, int VECTOR, typename Sums>
__device__ __forceinline__ void tile_merge(Sums (&mine)[VECTOR], Sums* slots) {
    if (PARTS == 1) return;
    const unsigned along = threadIdx.x % LANES, part = threadIdx.x / LANES;
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < VECTOR; ++i) slots[(part * VECTOR + i) * LANES + along] = mine[i];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < VECTOR; ++i) {
        mine[i] = slots[i * LANES + along];
        for (int other = 1; other < PARTS; ++other)
            mine[i].merge(slots[(other * VECTOR + i) * LANES + along]);
    }
}"""

INF = "__int_as_float(0x7f800000)"


@dataclass(frozen=True)
class Member:
    name: str
    ctype: str
    identity: str


def extreme(ctype: str, largest: bool) -> str:
    """The largest or smallest value of a compute type."""
    if ctype == "float":
        text = INF
    elif ctype == "double":
        text = "__longlong_as_double(0x7ff0000000000000LL)"
    elif ctype == "bool":
        return "true" if largest else "false"
    else:
        return "9223372036854775807LL" if largest else "(-9223372036854775807LL - 1)"
    return text if largest else f"-{text}"


def members(program: RowProgram, reduce: Reduce, index_type: str) -> list[Member]:
    """What a struct holds for one reduction."""
    names = [c_name(v) for v in reduce.values]
    ctype = compute_type(program.values[reduce.values[0]].dtype)
    if reduce.kind == "max_expsum":
        return [Member(names[0], "float", f"-{INF}"), Member(names[1], "float", "0.0f")]
    if reduce.kind == "mean_m2":
        return [Member(f"{names[0]}_count", "float", "0.0f"),
                *(Member(n, "float", "0.0f") for n in names)]
    if reduce.kind in ("argmax", "argmin"):
        worst = extreme(ctype, largest=reduce.kind == "argmin")
        none = "~0u" if index_type == "unsigned" else "~0ull"
        return [Member(names[0], ctype, worst), Member(names[1], index_type, none)]
    identity = {
        "sum": "0", "prod": "1", "any": "false", "all": "true",
        "max": extreme(ctype, largest=False), "min": extreme(ctype, largest=True),
    }[reduce.kind]
    if ctype in ("float", "double") and identity in ("0", "1"):
        identity += ".0f" if ctype == "float" else ".0"
    return [Member(names[0], ctype, identity)]


def merge_lines(program: RowProgram, reduce: Reduce) -> list[str]:
    """Statements that merge `other` into this struct."""
    n = [c_name(v) for v in reduce.values]
    kind = reduce.kind
    if kind == "max_expsum":
        return [
            f"const float top_{n[0]} = nan_max({n[0]}, other.{n[0]});",
            f"const float base_{n[0]} = exp_base(top_{n[0]});",
            f"{n[1]} = {n[1]} * expf({n[0]} - base_{n[0]})",
            f"    + other.{n[1]} * expf(other.{n[0]} - base_{n[0]});",
            f"{n[0]} = top_{n[0]};",
        ]
    if kind == "mean_m2":  # Chan, Golub and LeVeque, 1979
        count = f"{n[0]}_count"
        return [
            f"const float all_{n[0]} = {count} + other.{count};",
            f"const float gap_{n[0]} = other.{n[0]} - {n[0]};",
            f"const float share_{n[0]} = all_{n[0]} > 0.0f ? other.{count} / all_{n[0]} : 0.0f;",
            f"{n[1]} += other.{n[1]} + gap_{n[0]} * gap_{n[0]} * share_{n[0]} * {count};",
            f"{n[0]} += gap_{n[0]} * share_{n[0]};",
            f"{count} = all_{n[0]};",
        ]
    if kind in ("argmax", "argmin"):
        return [
            f"if (beats_{kind[3:]}(other.{n[0]}, other.{n[1]}, {n[0]}, {n[1]})) {{",
            f"    {n[0]} = other.{n[0]};",
            f"    {n[1]} = other.{n[1]};",
            "}",
        ]
    return [accumulate(kind, n[0], f"other.{n[0]}")]


def accumulate(kind: str, into: str, value: str) -> str:
    """One statement that takes `value` into the running result of a plain reduction."""
    if kind in ("max", "min"):
        return f"{into} = nan_{kind}({into}, {value});"
    sign = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}[kind]
    return f"{into} {sign} {value};"


def sums_struct(
    program: RowProgram, name: str, reduces: tuple[Reduce, ...], index_type: str
) -> str:
    """The struct of one round: identity, merge, and the copy of another lane."""
    fields = [m for r in reduces for m in members(program, r, index_type)]
    lines = [f"struct {name} {{"]
    lines += [f"    {m.ctype} {m.name};" for m in fields]
    identity = ", ".join(m.identity for m in fields)
    lines += ["", f"    static __device__ {name} identity() {{ return {{{identity}}}; }}", "",
              f"    __device__ void merge(const {name}& other) {{"]
    for reduce in reduces:
        lines += [f"        {line}" for line in merge_lines(program, reduce)]
    lines += ["    }", "",
              "    // This struct as the lane at the other end of a butterfly holds it.",
              f"    __device__ {name} from(int distance) const {{", f"        {name} other;"]
    for m in fields:
        cast = ("(int)", "(bool)") if m.ctype == "bool" else ("", "")
        lines.append(f"        other.{m.name} = {cast[1]}__shfl_xor_sync(0xffffffffu, "
                     f"{cast[0]}{m.name}, distance);")
    return "\n".join([*lines, "        return other;", "    }", "};"])


def helper_text(program: RowProgram, kinds: set[str], ctypes: set[str]) -> list[str]:
    """Helpers that the structs of these reductions call."""
    texts: list[str] = []
    if kinds & {"max", "min", "max_expsum"}:
        if "float" in ctypes:
            texts.append(NAN_MINMAX["float"])
        if ctypes - {"float"}:
            texts.append(NAN_MINMAX["other"])
    if "max_expsum" in kinds:
        texts.append(EXP_BASE)
    if kinds & {"argmax", "argmin"}:
        texts.append(BEATS)
    return [t.strip() for t in texts]
