"""A stencil region taken apart: sizes, steps, and the elementwise ops behind the convolution."""

from __future__ import annotations

from dataclasses import dataclass

from cuda_agent.graph.ir import Ref, Region, Tensor
from cuda_agent.graph.ops import is_stencil
from cuda_agent.skills.emit.epilogue import Epilogue

Pair = tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class Stencil:
    """out[n, c, r, s] = bias[c] + sum over i, j of weight[c, i, j] * x[n, c // multiplier,
    r * stride - padding + i * dilation, ...]; one row where the convolution has one dim."""

    region: Region
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: Pair
    padding: Pair
    dilation: Pair
    finish: Epilogue

    @property
    def channels(self) -> int:
        return self.x.shape[1]

    @property
    def multiplier(self) -> int:
        return self.weight.shape[0] // self.channels

    @property
    def taps(self) -> Pair:
        return _pair(self.weight.shape[2:])

    @property
    def size(self) -> Pair:
        """Rows and columns of an input image."""
        return _pair(self.x.shape[2:])

    @property
    def out_size(self) -> Pair:
        return _pair(self.finish.result.shape[2:])

    @property
    def planes(self) -> int:
        """Images of the output: batch times channels."""
        return self.x.shape[0] * self.weight.shape[0]

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.x, self.weight, *([self.bias] if self.bias else []))

    @property
    def at(self) -> tuple[str, ...]:
        """Coordinates of an output element, as the kernels name them."""
        row = ("row",) if len(self.region.space) == 4 else ()
        return ("batch", "c", *row, "column")

    @property
    def traffic_bytes(self) -> int:
        return self.region.bytes_moved


def _pair(sizes: tuple[int, ...]) -> Pair:
    return (sizes[0], sizes[1]) if len(sizes) == 2 else (1, sizes[0])


def _steps(given: object, dims: int, single: int) -> Pair:
    """A stride, padding or dilation. `single`: what the missing rows of one dim have."""
    found = tuple(int(n) for n in given) if isinstance(given, tuple) else (int(str(given)),)
    found = found * dims if len(found) == 1 else found
    return (found[0], found[1]) if dims == 2 else (single, found[0])


def analyse(region: Region) -> Stencil | None:
    """None for a region that is no stencil with an epilogue that can be written."""
    heads = [op for op in region.ops if is_stencil(op, region.values)]
    if region.kind != "stencil" or len(heads) != 1:
        return None
    (conv,) = heads
    x, weight, bias = (
        region.values[a.name] if isinstance(a, Ref) else None for a in conv.args[:3]
    )
    if x is None or weight is None:
        return None
    dims = len(x.shape) - 2
    finish = Epilogue(
        region, region.values[conv.outputs[0]], tuple(op for op in region.ops if op is not conv)
    )
    small = all(t.numel < 2**31 for t in (*region.inputs, *region.outputs))
    if not small or not finish.writable:
        return None
    return Stencil(
        region, x, weight, bias, _steps(conv.args[3], dims, 1), _steps(conv.args[4], dims, 0),
        _steps(conv.args[5], dims, 1), finish,
    )
