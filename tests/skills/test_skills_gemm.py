"""The gemm_epilogue skill: library products with fused epilogues, and own skinny kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rows_check import CPU, H200, compare
from skills_check import check
from skills_harness import compiler_missing, region

from cuda_agent.skills.gemm_epilogue.analysis import analyse, skinny
from cuda_agent.skills.gemm_epilogue.skill import SKILL

Tensors = tuple[torch.Tensor, ...]
needs_compiler = pytest.mark.skipif(compiler_missing(), reason="no C++ compiler")


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    space: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def inputs(self) -> Tensors:
        torch.manual_seed(5)
        made = [(torch.randn(s) * 0.5).to(self.dtype) for s in self.shapes]
        if self.function is _batch_norm:
            made[-1] = made[-1].abs() + 0.1  # a variance
        return tuple(made)



def _batch_norm(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor, b: torch.Tensor,
                m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return F.relu(torch.ops.aten._native_batch_norm_legit_no_training(
        x @ w, s, b, m, v, 0.1, 1e-5)[0])


LIBRARY = [
    Case("plain", lambda a, b: a @ b, ((40, 24), (24, 33)), (40, 33)),
    Case("bias_gelu", lambda a, w, b: F.gelu(a @ w.t() + b), ((40, 24), (36, 24), (36,)),
         (40, 36)),
    Case("residual", lambda a, w, r: torch.sigmoid(a @ w) * r + r, ((20, 24), (24, 44), (20, 44)),
         (20, 44)),
    Case("product_wanted_too", lambda a, w: ((p := a @ w), torch.tanh(p)), ((32, 24), (24, 40)),
         (32, 40)),
    Case("two_results", lambda a, w, b: ((s := a @ w + b).relu(), s > 0),
         ((32, 24), (24, 40), (40,)), (32, 40)),
    Case("batched", lambda a, b, s: torch.bmm(a, b) * s, ((3, 20, 24), (3, 24, 28), (28,)),
         (3, 20, 28)),
    Case("lower", lambda a, b: torch.tril(a @ b) * 2, ((36, 24), (24, 40)), (36, 40)),
    Case("upper", lambda a, b: torch.triu(torch.bmm(a, b), 2), ((2, 30, 20), (2, 20, 33)),
         (2, 30, 33)),
    Case("half", lambda a, w, b: F.silu(a @ w + b), ((32, 64), (64, 40), (40,)), (32, 40),
         torch.bfloat16),
]
SKINNY = [
    Case("vector", lambda x, w, b: F.gelu(x @ w.t() + b), ((1, 96), (130, 96), (130,)), (1, 130)),
    Case("rows", lambda x, w, b: F.relu(x @ w.t() + b) * 2, ((7, 160), (101, 160), (101,)),
         (7, 101)),
    Case("sixteen", lambda x, w: x @ w.t(), ((16, 132), (64, 132)), (16, 64)),
    Case("odd_k", lambda x, w: torch.tanh(x @ w.t()), ((3, 35), (70, 35)), (3, 70)),
    Case("columns", lambda x, w, b: F.silu(x @ w + b), ((4, 150), (150, 200), (200,)), (4, 200)),
    Case("rows_upper", lambda x, w: torch.triu(x @ w.t(), -1), ((5, 64), (80, 64)), (5, 80)),
    Case("columns_odd", lambda x, w: x @ w, ((2, 129), (129, 67)), (2, 67)),
    Case("tall", lambda x, w, r: x @ w + r, ((90, 64), (64, 5), (90, 5)), (90, 5)),
    Case("tall_t", lambda x, w: F.relu(x.t() @ w), ((96, 130), (96, 3)), (130, 3)),
    Case("batched", lambda a, b, s: torch.bmm(a, b.transpose(1, 2)) * s,
         ((3, 4, 64), (3, 70, 64), (70,)), (3, 4, 70)),
    Case("batched_columns", lambda a, b: torch.exp(torch.bmm(a, b)), ((2, 1, 70), (2, 70, 96)),
         (2, 1, 96)),
    Case("half", lambda x, w, b: F.gelu(x @ w.t() + b), ((4, 128), (72, 128), (72,)), (4, 72),
         torch.bfloat16),
    Case("half_columns", lambda x, w: x @ w, ((4, 128), (128, 72)), (4, 72), torch.float16),
    Case("batch_norm", _batch_norm, ((4, 64), (64, 80), (80,), (80,), (80,), (80,)), (4, 80)),
]
ALL = [*LIBRARY, *SKINNY]


def _id(case: Case) -> str:
    return f"{case.name}_{'x'.join(map(str, case.space))}"


def loose(name: str, got: torch.Tensor, want: torch.Tensor, eager: torch.Tensor) -> None:
    """Products in TF32 are asked for by some knob settings: allowed to differ that much."""
    if "'tf32'" in name and got.is_floating_point() and got.dtype == torch.float32:
        scale = want.abs().max().item()
        assert (got.double() - want).abs().max().item() <= 5e-3 * scale, name
    elif got.dtype == torch.bool:  # a sign near zero may go either way
        assert (got == want).double().mean() > 0.99, name
    else:
        compare(name, got, want, eager)


def _check(case: Case, how: str, **options: Any) -> None:
    check(SKILL, case.function, case.inputs(), how, kind="gemm", space=case.space,
          tolerance=loose, **options)


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("case", ALL, ids=_id)
def test_cpp(case: Case) -> None:
    _check(case, "cpp", sets="default")


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("case", ALL, ids=_id)
def test_emulated(case: Case) -> None:
    _check(case, "emulate", sets="default")


@pytest.mark.slow
@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("how", ["cpp", "emulate"])
@pytest.mark.parametrize("case", ALL, ids=_id)
def test_each_knob_changed_once(case: Case, how: str) -> None:
    _check(case, how)


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", ALL, ids=_id)
def test_compiles_for_hopper(case: Case) -> None:
    _check(case, "nvrtc")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("case", ALL, ids=_id)
def test_on_device(case: Case, tmp_path: Path) -> None:
    _check(case, "device", folder=tmp_path)


def _region(case: Case) -> Any:
    return region(case.function, case.inputs(), "gemm", case.space)


def test_skinny_products_are_recognised_and_large_ones_left_to_the_library() -> None:
    for case in SKINNY:
        gemm = analyse(_region(case))
        assert gemm is not None and skinny(gemm) is not None, case.name
    for case in LIBRARY:
        gemm = analyse(_region(case))
        assert gemm is not None and skinny(gemm) is None, case.name


def test_the_epilogue_runs_in_the_products_buffer() -> None:
    written = SKILL.write(_region(LIBRARY[1]), {}, H200)
    assert "gelu = torch.empty" not in written.forward and written.libraries == ("cuBLAS",)


def test_a_product_that_is_wanted_is_not_overwritten() -> None:
    written = SKILL.write(_region(LIBRARY[3]), {}, CPU)
    assert "torch.empty" in written.forward


def test_exact_products_come_first_and_tf32_last() -> None:
    big = region(lambda a, b: a @ b, (torch.randn(2048, 2048), torch.randn(2048, 2048)), "gemm",
                 (2048, 2048))
    assert SKILL.knobs(big, H200).choices["precision"] == ("tf32x3", "fp32", "tf32")
    small = _region(LIBRARY[0])
    assert SKILL.knobs(small, H200).choices["precision"] == ("fp32", "tf32x3", "tf32")
