"""Layer norm with weight and bias over token features."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 65536, "columns": 2048},
    "cpu": {"rows": 1024, "columns": 768},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(shape["rows"], shape["columns"])]


def get_init_inputs():
    return [shape["columns"]]
