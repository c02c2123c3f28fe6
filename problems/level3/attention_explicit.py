"""Attention with the softmax written out and a learned bias per head, as older code has it."""

import math

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 16, "steps": 512, "features": 512, "heads": 8},
    "cpu": {"batch": 2, "steps": 128, "features": 128, "heads": 4},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features, heads, steps):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(features, features)
        self.k = nn.Linear(features, features)
        self.v = nn.Linear(features, features)
        self.bias = nn.Parameter(0.2 * torch.randn(heads, steps, steps))

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + self.bias
        return (torch.softmax(scores, dim=-1) @ v).transpose(1, 2).reshape(x.shape)


def get_inputs():
    return [torch.randn(shape["batch"], shape["steps"], shape["features"])]


def get_init_inputs():
    return [shape["features"], shape["heads"], shape["steps"]]
