"""Mean cross-entropy against class indices. The logits' scale is drawn anew, so the loss varies."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 16384, "classes": 16384},
    "cpu": {"rows": 256, "classes": 8192},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, logits, labels):
        return F.cross_entropy(logits, labels)


def get_inputs():
    scale = 0.5 + 2.0 * torch.rand(())
    logits = scale * torch.randn(shape["rows"], shape["classes"])
    return [logits, torch.randint(0, shape["classes"], (shape["rows"],))]


def get_init_inputs():
    return []
