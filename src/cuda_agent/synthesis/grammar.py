"""Which operators follow which, and how branches join: what makes a composition recognisable."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cuda_agent.synthesis.seeds import CHANNELS_FIRST, Seed

if TYPE_CHECKING:
    from cuda_agent.synthesis.compose import Builder

SCALAR_OPS = ("torch.add", "torch.mul", "torch.sub", "torch.div")
PRODUCTS = ("torch.matmul", "torch.inner", "F.scaled_dot_product_attention")

# P(number of operators); the published set is 84% pairs, ours is richer in longer chains.
_COUNTS = {1: 0.08, 2: 0.30, 3: 0.27, 4: 0.20, 5: 0.15}
_LAYOUTS = {"rows": 0.28, "tokens": 0.27, "image": 0.31, "sequence": 0.08, "volume": 0.06}

_COMMON = {
    "relu": 6, "gelu": 8, "silu": 8, "sigmoid": 5, "tanh": 5, "leakyrelu": 4, "softplus": 3,
    "mish": 3, "hardswish": 3, "elu": 2, "hardtanh": 2, "relu6": 2, "hardsigmoid": 2, "prelu": 1,
    "conv2d": 10, "conv1d": 10, "conv3d": 8, "convtranspose2d": 4, "convtranspose1d": 3,
    "convtranspose3d": 4, "linear": 20, "bilinear": 0.2, "layernorm": 10, "batchnorm2d": 8,
    "batchnorm1d": 4, "batchnorm3d": 6, "groupnorm": 8, "rmsnorm": 8, "instancenorm2d": 4,
    "instancenorm1d": 3, "instancenorm3d": 3, "normalize": 4, "syncbatchnorm": 0,
    "exp": 4, "square": 3, "abs": 3, "clamp": 6, "clampmin": 2, "clampmax": 2, "sqrt": 3, "log": 2,
    "log1p": 2, "rsqrt": 2, "sin": 2, "cos": 2, "erf": 2, "reciprocal": 1, "neg": 1, "round": 1,
    "sum": 6, "mean": 8, "amax": 5, "amin": 3, "logsumexp": 5, "var": 3, "std": 2, "norm": 3,
    "prod": 0.3, "cumsum": 5, "cumprod": 1, "softmax": 8, "logsoftmax": 4, "softmin": 1,
    "maxpool2d": 5, "avgpool2d": 5, "adaptiveavgpool2d": 5, "maxpool1d": 4, "avgpool1d": 4,
    "maxpool3d": 4, "upsample": 3, "pixelshuffle": 2, "interpolate": 2, "flatten": 4,
    "transpose": 2, "matmul": 6, "scaleddotproductattention": 4,
}  # fmt: skip
_RARE = 0.4

_START = {
    "linear": 5, "conv": 8, "norm": 3, "activation": 1.2, "pointwise": 0.8, "affine": 0.6,
    "reduction": 0.8, "softmax": 1, "scan": 0.7, "pool": 0.7, "resample": 0.4, "shape": 0.2,
}  # fmt: skip
_NEXT: Mapping[str, Mapping[str, float]] = {
    "product": {"activation": 7, "norm": 5, "affine": 4, "pointwise": 1.5, "reduction": 2,
                "softmax": 1.5, "pool": 2, "scan": 0.3, "resample": 0.3, "shape": 0.1},
    "norm": {"activation": 7, "linear": 4, "conv": 4, "affine": 2, "pointwise": 1, "reduction": 1,
             "pool": 1.5, "softmax": 0.5},
    "activation": {"linear": 3, "conv": 3, "norm": 4, "affine": 3, "reduction": 3, "pool": 3,
                   "pointwise": 1, "softmax": 0.8, "scan": 0.4, "resample": 0.5},
    "pointwise": {"reduction": 4, "affine": 3, "norm": 2, "activation": 2, "linear": 1, "conv": 1,
                  "pointwise": 1.5, "softmax": 1, "scan": 0.8, "pool": 1},
    "reduction": {"affine": 2, "activation": 3, "pointwise": 2, "linear": 2, "softmax": 1},
    "softmax": {"affine": 2, "reduction": 2, "linear": 1, "pointwise": 1, "scan": 0.3},
    "pool": {"activation": 3, "conv": 2, "norm": 2, "affine": 2, "reduction": 1, "shape": 1},
    "join": {"activation": 5, "norm": 5, "reduction": 2, "affine": 2, "linear": 1.5, "conv": 1.5,
             "pool": 1, "pointwise": 1, "softmax": 0.7},
    "shape": {"linear": 3, "activation": 1, "reduction": 1, "norm": 1, "affine": 1},
}  # fmt: skip
_CLASS = {"linear": "product", "conv": "product", "matmul": "product", "scan": "pointwise",
          "resample": "pool", "chunk": "product", "affine": "pointwise"}  # fmt: skip
_KEEPING = ("linear", "conv", "norm", "activation", "pointwise", "affine", "softmax")
_BY_LAYOUT = {"linear": ("rows", "tokens"), "conv": CHANNELS_FIRST, "pool": CHANNELS_FIRST,
              "resample": CHANNELS_FIRST}  # fmt: skip
_SATISFIES = {
    "any": ("any",), "nonneg": ("any", "nonneg"), "positive": ("any", "nonneg", "positive"),
    "unit": ("any", "nonneg", "positive", "unit"),
}  # fmt: skip
_UNCHANGED = ("relu", "leakyrelu", "prelu", "abs", "elu", "celu", "threshold", "sign", "sgn")
_IDLE_ON = {  # operators that only rename values of a range, or scale them
    "nonneg": _UNCHANGED, "positive": _UNCHANGED,
    "unit": (*_UNCHANGED, "relu6", "hardtanh", "clamp", "clampmin", "clampmax"),
}  # fmt: skip
_RANK = re.compile(r"[123]d$")
_LAYOUTS_OF_RANK = {"1d": ("sequence",), "2d": ("image",), "3d": ("volume",)}
_ALSO = (("rows", "batchnorm1d"),)


def _draw(rng: random.Random, weights: Mapping[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def choose_count(rng: random.Random, max_ops: int) -> int:
    counts = [n for n in _COUNTS if n <= max_ops]
    return rng.choices(counts, [_COUNTS[n] for n in counts])[0]


def choose_layout(rng: random.Random) -> str:
    return _draw(rng, _LAYOUTS)


def choose_family(
    rng: random.Random, layout: str, before: str, want: tuple[int, ...] | None, last: bool
) -> str:
    """The family of the next operator after one of family `before`."""
    weights = _START if before in ("input", "parameter") else _NEXT[_CLASS.get(before, before)]
    usable = {
        f: w for f, w in weights.items()
        if layout in _BY_LAYOUT.get(f, (layout,)) and (want is None or f in _KEEPING)
        and not (f == "shape" and last) and not (f == "affine" and before == "affine")
    }
    return _draw(rng, usable) if usable else "activation"


def allows(seed: Seed, range_: str, fresh: bool, layout: str) -> bool:
    """Whether values of `range_` suit the seed and are changed by it; fresh inputs are drawn to
    suit."""
    idle = seed.short in _IDLE_ON.get(range_, ())
    return weight(seed, layout) > 0 and not idle and (fresh or seed.domain in _SATISFIES[range_])


def weight(seed: Seed, layout: str) -> float:
    """How often people write this operator; the same for its spellings nn.X, F.x and torch.x."""
    rank = _RANK.search(seed.short)
    if rank and layout not in _LAYOUTS_OF_RANK[rank[0]] and (layout, seed.short) not in _ALSO:
        return 0.0
    spelling = 0.5 if seed.family in ("norm", "pool") and not seed.name.startswith("nn.") else 1
    return spelling * _COMMON.get(seed.short, _RARE)


# --- how values meet: each template gives the index of the output -----------------------------


def _chain(b: Builder, count: int) -> int:
    return b.chain(0, count)


def _residual(b: Builder, count: int) -> int:
    """[before] -> body -> + what entered the body [-> after]"""
    body = b.rng.randint(1, max(1, count - 1))
    before = b.rng.randint(0, max(0, count - 1 - body)) if body < count - 1 else 0
    start = b.chain(0, before) if before else 0
    end = b.chain(start, body, want=b.values[start].shape)
    joined = b.join(start, end, b.rng.choice(("torch.add", "torch.add", "torch.mul")))
    after = count - 1 - body - before
    return b.chain(joined, after) if after > 0 else joined


def _second_input(b: Builder, count: int) -> int:
    """A chain that meets a second tensor given from outside: residual, gate or difference."""
    before = b.rng.randint(1, max(1, count - 1))
    at = b.chain(0, before)
    other = b.leaf("input", like=at)
    op = b.rng.choice(("torch.add", "torch.add", "torch.mul", "torch.sub", "torch.maximum"))
    joined = b.join(at, other, op)
    return b.chain(joined, count - 1 - before) if count - 1 > before else joined


def _gate(b: Builder, count: int) -> int:
    """Two branches from one value, multiplied or added."""
    left = b.rng.randint(1, max(1, count - 2))
    first = b.chain(0, left)
    right = b.rng.randint(1, max(1, count - 1 - left))
    second = b.chain(0, right, want=b.values[first].shape)
    joined = b.join(first, second, b.rng.choice(("torch.mul", "torch.mul", "torch.add")))
    after = count - 1 - left - right
    return b.chain(joined, after) if after > 0 else joined


def _split(b: Builder, count: int) -> int:
    """Features split in halves, one gates the other (GLU)."""
    at = b.chain(0, count - 3) if count > 3 else 0
    value, gate = b.chunk(at)
    shape = b.values[gate].shape
    for _ in range(8):  # the gate is an activation, whatever came before
        gate_out = b._seed_step(gate, "activation", shape)
        return b.join(value, gate_out, "torch.mul")
    return gate


def _product(b: Builder, count: int) -> int:
    """Matrix product with a second tensor, then an epilogue."""
    value = b.values[0]
    columns = b.rng.choice(b.size.features)
    lead = value.shape[:-2] if value.layout == "tokens" and b.rng.random() < 0.3 else ()
    if lead:
        other = b.leaf("input", like=0)
        joined = b.transposed(other)
        out = b.join(0, joined, "torch.matmul")
        return b.chain(out, count - 2) if count > 2 else out
    other = b.leaf("input", (value.shape[-1], columns))
    out = b.join(0, other, "torch.matmul")
    return b.chain(out, count - 1) if count > 1 else out



TEMPLATES: Mapping[str, Callable[[Builder, int], int]] = {
    "chain": _chain, "residual": _residual, "second_input": _second_input, "gate": _gate,
    "split": _split, "product": _product,
}  # fmt: skip
_STRUCTURES = {  # weight and the operators that it needs at least
    "chain": (6.0, 1), "residual": (2.0, 2), "second_input": (1.5, 2), "gate": (1.5, 3),
    "split": (1.0, 3), "product": (1.0, 2),
}  # fmt: skip


def choose_structure(rng: random.Random, count: int, layout: str) -> str:
    fit = {n: w for n, (w, least) in _STRUCTURES.items() if count >= least}
    if layout not in ("rows", "tokens"):
        fit.pop("product", None)
    return _draw(rng, fit)
