"""The scan skill: sums and products along any dim, reversed, shifted, masked, with fusion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from rows_check import CPU, H200
from skills_check import check
from skills_harness import compiler_missing, region

from cuda_agent.skills.scan.analysis import analyse
from cuda_agent.skills.scan.skill import SKILL

Tensors = tuple[torch.Tensor, ...]
needs_compiler = pytest.mark.skipif(compiler_missing(), reason="no C++ compiler")


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    make: Callable[[], Tensors]
    space: tuple[int, ...]
    dim: int

    def inputs(self) -> Tensors:
        torch.manual_seed(7)
        return self.make()


def _normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], Tensors]:
    return lambda: tuple(torch.randn(s).to(dtype) for s in shapes)


def _exclusive(x: torch.Tensor) -> torch.Tensor:
    shifted = torch.cat([torch.zeros(x.shape[0], 1), x[:, :-1]], 1)
    return torch.cumsum(shifted, 1)


def _decay(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    total = torch.cumsum(torch.nn.functional.softplus(a) * -1.0, 1)
    return torch.exp(total) * x


CASES = [
    Case("rows", lambda x: torch.cumsum(x, 1), _normal((5, 1000)), (5, 1000), 1),
    Case("rows_odd", lambda x: torch.cumsum(x, -1), _normal((3, 7, 301)), (3, 7, 301), 2),
    Case("short_rows", lambda x: torch.cumsum(x, 1), _normal((50, 33)), (50, 33), 1),
    Case("one_long_row", lambda x: torch.cumsum(x, 0), _normal((20_001,)), (20_001,), 0),
    Case("few_long_rows", lambda x: torch.cumsum(x, 1), _normal((2, 16_384)), (2, 16_384), 1),
    Case("columns", lambda x: torch.cumsum(x, 0), _normal((70, 45)), (70, 45), 0),
    Case("middle", lambda x: torch.cumsum(x, 1), _normal((3, 50, 40)), (3, 50, 40), 1),
    Case("long_columns", lambda x: torch.cumsum(x, 0), _normal((999, 6)), (999, 6), 0),
    Case("tiny", lambda x: torch.cumsum(x, 1), _normal((40, 3)), (40, 3), 1),
    Case("product", lambda x: torch.cumprod(x * 0.1 + 1, 1), _normal((4, 400)), (4, 400), 1),
    Case("reversed", lambda x: torch.cumsum(x.flip(1), 1).flip(1), _normal((4, 512)), (4, 512), 1),
    Case("reversed_odd", lambda x: torch.cumsum(x.flip(1), 1).flip(1), _normal((4, 131)),
         (4, 131), 1),
    Case("reverse_exclusive", lambda x: torch.cumsum(x.flip(-1), -1).flip(-1) - x,
         _normal((4, 300)), (4, 300), 1),
    Case("half_reversed", lambda x, y: torch.cumsum(x.flip(1), 1) * y,
         _normal((4, 260), (4, 260)), (4, 260), 1),
    Case("exclusive", _exclusive, _normal((6, 200)), (6, 200), 1),
    Case("masked", lambda x, m: torch.cumsum(x * m, 1),
         lambda: (torch.randn(4, 512), torch.rand(4, 512) > 0.5), (4, 512), 1),
    Case("fused", _decay, _normal((4, 256), (4, 256)), (4, 256), 1),
    Case("fused_columns", _decay, _normal((3, 60, 40), (3, 60, 40)), (3, 60, 40), 1),
    Case("broadcast", lambda x, s: torch.cumsum(x * s, 1) + s, _normal((6, 128), (6, 1)),
         (6, 128), 1),
    Case("along_scan", lambda x, s: torch.cumsum(x * s, 1) * s, _normal((6, 130), (130,)),
         (6, 130), 1),
    Case("two_outputs", lambda x: ((c := torch.cumsum(x, 1)), c * c + x), _normal((5, 96)),
         (5, 96), 1),
    Case("scanned_is_wanted", lambda x: ((y := torch.exp(x)), torch.cumsum(y, 1)),
         _normal((5, 96)), (5, 96), 1),
    Case("bfloat16", lambda x: torch.cumsum(x, 1), _normal((4, 256), dtype=torch.bfloat16),
         (4, 256), 1),
    Case("integers", lambda x: torch.cumsum(x, 1),
         lambda: (torch.randint(-9, 9, (4, 260)),), (4, 260), 1),
    Case("counts", lambda m: torch.cumsum(m, 0), lambda: (torch.rand(300) > 0.5,), (300,), 0),
    Case("transposed", lambda x: torch.cumsum(x.t(), 1), _normal((128, 40)), (40, 128), 1),
    Case("double", lambda x: torch.cumsum(x, 1), _normal((3, 90), dtype=torch.float64),
         (3, 90), 1),
]


def _check(case: Case, how: str, **options: Any) -> None:
    check(SKILL, case.function, case.inputs(), how, kind="scan", space=case.space,
          reduce_dims=(case.dim,), **options)


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_cpp(case: Case) -> None:
    _check(case, "cpp", sets="default")


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_emulated(case: Case) -> None:
    _check(case, "emulate", sets="default")


@pytest.mark.slow
@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("how", ["cpp", "emulate"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_each_knob_changed_once(case: Case, how: str) -> None:
    _check(case, how)


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_compiles_for_hopper(case: Case) -> None:
    _check(case, "nvrtc")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_on_device(case: Case, tmp_path: Path) -> None:
    _check(case, "device", folder=tmp_path)


def _of(name: str) -> Any:
    case = next(c for c in CASES if c.name == name)
    return region(case.function, case.inputs(), "scan", case.space, (case.dim,))


def test_flips_move_no_data() -> None:
    scan = analyse(_of("reverse_exclusive"))
    assert scan is not None and scan.reverse and len(scan.reads) == 1
    assert all(op.name != "flip" for op in (*scan.before, *scan.after))


def test_a_shift_is_an_offset() -> None:
    scan = analyse(_of("exclusive"))
    assert scan is not None
    (read,) = scan.reads
    assert read.shift == 1 and read.filler == 0


def test_few_long_rows_are_cut_into_segments() -> None:
    assert SKILL.knobs(_of("few_long_rows"), H200).default()["segments"] > 1
    assert SKILL.knobs(_of("one_long_row"), CPU).default()["segments"] > 1
    assert SKILL.knobs(_of("rows"), H200).default()["segments"] == 1
