"""Device functions that the scan kernels call."""

from __future__ import annotations

LANES = """
// ITEMS neighbouring elements, loaded and stored as words of up to 16 bytes.
template <typename T> struct alignas(sizeof(T) * ITEMS < 16 ? sizeof(T) * ITEMS : 16) Lanes {
    T lane[ITEMS];
};
template <typename T> __device__ __forceinline__ Lanes<T> load(const T* p) {
    return *reinterpret_cast<const Lanes<T>*>(p);
}
template <typename T> __device__ __forceinline__ void store(T* p, const Lanes<T>& v) {
    *reinterpret_cast<Lanes<T>*>(p) = v;
}
"""

_SCAN = """
// Inclusive scan over the lanes of a warp.
__device__ __forceinline__ T warp_scan(T x, int lane) {
    #pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, x, distance);
        if (lane >= distance) x = other OP x;
    }
    return x;
}
"""
_TOTAL = """
__device__ __forceinline__ T warp_total(T x) {
    #pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        x OP= __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}
"""


def warp_text(ctype: str, symbol: str, identity: str, *, totals: bool) -> str:
    """`warp_scan` and, if wanted, `warp_total` for one type and operation."""
    text = _SCAN.strip() + ("\n" + _TOTAL.strip() if totals else "")
    return text.replace("T x", f"{ctype} x").replace(" T ", f" {ctype} ").replace(
        "OP", symbol)
