"""The depthwise_conv skill: regions, and kernels against torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rows_check import CPU, H200
from skills_check import check
from skills_harness import compiler_missing, region
from torch import nn

from cuda_agent.graph import capture
from cuda_agent.skills.depthwise_conv.analysis import analyse
from cuda_agent.skills.depthwise_conv.skill import SKILL

needs_compiler = pytest.mark.skipif(compiler_missing(), reason="no C++ compiler")


@dataclass(frozen=True)
class Case:
    """`shape` of the image, `weight` of the taps; more operands in `others`."""

    name: str
    function: Callable[..., Any]
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    others: tuple[tuple[int, ...], ...] = ()
    dtype: torch.dtype = torch.float32

    def inputs(self) -> list[torch.Tensor]:
        torch.manual_seed(3)
        shapes = (self.shape, self.weight, *self.others)
        return [(torch.randn(s) * 0.5).to(self.dtype) for s in shapes]


def conv(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda x, w: F.conv2d(x, w, groups=x.shape[1], **options)


def biased(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda x, w, b: F.conv2d(x, w, b, groups=x.shape[1], **options)


CASES = [
    Case("same", conv(padding=1), (2, 3, 11, 13), (3, 1, 3, 3)),
    Case("bias", biased(padding=1), (2, 3, 9, 17), (3, 1, 3, 3), ((3,),)),
    Case("valid", conv(), (1, 4, 12, 40), (4, 1, 5, 3)),
    Case("stride", conv(stride=2, padding=1), (2, 2, 15, 14), (2, 1, 3, 3)),
    Case("stride_over_taps", conv(stride=(4, 3)), (1, 2, 21, 23), (2, 1, 2, 2)),
    Case("dilation", conv(padding=(4, 2), dilation=(2, 1)), (1, 3, 19, 16), (3, 1, 5, 5)),
    Case("stride_and_dilation", conv(stride=2, padding=3, dilation=3), (1, 2, 20, 33),
         (2, 1, 3, 3)),
    Case("multiplier", biased(padding=1), (2, 3, 10, 10), (6, 1, 3, 3), ((6,),)),
    Case("wide_padding", conv(padding=5), (1, 2, 4, 5), (2, 1, 3, 3)),
    Case("seven", conv(padding=3), (1, 2, 18, 37), (2, 1, 7, 7)),
    Case("one_tap", conv(), (2, 5, 7, 9), (5, 1, 1, 1)),
    Case("rows_of_one", lambda x, w, b: F.conv1d(x, w, b, padding=2, groups=6), (3, 6, 130),
         (6, 1, 5), ((6,),)),
    Case("causal", lambda x, w: F.silu(F.conv1d(x, w, padding=3, dilation=1, groups=4)[..., :]),
         (2, 4, 67), (4, 1, 4)),
    Case("long_row", lambda x, w: F.conv1d(x, w, stride=3, padding=1, groups=2), (1, 2, 9001),
         (2, 1, 3)),
    Case("epilogue", lambda x, w, b, r: F.gelu(F.conv2d(x, w, b, padding=1, groups=3)) * 2 + r,
         (2, 3, 8, 21), (3, 1, 3, 3), ((3,), (2, 3, 8, 21))),
    Case("per_channel", lambda x, w, s: torch.relu(F.conv2d(x, w, groups=3) * s),
         (2, 3, 9, 9), (3, 1, 3, 3), ((3, 1, 1),)),
    Case("both_wanted", lambda x, w: ((y := F.conv2d(x, w, padding=1, groups=2)), torch.tanh(y)),
         (1, 2, 9, 33), (2, 1, 3, 3)),
    Case("bf16", lambda x, w, b: F.silu(F.conv2d(x, w, b, padding=1, groups=4)), (2, 4, 16, 33),
         (4, 1, 3, 3), ((4,),), torch.bfloat16),
    Case("f16", conv(stride=2, padding=1), (1, 3, 17, 16), (3, 1, 3, 3), (), torch.float16),
]  # fmt: skip


def _check(case: Case, how: str, **options: Any) -> None:
    result = case.function(*case.inputs())
    space = tuple((result if isinstance(result, torch.Tensor) else result[0]).shape)
    check(SKILL, case.function, case.inputs(), how, kind="stencil", space=space, **options)


@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("how", ["cpp", "emulate"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_against_torch(case: Case, how: str) -> None:
    _check(case, how, sets="default")


@pytest.mark.slow
@pytest.mark.compiler
@needs_compiler
@pytest.mark.parametrize("how", ["cpp", "emulate"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_each_knob_changed_once(case: Case, how: str) -> None:
    _check(case, how)


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", CASES[::3], ids=lambda c: c.name)
def test_compiles_for_hopper(case: Case) -> None:
    _check(case, "nvrtc")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_on_device(case: Case, tmp_path: Path) -> None:
    _check(case, "device", folder=tmp_path)


# --- regions ------------------------------------------------------------------------------------


def kinds(module: nn.Module, *shape: int) -> list[str]:
    found = capture(module.eval(), (torch.randn(*shape),)).regions
    return [r.kind for r in found if r.kind != "view"]


def test_what_follows_joins_the_convolution() -> None:
    block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.BatchNorm2d(4), nn.ReLU6())
    assert kinds(block, 2, 4, 8, 8) == ["stencil"]


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3, groups=2), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 9, groups=4),
        nn.ConvTranspose2d(4, 4, 3, groups=4),
    ],
    ids=["grouped", "full", "many_taps", "transposed"],
)
def test_other_convolutions_stay_with_the_library(layer: nn.Module) -> None:
    assert kinds(layer, 2, 4, 12, 12) == ["torch"]


class _ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, groups=4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.relu(x).contiguous(memory_format=torch.channels_last))


def test_channels_last_is_left_to_the_library() -> None:
    assert "stencil" not in kinds(_ChannelsLast(), 2, 4, 8, 8)


def test_a_strip_is_never_taller_than_the_image() -> None:
    case = CASES[11]
    found = region(case.function, case.inputs(), "stencil", (3, 6, 130))
    assert analyse(found) is not None
    assert SKILL.knobs(found, H200).choices["rows"] == (1,)
    assert SKILL.knobs(found, CPU).choices["threads"] == ("one",)
