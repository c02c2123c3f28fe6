"""Matrix times vector: one pass over the matrix."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 32768, "columns": 16384},
    "cpu": {"rows": 4096, "columns": 2048},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, a, x):
        return a @ x


def get_inputs():
    return [torch.randn(shape["rows"], shape["columns"]), torch.randn(shape["columns"])]


def get_init_inputs():
    return []
