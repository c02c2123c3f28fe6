"""Cross-entropy with smoothed labels, one value per token."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 8192, "classes": 32000},
    "cpu": {"rows": 128, "classes": 8192},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, labels):
        log_p = torch.log_softmax(logits, dim=-1)
        hit = log_p.gather(-1, labels[:, None]).squeeze(-1)
        return -(1.0 - self.smoothing) * hit - self.smoothing * log_p.mean(dim=-1)


def get_inputs():
    logits = 2.0 * torch.randn(shape["rows"], shape["classes"])
    return [logits, torch.randint(0, shape["classes"], (shape["rows"],))]


def get_init_inputs():
    return [0.1]
