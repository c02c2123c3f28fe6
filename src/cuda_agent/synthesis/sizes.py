"""Sizes and rates for each target: which shapes to draw, and how long they will roughly take.

The rates are constants of the target, not of the machine, so that a seed gives the same problems
everywhere. They only aim the batch; the time filter measures.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """`window_ms` is the filter's, `aim_ms` where the estimate should fall; `elements` of one
    tensor, `weights` of one module and `bytes` of all values are upper limits."""

    window_ms: tuple[float, float]
    aim_ms: tuple[float, float]
    bytes_per_s: float
    flops_per_s: float
    half_speedup: float
    launch_s: float
    elements: int
    weights: int
    bytes: int
    features: tuple[int, ...]
    steps: tuple[int, ...]
    channels: tuple[int, ...]
    sides: tuple[int, ...]
    dtypes: tuple[tuple[str, float], ...]

    def batch(self, layout: str, rng: random.Random) -> int:
        return 64 if layout == "rows" else 4

    def shape(self, layout: str, rng: random.Random) -> tuple[int, ...]:
        """Sizes of all axes but the batch."""
        if layout == "rows":
            return (rng.choice(self.features),)
        if layout == "tokens":
            return rng.choice(self.steps), rng.choice(self.features[: len(self.features) * 2 // 3])
        channels, side = rng.choice(self.channels), rng.choice(self.sides)
        if layout == "sequence":
            return channels, side * side
        if layout == "volume":
            side = max(8, side // 4)
            return channels, side, side, side
        return channels, side, side if rng.random() < 0.85 else rng.choice(self.sides)


SIZES = {
    "cuda": Size(
        window_ms=(1.0, 100.0), aim_ms=(1.4, 12.0), bytes_per_s=3.0e12, flops_per_s=4.0e13,
        half_speedup=8.0, launch_s=1e-5, elements=2**31 - 1, weights=2**27,
        bytes=6 << 30,
        features=(256, 384, 512, 640, 768, 1000, 1024, 1536, 2048, 3072, 4096, 5120, 8192, 11008),
        steps=(64, 77, 128, 197, 256, 512, 1024, 2048),
        channels=(16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 512),
        sides=(14, 16, 28, 32, 56, 64, 96, 112, 128),
        dtypes=(("float32", 0.7), ("bfloat16", 0.2), ("float16", 0.1)),
    ),
    "cpu": Size(
        window_ms=(0.2, 20.0), aim_ms=(0.5, 8.0), bytes_per_s=8e9, flops_per_s=6e10,
        half_speedup=0.5, launch_s=5e-6, elements=2**27, weights=2**23,
        bytes=1 << 29,
        features=(64, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024, 1536, 2048),
        steps=(32, 64, 77, 128, 197, 256),
        channels=(8, 16, 24, 32, 48, 64, 96, 128),
        sides=(7, 8, 14, 16, 28, 32, 56),
        dtypes=(("float32", 0.85), ("bfloat16", 0.15)),
    ),
}
