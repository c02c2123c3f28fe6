"""The gate of a SwiGLU MLP: silu of one half of the features times the other."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 16384, "columns": 11008},
    "cpu": {"rows": 256, "columns": 2816},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, x):
        gate, value = x.chunk(2, dim=-1)
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(shape["rows"], 2 * shape["columns"])]


def get_init_inputs():
    return []
