"""ConvNeXt block: depthwise 7x7, layer norm over channels, MLP, layer scale, residual."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 32, "channels": 192, "height": 56, "width": 56},
    "cpu": {"batch": 1, "channels": 48, "height": 28, "width": 28},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [shape["channels"]]
