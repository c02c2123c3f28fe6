"""Projection to twice the width, then a GELU gate."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 16384, "inner": 1024, "outer": 2048},
    "cpu": {"rows": 256, "inner": 256, "outer": 512},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.project = nn.Linear(inner, 2 * outer)

    def forward(self, x):
        value, gate = self.project(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


def get_inputs():
    return [torch.randn(shape["rows"], shape["inner"])]


def get_init_inputs():
    return [shape["inner"], shape["outer"]]
