"""Leaky ReLU over a feature map: nothing to win but the copy limit itself."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 64, "channels": 128, "height": 128, "width": 128},
    "cpu": {"batch": 8, "channels": 32, "height": 64, "width": 64},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return F.leaky_relu(x, self.slope)


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [0.1]
