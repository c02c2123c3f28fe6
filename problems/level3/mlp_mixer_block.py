"""MLP-Mixer block: one MLP over patches, one over channels."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 64, "steps": 256, "features": 768},
    "cpu": {"batch": 2, "steps": 64, "features": 192},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, patches, features):
        super().__init__()
        self.norm1 = nn.LayerNorm(features)
        self.tokens = nn.Sequential(
            nn.Linear(patches, 2 * patches), nn.GELU(), nn.Linear(2 * patches, patches)
        )
        self.norm2 = nn.LayerNorm(features)
        self.channels = nn.Sequential(
            nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.1)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


def get_inputs():
    return [torch.randn(shape["batch"], shape["steps"], shape["features"])]


def get_init_inputs():
    return [shape["steps"], shape["features"]]
