"""Cosine classifier input: unit rows times a learned temperature and a feature gain."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 65536, "columns": 2048},
    "cpu": {"rows": 1024, "columns": 512},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(features) + 0.5)
        self.log_temperature = nn.Parameter(torch.tensor(2.5))

    def forward(self, x):
        unit = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        return unit * self.gain * self.log_temperature.exp()


def get_inputs():
    return [torch.randn(shape["rows"], shape["columns"])]


def get_init_inputs():
    return [shape["columns"]]
