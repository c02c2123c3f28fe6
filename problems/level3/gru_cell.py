"""One step of a GRU, gates written out."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 8192, "features": 1024},
    "cpu": {"batch": 128, "features": 192},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.from_input = nn.Linear(features, 3 * features)
        self.from_hidden = nn.Linear(features, 3 * features)

    def forward(self, x, hidden):
        xr, xz, xn = self.from_input(x).chunk(3, dim=-1)
        hr, hz, hn = self.from_hidden(hidden).chunk(3, dim=-1)
        reset, update = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        new = torch.tanh(xn + reset * hn)
        return (1.0 - update) * new + update * hidden


def get_inputs():
    size = (shape["batch"], shape["features"])
    return [torch.randn(size), torch.randn(size)]


def get_init_inputs():
    return [shape["features"]]
