"""Pre-norm feed-forward sublayer with its residual."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 16384, "features": 1024},
    "cpu": {"rows": 256, "features": 256},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.up = nn.Linear(features, 4 * features)
        self.down = nn.Linear(4 * features, features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def get_inputs():
    return [torch.randn(shape["rows"], shape["features"])]


def get_init_inputs():
    return [shape["features"]]
