"""Depthwise 3x3 convolution of a mobile network: a stencil, bound by memory."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 64, "channels": 128, "height": 112, "width": 112},
    "cpu": {"batch": 4, "channels": 64, "height": 56, "width": 56},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [shape["channels"]]
