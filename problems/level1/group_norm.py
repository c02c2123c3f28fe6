"""Group norm over feature maps, as in diffusion U-Nets."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 32, "channels": 320, "height": 64, "width": 64, "groups": 32},
    "cpu": {"batch": 4, "channels": 64, "height": 32, "width": 32, "groups": 8},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [shape["groups"], shape["channels"]]
