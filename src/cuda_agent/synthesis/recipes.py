"""Argument values by parameter name: what a signature can't say.

Each recipe sees the input's shape and layout and the arguments chosen before it, and draws one
value. A parameter that has a default and no recipe keeps its default; one without either makes its
operator unusable. All values are literals, so that they can be written into a problem file.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FEATURES = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
FILTERS = (8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 512)


@dataclass
class Context:
    """What a recipe may look at. `want` is a shape that the output should have, if any."""

    shape: tuple[int, ...]
    layout: str
    rng: random.Random
    want: tuple[int, ...] | None = None
    args: dict[str, Any] = field(default_factory=dict)
    wide: bool = True
    """Whether sizes are for a real problem; small ones serve the crawl."""

    @property
    def channels(self) -> int:
        return self.shape[1] if len(self.shape) > 1 else self.shape[0]

    @property
    def spatial(self) -> tuple[int, ...]:
        return self.shape[2:]

    def width(self, axis: int, near: int, table: tuple[int, ...]) -> int:
        """A number of output features: as wanted, or the same, half, double or any of a table."""
        if self.want is not None:
            return self.want[axis] if len(self.want) == len(self.shape) else near
        if not self.wide:
            return near
        fit = [n for n in table if near // 4 <= n <= near * 4]
        return self.rng.choice([near, near, 2 * near, max(near // 2, 1), *(fit or [near])])


Recipe = Callable[[Context], Any]


def _kernel(c: Context) -> int:
    side = min(c.spatial or (c.shape[-1],))
    choices = (1, 3, 3, 3, 5, 7) if len(c.spatial) < 3 else (1, 3, 3)
    return c.rng.choice([k for k in choices if k <= side] or [1])


def _padding(c: Context) -> int:
    kernel = c.args.get("kernel_size", 1)
    reach = c.args.get("dilation", 1) * (kernel - 1)
    return reach // 2 if c.want is not None or c.rng.random() < 0.85 else 0


def _stride(c: Context) -> int:
    return 1 if c.want is not None else c.rng.choice((1, 1, 1, 2))


def _groups_of_conv(c: Context) -> int:
    cin, cout = c.args.get("in_channels", c.channels), c.args.get("out_channels", c.channels)
    options = [1, 1, 1] + [g for g in (2, 4, 8) if cin % g == 0 == cout % g]
    if cout % cin == 0:
        options += [cin, cin]  # depthwise
    return c.rng.choice(options)


def _groups_of_channels(c: Context) -> int:
    fit = [g for g in (32, 16, 8, 4, 2) if c.channels % g == 0 and c.channels // g > 1]
    return c.rng.choice(fit or [1])


def _normalized_shape(c: Context) -> list[int]:
    return list(c.shape[1:]) if c.layout in ("image", "volume", "sequence") else [c.shape[-1]]


def _dim(c: Context) -> int:
    if c.layout in ("image", "volume", "sequence"):
        return 1 if c.rng.random() < 0.7 else -1
    return -1 if len(c.shape) < 3 or c.rng.random() < 0.75 else 1


def _dims(c: Context) -> list[int]:
    if c.layout in ("image", "volume") and c.rng.random() < 0.75:
        return list(range(2, len(c.shape)))
    return [_dim(c)]


def _heads(c: Context) -> int:
    fit = [h for h in (16, 12, 8, 4, 2) if c.shape[-1] % h == 0 and c.shape[-1] // h >= 4]
    return c.rng.choice(fit or [1])


def _few(*values: Any) -> Recipe:
    return lambda c: c.rng.choice(values)


def _pool(c: Context) -> int:
    side = min(c.spatial or (c.shape[-1],))
    return c.rng.choice([k for k in (2, 2, 3, 4) if k <= side] or [1])


NEEDED: Mapping[str, Recipe] = {
    "in_features": lambda c: c.shape[-1],
    "in1_features": lambda c: c.shape[-1],
    "in2_features": lambda c: c.shape[-1],
    "out_features": lambda c: c.width(-1, c.shape[-1], FEATURES),
    "in_channels": lambda c: c.channels,
    "out_channels": lambda c: c.width(1, c.channels, FILTERS),
    "kernel_size": _kernel,
    "num_features": lambda c: c.channels,
    "num_channels": lambda c: c.channels,
    "num_groups": _groups_of_channels,
    "normalized_shape": _normalized_shape,
    "output_size": lambda c: c.rng.choice((1, 1, 2, 4)),
    "upscale_factor": lambda c: 2,
    "downscale_factor": lambda c: 2,
    "scale_factor": lambda c: 2,
    "groups": lambda c: c.rng.choice([g for g in (2, 4, 8) if c.channels % g == 0] or [1]),
    "size": lambda c: c.rng.choice((3, 5)),
    "threshold": _few(0.0, 0.1, 0.5),
    "value": _few(0.0, 0.5, 1.0),
    "dim": _dim,
    "dim0": lambda c: len(c.shape) - 2,
    "dim1": lambda c: len(c.shape) - 1,
    "axis0": lambda c: len(c.shape) - 2,
    "axis1": lambda c: len(c.shape) - 1,
    "dims": lambda c: [c.rng.randrange(1, len(c.shape))],
    "shifts": _few(1, 2, 3),
    "padding": lambda c: c.rng.choice((1, 2)),
    "norm_type": lambda c: 2.0,
    "exponent": _few(2.0, 3.0, 0.5),
    "p": _few(2.0, 1.0),
    "maxnorm": _few(1.0, 2.0),
    "min": _few(-2.0, -1.0, 0.0),
    "max": _few(1.0, 2.0, 6.0),
    "embed_dim": lambda c: c.shape[-1],
    "num_heads": _heads,
    "d_model": lambda c: c.shape[-1],
    "nhead": _heads,
    "input_size": lambda c: c.shape[-1],
    "hidden_size": lambda c: c.width(-1, c.shape[-1], FEATURES),
    "unflattened_size": lambda c: (c.channels // 2, 2),
    "repeats": lambda c: 2,
    "n": _few(1, 2, 3),
    "k": lambda c: c.rng.choice((1, 2)),
    "diagonal": lambda c: 0,
    "other": _few(0.5, 2.0, 1.5),
    "weight": _few(0.1, 0.25, 0.5),
    "q": _few(0.5, 0.9),
}
"""For parameters without a default."""

VARIED: Mapping[str, Recipe] = {
    "stride": _stride,
    "padding": _padding,
    "dilation": lambda c: c.rng.choice((1, 1, 1, 2)) if c.args.get("kernel_size", 1) > 1 else 1,
    "groups": _groups_of_conv,
    "bias": _few(True, True, True, False),
    "eps": _few(1e-5, 1e-6, 1e-3),
    "negative_slope": _few(0.01, 0.1, 0.2),
    "alpha": _few(1.0, 0.5, 1.5),
    "beta": _few(1.0, 0.5, 2.0),
    "lambd": _few(0.5, 0.25),
    "approximate": _few("none", "tanh"),
    "dim": _dim,
    "dims": lambda c: [c.rng.randrange(1, len(c.shape))],
    "start_dim": lambda c: 1,
    "keepdim": lambda c: c.rng.random() < 0.5,
    "min_val": _few(-1.0, -2.0, 0.0),
    "max_val": _few(1.0, 2.0, 6.0),
    "affine": _few(True, True, False),
    "elementwise_affine": _few(True, True, False),
    "batch_first": lambda c: True,
    "reduction": _few("mean", "sum"),
    "exponent": _few(2.0, 3.0),
    "log_target": lambda c: False,
    "mode": lambda c: "nearest",
    "return_indices": lambda c: False,
    "dropout": lambda c: 0.0,
    "scale_factor": lambda c: 2,
    "min": _few(-2.0, -1.0, 0.0),
    "max": _few(1.0, 2.0, 6.0),
}
"""For parameters with a default; half of the time the default stays."""

ALWAYS = frozenset(
    {"padding", "groups", "dim", "start_dim", "batch_first", "affine", "scale_factor", "dropout",
     "stride", "min", "max"}
)
"""Varied parameters whose default makes a poor or failing problem; drawn each time."""

POOL_KERNEL: Recipe = _pool
LIST_DIMS: Recipe = _dims
