"""Bottleneck block: 1x1, 3x3 with stride, 1x1, and a projected shortcut."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 64, "channels": 256, "width_inner": 128, "height": 56, "width": 56},
    "cpu": {"batch": 1, "channels": 64, "width_inner": 32, "height": 28, "width": 28},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, channels, inner):
        super().__init__()
        self.reduce = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, inner, 3, stride=2, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, 2 * channels, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(2 * channels)
        self.shortcut = nn.Conv2d(channels, 2 * channels, 1, stride=2, bias=False)
        self.norm4 = nn.BatchNorm2d(2 * channels)
        for norm in (self.norm1, self.norm2, self.norm3, self.norm4):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.1)
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        y = torch.relu(self.norm1(self.reduce(x)))
        y = torch.relu(self.norm2(self.conv(y)))
        return torch.relu(self.norm3(self.expand(y)) + self.norm4(self.shortcut(x)))


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [shape["channels"], shape["width_inner"]]
