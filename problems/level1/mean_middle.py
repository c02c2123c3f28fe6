"""Mean over the sequence: pooling of token embeddings."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 256, "steps": 1024, "features": 1024},
    "cpu": {"batch": 16, "steps": 256, "features": 512},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, x):
        return x.mean(dim=1)


def get_inputs():
    return [torch.randn(shape["batch"], shape["steps"], shape["features"])]


def get_init_inputs():
    return []
