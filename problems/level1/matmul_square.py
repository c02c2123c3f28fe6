"""Square product in float32: bound by arithmetic, not by memory."""

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
        return a @ b


def get_inputs():
    return [torch.randn(shape["n"], shape["n"]), torch.randn(shape["n"], shape["n"])]


def get_init_inputs():
    return []
