"""Product of two lower triangular matrices; half of the work multiplies zeros."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"n": 4096},
    "cpu": {"n": 512},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, a, b):
        return torch.tril(torch.tril(a) @ torch.tril(b))


def get_inputs():
    return [torch.randn(shape["n"], shape["n"]), torch.randn(shape["n"], shape["n"])]


def get_init_inputs():
    return []
