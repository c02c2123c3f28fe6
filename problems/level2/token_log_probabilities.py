"""Log-probability of each chosen token: log-softmax over the vocabulary, then a gather."""

import torch
from torch import nn

SIZE = "gpu"
SHAPES = {
    "gpu": {"rows": 8192, "vocabulary": 32768},
    "cpu": {"rows": 256, "vocabulary": 8192},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def forward(self, logits, tokens):
        log_p = torch.log_softmax(logits, dim=-1)
        return log_p.gather(-1, tokens[:, None]).squeeze(-1)


def get_inputs():
    logits = 3.0 * torch.randn(shape["rows"], shape["vocabulary"])
    return [logits, torch.randint(0, shape["vocabulary"], (shape["rows"],))]


def get_init_inputs():
    return []
