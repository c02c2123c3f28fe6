"""Linear layer, GELU and layer norm: a product with an epilogue and a row reduction."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 16384, "inner": 1024, "outer": 4096},
    "cpu": {"rows": 256, "inner": 256, "outer": 1024},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        self.norm = nn.LayerNorm(outer)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, x):
        return self.norm(F.gelu(self.linear(x)))


def get_inputs():
    return [torch.randn(shape["rows"], shape["inner"])]


def get_init_inputs():
    return [shape["inner"], shape["outer"]]
