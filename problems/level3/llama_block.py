"""Decoder block with RMS norms, rotary positions and a SwiGLU MLP."""

import torch
from torch import nn
from torch.nn import functional as F

SIZE = "gpu"
SHAPES = {
    "gpu": {"batch": 4, "steps": 1024, "features": 1024, "heads": 16, "hidden": 2816},
    "cpu": {"batch": 1, "steps": 128, "features": 192, "heads": 4, "hidden": 512},
}
shape = SHAPES[SIZE]


class RMSNorm(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * self.weight


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Model(nn.Module):
    def __init__(self, features, heads, hidden, steps):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = RMSNorm(features), RMSNorm(features)
        self.qkv = nn.Linear(features, 3 * features, bias=False)
        self.out = nn.Linear(features, features, bias=False)
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)
        half = features // heads // 2
        rate = 10000.0 ** (-torch.arange(half) / half)
        angle = torch.arange(steps)[:, None] * rate
        angle = torch.cat((angle, angle), dim=-1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x):
        batch, steps, features = x.shape
        q, k, v = (
            part.view(batch, steps, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        q, k = rotate(q, self.cos, self.sin), rotate(k, self.cos, self.sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, steps, features))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def get_inputs():
    return [torch.randn(shape["batch"], shape["steps"], shape["features"])]


def get_init_inputs():
    return [shape["features"], shape["heads"], shape["hidden"], shape["steps"]]
