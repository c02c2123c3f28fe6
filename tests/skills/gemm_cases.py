"""Products with epilogues for the tests: layouts, broadcasts, dtypes, skinny shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    arrange: Callable[[Tensors], Tensors] = lambda tensors: tensors

    def inputs(self) -> Tensors:
        torch.manual_seed(5)
        return self.arrange(tuple(torch.randn(s).to(self.dtype) for s in self.shapes))


def linear_gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.mm(x, w.t()) + b)


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(torch.mm(x, w) * 0.125)


def batch_norm(x: torch.Tensor, w: torch.Tensor, m: torch.Tensor, v: torch.Tensor,
               g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:  # fmt: skip
    y = torch.mm(x, w.t())
    return F.relu(torch.ops.aten._native_batch_norm_legit_no_training(y, g, b, m, v, 0.1, 1e-5)[0])


def _positive_variance(tensors: Tensors) -> Tensors:
    x, w, m, v, g, b = tensors
    return x, w, m, v * v + 0.5, g, b


def _expanded(tensors: Tensors) -> Tensors:
    a, b = tensors
    return a, b.expand(3, *b.shape[1:])


HALF, BFLOAT, DOUBLE = torch.float16, torch.bfloat16, torch.float64
GENERAL = [
    Case("linear_gelu", linear_gelu, ((24, 40), (32, 40), (32,))),
    Case("odd", linear_gelu, ((19, 23), (17, 23), (17,))),
    Case("residual", lambda x, w, b, r: torch.mm(x, w.t()) + b + r,
         ((20, 36), (36, 36), (36,), (20, 36))),
    Case("reads_operand_again", lambda x, w: torch.mm(x, w) + x, ((20, 20), (20, 20))),
    Case("square_of_one", lambda x: torch.relu(torch.mm(x, x.t())), ((18, 25),)),
    Case("relu", lambda a, b, c: F.relu(torch.mm(a, b) + c), ((33, 16), (16, 48), (48,))),
    Case("bare", torch.mm, ((33, 16), (16, 20))),
    Case("row_scale", lambda a, b, c, d: F.silu(torch.mm(a, b) * c) / d,
         ((24, 16), (16, 32), (24, 1), ())),
    Case("batch_norm", batch_norm, ((24, 40), (32, 40), (32,), (32,), (32,), (32,)),
         arrange=_positive_variance),
    Case("bmm_scale", lambda a, b: torch.bmm(a, b) * 0.5, ((3, 18, 24), (3, 24, 20))),
    Case("bmm_transposed", lambda a, b, m: torch.bmm(a, b.transpose(1, 2)) + m,
         ((3, 18, 24), (3, 20, 24), (18, 20))),
    Case("product_kept", lambda a, b: (y := torch.mm(a, b), torch.relu(y)), ((20, 16), (16, 24))),
    Case("two_outputs", lambda a, b: (torch.exp(y := torch.mm(a, b)), y + 1),
         ((20, 16), (16, 24))),
    Case("mask", lambda a, b: torch.mm(a, b) > 0, ((20, 16), (16, 24))),
    Case("bfloat16", linear_gelu, ((24, 40), (32, 40), (32,)), BFLOAT),
    Case("float16", linear_gelu, ((24, 40), (32, 40), (32,)), HALF),
    Case("float64", linear_gelu, ((24, 40), (32, 40), (32,)), DOUBLE),
]
SKINNY = [
    Case("matvec_tanh", lambda a, x: torch.tanh(torch.mm(a, x)), ((70, 256), (256, 1))),
    Case("vecmat", scaled, ((1, 96), (96, 72))),
    Case("one_token", linear_gelu, ((1, 512), (100, 512), (100,))),
    Case("few_tokens", linear_gelu, ((3, 1024), (37, 1024), (37,))),
    Case("sixteen_tokens", linear_gelu, ((16, 128), (50, 128), (50,))),
    Case("narrow", scaled, ((90, 136), (136, 5))),
    Case("narrow_columns", lambda a, b: torch.mm(a.t(), b) + 1, ((200, 96), (200, 3))),
    Case("odd_skinny", linear_gelu, ((2, 333), (21, 333), (21,))),
    Case("both_small", scaled, ((7, 4096), (4096, 2))),
    Case("long_k_columns", lambda a, b: torch.relu(torch.mm(a, b)), ((4, 3000), (3000, 40))),
    Case("k_of_one", scaled, ((40, 1), (1, 6))),
    Case("batched", lambda a, b: torch.bmm(a, b) * 2, ((3, 50, 64), (3, 64, 2))),
    Case("batched_row", lambda a, b: F.silu(torch.bmm(a, b.transpose(1, 2))),
         ((3, 1, 64), (3, 44, 64))),
    Case("batched_expanded", lambda a, b: torch.bmm(a, b) - 1, ((3, 2, 64), (1, 64, 44)),
         arrange=_expanded),
    Case("skinny_residual", lambda x, w, b, r: torch.mm(x, w.t()) + b + r,
         ((2, 256), (40, 256), (40,), (2, 40))),
    Case("skinny_norm", batch_norm, ((4, 128), (32, 128), (32,), (32,), (32,), (32,)),
         arrange=_positive_variance),
    Case("skinny_kept", lambda a, b: (y := torch.mm(a, b), torch.relu(y)), ((60, 32), (32, 2))),
    Case("skinny_bfloat16", linear_gelu, ((4, 256), (30, 256), (30,)), BFLOAT),
    Case("skinny_float16", scaled, ((12, 96), (96, 64)), HALF),
    Case("skinny_float64", linear_gelu, ((2, 130), (30, 130), (30,)), DOUBLE),
]
CASES = [*GENERAL, *SKINNY]
