"""Squeeze and excitation: global mean, two small linear layers, a gate per channel."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 64, "channels": 256, "height": 56, "width": 56},
    "cpu": {"batch": 4, "channels": 64, "height": 28, "width": 28},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, channels, ratio):
        super().__init__()
        self.reduce = nn.Linear(channels, channels // ratio)
        self.expand = nn.Linear(channels // ratio, channels)

    def forward(self, x):
        gate = torch.sigmoid(self.expand(torch.relu(self.reduce(x.mean(dim=(2, 3))))))
        return x * gate[:, :, None, None]


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [shape["channels"], 16]
