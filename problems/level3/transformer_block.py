"""Post-norm encoder block: self-attention, residual, norm, GELU MLP, residual, norm."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 16, "steps": 512, "features": 768, "heads": 12},
    "cpu": {"batch": 1, "steps": 128, "features": 192, "heads": 4},
}
shape = SHAPES[SIZE]


class Model(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)
        self.norm1 = nn.LayerNorm(features)
        self.up = nn.Linear(features, 4 * features)
        self.down = nn.Linear(4 * features, features)
        self.norm2 = nn.LayerNorm(features)
        for norm in (self.norm1, self.norm2):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.1)

    def forward(self, x):
        batch, steps, features = x.shape
        split = self.qkv(x).view(batch, steps, 3, self.heads, features // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        mixed = mixed.transpose(1, 2).reshape(batch, steps, features)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def get_inputs():
    return [torch.randn(shape["batch"], shape["steps"], shape["features"])]


def get_init_inputs():
    return [shape["features"], shape["heads"]]
