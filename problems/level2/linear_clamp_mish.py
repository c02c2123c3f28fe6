"""Linear layer, clamp and Mish: a product with an elementwise epilogue."""

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
    def __init__(self, inner, outer, bound):
        super().__init__()
        self.linear = nn.Linear(inner, outer)
        self.bound = bound

    def forward(self, x):
        return F.mish(self.linear(x).clamp(-self.bound, self.bound))


def get_inputs():
    return [torch.randn(shape["rows"], shape["inner"])]


def get_init_inputs():
    return [shape["inner"], shape["outer"], 0.8]
