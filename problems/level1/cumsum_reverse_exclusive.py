"""Sum of everything that comes later in the row: returns-to-go without the own reward."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 16384, "columns": 8192},
    "cpu": {"rows": 256, "columns": 4096},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, reward):
        return torch.cumsum(reward.flip(-1), dim=-1).flip(-1) - reward


def get_inputs():
    return [torch.randn(shape["rows"], shape["columns"])]


def get_init_inputs():
    return []
