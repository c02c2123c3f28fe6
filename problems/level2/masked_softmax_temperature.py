"""Attention probabilities: scaled scores, a boolean mask per key, softmax."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 16, "heads": 16, "steps": 1024},
    "cpu": {"batch": 2, "heads": 4, "steps": 256},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, scores, keep):
        scores = scores / self.temperature
        scores = scores.masked_fill(~keep[:, None, None, :], float("-inf"))
        return torch.softmax(scores, dim=-1)


def get_inputs():
    batch, steps = shape["batch"], shape["steps"]
    scores = torch.randn(batch, shape["heads"], steps, steps)
    return [scores, torch.rand(batch, steps) > 0.2]


def get_init_inputs():
    return [0.7]
