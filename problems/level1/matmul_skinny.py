"""A handful of tokens times a large weight: decoding, bound by reading the weight."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"tokens": 16, "inner": 8192, "outer": 28672},
    "cpu": {"tokens": 8, "inner": 1024, "outer": 4096},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, x, weight):
        return x @ weight.t()


def get_inputs():
    return [
        torch.randn(shape["tokens"], shape["inner"]),
        torch.randn(shape["outer"], shape["inner"]),
    ]


def get_init_inputs():
    return []
