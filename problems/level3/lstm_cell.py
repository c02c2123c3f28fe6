"""One step of an LSTM; hands back hidden and cell state."""

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
        self.gates = nn.Linear(2 * features, 4 * features)

    def forward(self, x, state):
        hidden, cell = state
        i, f, g, o = self.gates(torch.cat((x, hidden), dim=-1)).chunk(4, dim=-1)
        cell = torch.sigmoid(f + 1.0) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


def get_inputs():
    size = (shape["batch"], shape["features"])
    return [torch.randn(size), (torch.randn(size), torch.randn(size))]


def get_init_inputs():
    return [shape["features"]]
