"""Largest value over the sequence for each feature."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 128, "steps": 2048, "features": 768},
    "cpu": {"batch": 16, "steps": 256, "features": 384},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, x):
        return x.amax(dim=1)


def get_inputs():
    return [torch.randn(shape["batch"], shape["steps"], shape["features"])]


def get_init_inputs():
    return []
