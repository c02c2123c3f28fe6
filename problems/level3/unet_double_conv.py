"""U-Net stage: concatenated skip, then twice convolution, batch norm and ReLU."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 16, "channels": 64, "height": 128, "width": 128},
    "cpu": {"batch": 1, "channels": 16, "height": 32, "width": 32},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(2 * channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.1)
            norm.running_mean.normal_(std=0.1)
            norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x, skip):
        x = torch.relu(self.norm1(self.conv1(torch.cat((skip, x), dim=1))))
        return torch.relu(self.norm2(self.conv2(x)))


def get_inputs():
    size = (shape["batch"], shape["channels"], shape["height"], shape["width"])
    return [torch.randn(size), torch.randn(size)]


def get_init_inputs():
    return [shape["channels"]]
