"""Sum over the first dimension, as in the gradient of a bias."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 65536, "columns": 4096},
    "cpu": {"rows": 4096, "columns": 1024},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=0)


def get_inputs():
    return [torch.randn(shape["rows"], shape["columns"])]


def get_init_inputs():
    return []
