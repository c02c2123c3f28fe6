"""Product with a diagonal matrix, written as a full product."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"n": 8192},
    "cpu": {"n": 640},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, diagonal, b):
        return torch.diag(diagonal) @ b


def get_inputs():
    return [torch.randn(shape["n"]), torch.randn(shape["n"], shape["n"])]


def get_init_inputs():
    return []
