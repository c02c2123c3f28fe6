"""Sentence embedding: mean over the kept tokens, then unit length."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 512, "steps": 512, "features": 768},
    "cpu": {"batch": 16, "steps": 128, "features": 384},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, tokens, keep):
        weight = keep[:, :, None].to(tokens.dtype)
        mean = (tokens * weight).sum(dim=1) / weight.sum(dim=1).clamp_min(1.0)
        return mean / mean.norm(dim=-1, keepdim=True).clamp_min(1e-6)


def get_inputs():
    size = (shape["batch"], shape["steps"], shape["features"])
    return [torch.randn(size), torch.rand(size[:2]) > 0.25]


def get_init_inputs():
    return []
