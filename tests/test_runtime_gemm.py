"""GEMM layouts: a column-major cuBLAS played by numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from cuda_agent import runtime_gemm


def cublas(layout: tuple, memory_b: np.ndarray, memory_a: np.ndarray, batch: int) -> np.ndarray:
    """What cublasGemmStridedBatchedEx would write, flat, reading flat memory column by column."""
    transa, transb, m, n, k, lda, ldb, ldc, (first, second, third) = layout
    out = np.full(batch * third, np.nan)
    for i in range(batch):
        def matrix(memory: np.ndarray, offset: int, op: int, rows: int, cols: int, ld: int):
            shape = (cols, rows) if op else (rows, cols)
            assert ld >= max(1, shape[0]), "cuBLAS refuses a leading dimension below the rows"
            index = offset + np.arange(shape[0])[:, None] + ld * np.arange(shape[1])[None, :]
            return memory[index].T if op else memory[index]

        left = matrix(memory_b, i * first, transa, m, k, lda)
        right = matrix(memory_a, i * second, transb, k, n, ldb)
        index = i * third + np.arange(m)[:, None] + ldc * np.arange(n)[None, :]
        out[index] = left @ right
    return out


def operand(batch: int, rows: int, cols: int, form: str) -> torch.Tensor:
    """A (batch, rows, cols) view of each kind that cuBLAS can read in place."""
    made = torch.randn(batch, rows, cols, dtype=torch.float64)
    if form == "transposed":
        return torch.randn(batch, cols, rows, dtype=torch.float64).transpose(1, 2)
    if form == "padded":
        return torch.randn(batch, rows, cols + 3, dtype=torch.float64)[:, :, :cols]
    if form == "padded transposed":
        return torch.randn(batch, cols, rows + 2, dtype=torch.float64)[..., :rows].transpose(1, 2)
    if form == "broadcast":
        return made[:1].expand(batch, rows, cols)
    return made


FORMS = ("plain", "transposed", "padded", "padded transposed", "broadcast")
SIZES = [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1), (1, 4, 1)]


@pytest.mark.parametrize("a_form, b_form", list(itertools.product(FORMS, FORMS)))
@pytest.mark.parametrize("batch", [1, 2])
def test_gemm_layout(a_form: str, b_form: str, batch: int) -> None:
    for m, k, n in SIZES:
        a, b = operand(batch, m, k, a_form), operand(batch, k, n, b_form)
        layout = runtime_gemm.gemm_layout(a.shape, a.stride(), b.shape, b.stride())
        assert layout is not None
        flat = [x.as_strided((x.untyped_storage().nbytes() // 8,), (1,), 0).numpy() for x in (b, a)]
        got = cublas(layout, flat[0], flat[1], batch).reshape(batch, m, n)
        np.testing.assert_allclose(got, (a @ b).numpy(), rtol=1e-12)


def test_gemm_layout_refuses_what_cublas_cannot_read() -> None:
    plain = torch.randn(1, 4, 4)
    for odd in (torch.randn(1, 4, 8)[:, :, ::2], torch.randn(1, 1, 4).expand(1, 4, 4)):
        assert runtime_gemm.gemm_layout(odd.shape, odd.stride(), (1, 4, 4), plain.stride()) is None
        assert runtime_gemm.gemm_layout((1, 4, 4), plain.stride(), odd.shape, odd.stride()) is None
