"""cuBLAS products, precision given per call: the part of the runtime that few solutions need.

`runtime.matmul` and `runtime.split_tf32` come from here. Layouts are read from strides, so a
transposed operand costs no copy, and no global flag of torch matters or changes.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Sequence
from ctypes import byref, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DATA_TYPE = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_*
# CUBLAS_COMPUTE_32F, _32F_FAST_TF32, _32F_FAST_TF32, _32F_FAST_16BF, _32F_FAST_16F
_COMPUTE = {"fp32": 68, "tf32": 77, "tf32x3": 77, "bf16": 75, "fp16": 74}
SOURCES = {"split_tf32.cu": r"""
// x = hi + lo with both in TF32: a product of such pairs keeps about float32's accuracy.
__device__ float tf32(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}
__device__ void split(float x, float& hi, float& lo) {
    hi = tf32(x);
    // Rounding up may overflow next to FLT_MAX: cut there. An infinite x has no low part.
    if (isinf(hi)) hi = isinf(x) ? x : __uint_as_float(__float_as_uint(x) & 0xffffe000u);
    lo = isinf(x) ? 0.0f : tf32(x - hi);
}
extern "C" __global__ void split_tf32(const float* __restrict__ x, float* __restrict__ hi,
                                      float* __restrict__ lo, long long n) {
    long long vectors = (unsigned long long)x % 16 ? 0 : n / 4;
    long long step = (long long)gridDim.x * blockDim.x;
    long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long i = first; i < vectors; i += step) {
        float4 v = reinterpret_cast<const float4*>(x)[i], h, l;
        split(v.x, h.x, l.x); split(v.y, h.y, l.y); split(v.z, h.z, l.z); split(v.w, h.w, l.w);
        reinterpret_cast<float4*>(hi)[i] = h;
        reinterpret_cast<float4*>(lo)[i] = l;
    }
    for (long long i = 4 * vectors + first; i < n; i += step) split(x[i], hi[i], lo[i]);
}
"""}
kernels: Any = None  # SOURCES as runtime.Kernels; runtime.py sets it when it loads this file


def _operand(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, int] | None:
    """(operation, leading dimension) of a matrix: 0 (N) row-major, 1 (T) transposed, else None."""
    (rows, columns), (down, right) = shape, stride
    if (columns == 1 or right == 1) and (rows == 1 or down >= columns):
        return 0, columns if rows == 1 else down
    if (rows == 1 or down == 1) and (columns == 1 or right >= rows):
        return 1, rows if columns == 1 else right
    return None


def gemm_layout(
    a_shape: Sequence[int], a_stride: Sequence[int],
    b_shape: Sequence[int], b_stride: Sequence[int],
) -> tuple[int, int, int, int, int, int, int, int, tuple[int, int, int]] | None:
    """How cuBLAS reads (batch, m, k) @ (batch, k, n) without a copy, else None:
    (transa, transb, m, n, k, lda, ldb, ldc, batch strides), for a contiguous row-major product.

    cuBLAS is column-major and so sees a row-major matrix transposed: it computes c^T = b^T a^T.
    Its first operand is our b, its m our n.
    """
    a, b = _operand(a_shape[1:], a_stride[1:]), _operand(b_shape[1:], b_stride[1:])
    if a is None or b is None:
        return None
    m, k, n = a_shape[1], a_shape[2], b_shape[2]
    return b[0], a[0], n, m, k, b[1], a[1], n, (b_stride[0], a_stride[0], m * n)


@functools.cache
def _cublas() -> ctypes.CDLL:
    """The libcublas that torch has loaded: its handles belong to no other copy."""
    mapped = re.findall(r"(/\S*libcublas\.so\S*)$", Path("/proc/self/maps").read_text(), re.M)
    return ctypes.CDLL(mapped[0] if mapped else f"libcublas.so.{(torch.version.cuda or '13')[:2]}")


def split_tf32(x: Tensor) -> tuple[Tensor, Tensor]:
    """float32 `x` as (hi, lo), strides kept. `Derived(split_tf32, weight)` splits weights once."""
    if x.dim() == 3 and x.stride(0) == 0:  # a broadcast batch: split it once
        hi, lo = split_tf32(x[0])
        return hi.expand_as(x), lo.expand_as(x)
    hi = torch.empty_like(x)  # keeps the strides of a dense tensor
    if hi.stride() != x.stride():
        x = x.contiguous()
        hi = torch.empty_like(x)
    lo = torch.empty_like(hi)
    kernels.split_tf32(max(1, min(2048, x.numel() // 1024)), 256, x, hi, lo, x.numel())
    return hi, lo


def matmul(
    a: Any, b: Any, out: Tensor | None = None, precision: str = "fp32", chunk: int = 1024
) -> Tensor:
    """`a @ b` for 2-d or batched operands of one dtype; on a GPU cuBLAS, on a CPU torch.matmul.

    `precision` sets the multiplication of float32 operands: "fp32", "tf32", "bf16", "fp16" or
    "tf32x3", three TF32 products of split operands with about float32's accuracy, where an operand
    may come split, as (hi, lo), and an infinite element gives NaN. Sums are float32, but tensor
    cores cut them off instead of rounding, always towards zero: "tf32x3" sums `chunk` products
    there and adds such sums in float32. `out`, contiguous, may be float32 for half operands.
    """
    parts = [x if isinstance(x, tuple) else (x,) for x in (a, b)]
    a, b = parts[0][0], parts[1][0]
    if not a.is_cuda:
        return torch.matmul(*(x[0] if len(x) == 1 else x[0] + x[1] for x in parts), out=out)
    if out is None:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = torch.empty((*batch, a.shape[-2], b.shape[-1]), dtype=a.dtype, device=a.device)
    if precision != "tf32x3" or a.dtype != torch.float32:
        return _gemm(a, b, out, precision, 0.0)
    (a, a_lo), (b, b_lo) = (x if len(x) == 2 else split_tf32(x[0]) for x in parts)
    product, k = out, a.shape[-1]
    if a.dim() > 2 and b.dim() == 2 and a.is_contiguous() and a_lo.is_contiguous():
        a, a_lo, product = a.view(-1, k), a_lo.view(-1, k), out.view(-1, b.shape[-1])
    _gemm(a_lo, b, product, precision, 0.0)  # the smallest first; their cut-off ends are nothing
    _gemm(a, b_lo, product, precision, 1.0)
    for i in range(0, k, chunk):
        _gemm(a[..., i:i + chunk], b[..., i:i + chunk, :], product, precision, 1.0)
    return out


def _gemm(a: Tensor, b: Tensor, out: Tensor, precision: str, beta: float) -> Tensor:
    """out = a @ b + beta * out by one cublasGemmEx or cublasGemmStridedBatchedEx."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    fits = b.shape[-2] == k and out.shape[-2:] == (m, n) and a.dtype == b.dtype
    if not fits or not out.is_contiguous():
        raise ValueError(f"matmul: {a.dtype} {tuple(a.shape)} @ {b.dtype} {tuple(b.shape)} into a "
                         f"contiguous tensor of shape {tuple(out.shape)} does not fit")
    if {t.get_device() for t in (a, b, out)} != {torch.cuda.current_device()}:
        raise ValueError("matmul: every operand must lie on the current CUDA device")
    if not out.numel() or not k:
        return out if beta else out.zero_()
    if a.dim() > 2 and b.dim() == 2 and a.is_contiguous():  # one large product, not a batch
        _gemm(a.view(-1, k), b, out.view(-1, n), precision, beta)
        return out
    x = a.expand(*out.shape[:-2], m, k).reshape(-1, m, k)
    y = b.expand(*out.shape[:-2], k, n).reshape(-1, k, n)
    x = x if _operand(x.shape[1:], x.stride()[1:]) else x.contiguous()
    y = y if _operand(y.shape[1:], y.stride()[1:]) else y.contiguous()
    layout = gemm_layout(x.shape, x.stride(), y.shape, y.stride())
    assert layout is not None
    *shape, lda, ldb, ldc, (first, second, third) = layout
    scalar, compute = (c_double, 70) if a.dtype == torch.float64 else (c_float, _COMPUTE[precision])
    if a.dtype in (torch.float16, torch.bfloat16):
        compute = _COMPUTE["fp32"]  # products of halves, summed in float32
    types = [_DATA_TYPE[t.dtype] for t in (y, x, out)]
    handle, mode, blas = c_void_p(torch.cuda.current_blas_handle()), c_int(), _cublas()
    blas.cublasGetMathMode(handle, byref(mode))
    blas.cublasSetMathMode(handle, 0)  # CUBLAS_DEFAULT_MATH: torch may have left TF32 on
    batched = x.shape[0] > 1
    strides = [[c_int64(stride)] if batched else [] for stride in (first, second, third)]
    product = blas.cublasGemmStridedBatchedEx if batched else blas.cublasGemmEx
    status = product(
        handle, *shape, byref(scalar(1.0)), c_void_p(y.data_ptr()), types[0], lda, *strides[0],
        c_void_p(x.data_ptr()), types[1], ldb, *strides[1], byref(scalar(beta)),
        c_void_p(out.data_ptr()), types[2], ldc, *strides[2],
        *([x.shape[0]] if batched else []), compute, -1)  # -1: CUBLAS_GEMM_DEFAULT
    blas.cublasSetMathMode(handle, mode)
    if status:
        raise RuntimeError(f"matmul: cuBLAS status {status} for {layout} in {precision}")
    return out
