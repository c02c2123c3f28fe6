"""Convolution, batch norm at inference and ReLU: the norm can fold into the convolution."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 32, "channels": 64, "height": 112, "width": 112, "filters": 128},
    "cpu": {"batch": 2, "channels": 32, "height": 32, "width": 32, "filters": 32},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(filters)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias, std=0.1)
        self.norm.running_mean.normal_(std=0.1)
        self.norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.randn(shape["batch"], shape["channels"], shape["height"], shape["width"])]


def get_init_inputs():
    return [shape["channels"], shape["filters"]]
