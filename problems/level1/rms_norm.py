"""RMS norm written by hand, as in most open language models."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 32768, "columns": 4096},
    "cpu": {"rows": 512, "columns": 2048},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + self.eps) * self.weight


def get_inputs():
    return [torch.randn(shape["rows"], shape["columns"])]


def get_init_inputs():
    return [shape["columns"], 1e-6]
