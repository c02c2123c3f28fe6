"""Adaptive layer norm of a diffusion transformer: normalise, then scale and shift per sample."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 64, "steps": 1024, "features": 1152},
    "cpu": {"batch": 4, "steps": 256, "features": 384},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features, elementwise_affine=False, eps=1e-6)

    def forward(self, x, scale, shift):
        return self.norm(x) * (1.0 + scale[:, None, :]) + shift[:, None, :]


def get_inputs():
    size = (shape["batch"], shape["steps"], shape["features"])
    scale = 0.5 * torch.randn(shape["batch"], shape["features"])
    shift = 0.5 * torch.randn(shape["batch"], shape["features"])
    return [torch.randn(size), scale, shift]


def get_init_inputs():
    return [shape["features"]]
