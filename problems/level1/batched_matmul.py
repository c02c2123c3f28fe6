"""Many middle-sized products."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 256, "n": 512},
    "cpu": {"batch": 8, "n": 192},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, a, b):
        return torch.bmm(a, b)


def get_inputs():
    size = (shape["batch"], shape["n"], shape["n"])
    return [torch.randn(size), torch.randn(size)]


def get_init_inputs():
    return []
