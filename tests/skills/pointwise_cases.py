"""Elementwise functions for the tests: activations, broadcasts, strides, dtypes, random DAGs."""

from __future__ import annotations

import random
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
    make: Callable[[], Tensors]

    def inputs(self) -> Tensors:
        torch.manual_seed(3)
        return self.make()


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[[], Tensors]:
    return lambda: tuple(torch.randn(s).to(dtype) for s in shapes)


def _batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, m: torch.Tensor,
                       v: torch.Tensor) -> torch.Tensor:  # fmt: skip
    return F.silu(
        torch.ops.aten._native_batch_norm_legit_no_training(x, w, b, m, v, 0.1, 1e-5)[0])


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Tensors:
    a, b = x[..., 0], x[..., 1]
    return a * cos - b * sin, a * sin + b * cos


def _special() -> Tensors:
    x = torch.randn(259)
    x[::7], x[1::7], x[2::7], x[3::7] = float("nan"), float("inf"), -float("inf"), 0.0
    return x, torch.randn(259)


CASES = [
    Case("gelu_flat", F.gelu, normal((3, 5, 7))),
    Case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), normal((4, 64))),
    Case("one_element", lambda x, y: x * y + 1, normal((1,), (1, 1))),
    Case("scalar_operand", lambda x, s: x * s.exp(), normal((33, 4), ())),
    Case("bias_residual", lambda x, b, r: F.gelu(x + b) * 0.5 + r,
         normal((6, 10, 32), (32,), (6, 10, 32))),
    Case("column_scale", lambda x, c: torch.tanh(x) * c, normal((12, 40), (12, 1))),
    Case("outer_sum", lambda a, b: torch.sigmoid(a + b), normal((9, 1), (1, 33))),
    Case("middle", lambda x, m: x - m, normal((4, 6, 20), (1, 6, 1))),
    Case("odd_inner", lambda x, b: F.silu(x) * b, normal((11, 5), (5,))),
    Case("short_rows", lambda x, b: x * b + b, normal((301, 3), (3,))),
    Case("two_outputs", lambda x, y: (x + y, (x - y).abs()), normal((10, 24), (10, 24))),
    Case("transposed", lambda x, y: x.t() + y, normal((37, 50), (50, 37))),
    Case("both_transposed", lambda x, y: x.t() * y.t() + 1, normal((40, 33), (40, 33))),
    Case("batch_transposed", lambda x, y: torch.exp(x.transpose(1, 2)) - y,
         normal((3, 34, 40), (3, 40, 34))),
    Case("permuted_half", lambda x, y: x.permute(0, 2, 1).float() * y,
         lambda: (torch.randn(2, 40, 48).bfloat16(), torch.randn(2, 48, 40))),
    Case("channels_last", lambda x, b: F.relu(x + b),
         lambda: (torch.randn(2, 8, 5, 6).to(memory_format=torch.channels_last),
                  torch.randn(8, 1, 1))),
    Case("strided_slice", lambda x: x[:, ::2] * 2, normal((7, 30))),
    Case("offset_slice", lambda x: F.relu(x[:, 1:17]), normal((9, 20))),
    Case("batch_norm", _batch_norm, lambda: (
        torch.randn(2, 6, 5, 8), torch.randn(6), torch.randn(6), torch.randn(6),
        torch.rand(6) + 0.1)),
    Case("batch_norm_2d", _batch_norm, lambda: (
        torch.randn(12, 16), torch.randn(16), torch.randn(16), torch.randn(16),
        torch.rand(16) + 0.1)),
    Case("bfloat16", lambda x, b: F.gelu(x + b) * x,
         normal((16, 40), (40,), dtype=torch.bfloat16)),
    Case("float16", lambda x: F.silu(x) + 1, normal((13, 24), dtype=torch.float16)),
    Case("mixed", lambda x, h: (x * h, (x + h).to(torch.bfloat16)),
         lambda: (torch.randn(8, 40), torch.randn(8, 40).half())),
    Case("float64", lambda x, y: torch.exp(x) / (1 + y * y),
         normal((9, 12), (9, 12), dtype=torch.float64)),
    Case("masked", lambda x, m: torch.where(m, x, -1e9).masked_fill(x > 1, 0.0),
         lambda: (torch.randn(20, 12), torch.rand(20, 12) > 0.5)),
    Case("boolean", lambda x, y: (x > y) & ~torch.isnan(x) | (x == 0), normal((77,), (77,))),
    Case("integers", lambda a, b: a * 3 + b.clamp(-5, 5) - (a // 4) % 3,
         lambda: (torch.randint(-50, 50, (15, 21)), torch.randint(-50, 50, (21,)))),
    Case("int32_wraps", lambda a: a * 65537 * 65537,
         lambda: (torch.randint(-(2**20), 2**20, (100,), dtype=torch.int32),)),
    Case("uint8", lambda a, b: a + b, lambda: (
        torch.randint(0, 255, (100,), dtype=torch.uint8),
        torch.randint(0, 255, (100,), dtype=torch.uint8))),
    Case("int_to_float", lambda a, x: a.float() / 7 * x, lambda: (
        torch.randint(-128, 127, (64,), dtype=torch.int8), torch.randn(64))),
    Case("quantize", lambda x, s: torch.clamp(torch.round(x / s), -128, 127) * s,
         lambda: (torch.randn(30, 16), torch.rand(16) + 0.1)),
    Case("special_values", lambda x, y: (
        F.relu(x), x.clamp(-1, 1), torch.maximum(x, y), torch.minimum(y, x), F.hardtanh(x),
        torch.isinf(x), x.sign(), F.leaky_relu(x)), _special),
    Case("rotary", _rotate, normal((4, 10, 16, 2), (10, 16), (10, 16))),
    Case("constant_only", lambda x: x * 0 + torch.full((4, 8), 2.5), normal((4, 8))),
]


def random_case(seed: int) -> Case:
    """A DAG of a few ops over operands that broadcast, permute and slice at random."""
    draw = random.Random(seed)
    rank = draw.choice((1, 2, 3, 4))
    space = tuple(draw.choice((1, 2, 3, 4, 8, 12, 16, 33)) for _ in range(rank))
    count = draw.choice((1, 2, 3))
    dtypes = [draw.choice((torch.float32,) * 4 + (torch.bfloat16, torch.float16))
              for _ in range(count)]
    plans = []
    for position in range(count):
        shape = [n if position == 0 or draw.random() < 0.7 else 1 for n in space]
        drop = 0
        while position and drop < rank - 1 and shape[drop] == 1 and draw.random() < 0.5:
            drop += 1
        order = list(range(rank - drop))
        if draw.random() < 0.4:
            draw.shuffle(order)
        plans.append((tuple(shape[drop:]), tuple(order), draw.random() < 0.2))

    def make() -> Tensors:
        tensors = []
        for (shape, order, sliced), dtype in zip(plans, dtypes):
            stored = [shape[d] for d in order]
            inverse = [order.index(d) for d in range(len(order))]
            whole = torch.randn([*stored[:-1], stored[-1] * 2] if sliced else stored)
            whole = (whole * 1.5).to(dtype)
            tensors.append((whole[..., ::2] if sliced else whole).permute(inverse))
        return tuple(tensors)

    unary = [torch.tanh, torch.sigmoid, F.gelu, F.silu, torch.exp, torch.abs, F.relu, torch.neg,
             lambda t: t.clamp(-1, 2), lambda t: t * 0.3 + 1, F.softplus, torch.sin, torch.erf,
             lambda t: torch.sqrt(t.abs() + 0.1), F.elu, F.hardswish, F.mish]
    binary = [torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: a / (b.abs() + 1),
              lambda a, b: torch.where(a > b, a, b * 0.5), torch.atan2]
    steps = [(draw.choice(unary), draw.choice(binary), draw.randrange(count))
             for _ in range(draw.choice((1, 2, 4)))]

    def function(*xs: torch.Tensor) -> Any:
        value = xs[0]
        for one, two, other in steps:
            value = two(one(value), xs[other])
        return (value, torch.tanh(value)) if seed % 3 == 0 else value

    return Case(f"random_{seed}", function, make)


RANDOM = [random_case(seed) for seed in range(40)]
