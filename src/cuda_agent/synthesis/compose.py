"""Compositions: one to five seed operators, in a chain or with branches, checked on meta tensors.

Composition `index` of a run is drawn from `random.Random("seed/index")` alone, so that every
worker and every restart draws the same one. Nothing is allocated: shapes, bytes and operations come
from meta tensors, and the batch is then scaled so that the estimated eager time falls into the
window of the target.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cuda_agent.synthesis import grammar
from cuda_agent.synthesis.recipes import Context
from cuda_agent.synthesis.seeds import CHANNELS_FIRST, Seed, apply, resolve, settings
from cuda_agent.synthesis.sizes import SIZES, Size


class Rejected(Exception):
    """No valid composition came of this draw."""


@dataclass(frozen=True)
class Node:
    """One value. `op` is a seed's name, or "input" (fresh data) or "parameter" (learned).

    An input's or parameter's shape is that of value `like` where given, else `shape`.
    """

    op: str
    inputs: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    like: int | None = None
    domain: str = "any"
    index: int | None = None
    """Which part of the operator's tuple (chunk) this value is."""


@dataclass(frozen=True)
class Composition:
    nodes: tuple[Node, ...]
    output: int
    dtype: str
    layout: str
    structure: str

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the seed operators, in order."""
        leaves = ("input", "parameter")
        return tuple(n.op for n in self.nodes if n.op not in leaves and not n.index)

    @property
    def batch(self) -> int:
        return self.nodes[0].shape[0]


@dataclass(frozen=True)
class Value:
    shape: tuple[int, ...]
    layout: str
    range: str
    family: str


def run(node: Node, tensors: Sequence[Any]) -> Any:
    """The node's output as a meta tensor. Raises whatever torch raises."""
    operands = [tensors[i] for i in node.inputs]
    with torch.device("meta"), torch.no_grad():
        if node.op in ("input", "parameter"):
            shape = node.shape if node.like is None else tuple(tensors[node.like].shape)
            return torch.empty(shape)
        if node.op in grammar.SCALAR_OPS and "other" in node.settings:
            return resolve(node.op)(*operands, node.settings["other"])
        out = apply(resolve(node.op), operands, node.settings)
        return out if node.index is None else out[node.index]


def infer(composition: Composition) -> list[torch.Tensor]:
    """Meta tensors of every value."""
    tensors: list[torch.Tensor] = []
    for node in composition.nodes:
        tensors.append(run(node, tensors))
    return tensors


def weights(node: Node) -> int:
    """Numbers in the parameters of the node's module; 0 for a function."""
    target = None if node.op in ("input", "parameter") else resolve(node.op)
    if not isinstance(target, type):
        return 0
    with torch.device("meta"):
        return sum(p.numel() for p in target(**node.settings).parameters())


def cost_ms(composition: Composition, tensors: Sequence[torch.Tensor], size: Size) -> float:
    """Estimated eager time: each operator reads and writes memory, products also compute."""
    itemsize = getattr(torch, composition.dtype).itemsize
    rate = size.flops_per_s * (1 if composition.dtype == "float32" else size.half_speedup)
    total = 0.0
    for node, out in zip(composition.nodes, tensors):
        if node.op in ("input", "parameter") or node.index:
            continue
        reads = [tensors[i] for i in node.inputs]
        moved = itemsize * (out.numel() + sum(t.numel() for t in reads))
        total += size.launch_s + max(
            0.0 if node.index is not None else moved / size.bytes_per_s,
            _operations(node, reads, out) / rate,
        )
    return 1e3 * total


def _operations(node: Node, reads: Sequence[torch.Tensor], out: torch.Tensor) -> float:
    s, x = node.settings, reads[0]
    if "in_features" in s:
        return 2.0 * out.numel() * s["in_features"]
    if "kernel_size" in s and "in_channels" in s:
        taps = s["kernel_size"] ** (x.dim() - 2) / s.get("groups", 1)
        if "Transpose" in node.op:
            return 2.0 * x.numel() * s["out_channels"] * taps
        return 2.0 * out.numel() * s["in_channels"] * taps
    if node.op in grammar.PRODUCTS:
        return 2.0 * out.numel() * x.shape[-1] * (1 if len(reads) < 3 else 2 * x.shape[-2])
    return 8.0 * out.numel()


class Builder:
    """Grows one composition. Every step is tried on meta tensors before it is kept."""

    def __init__(
        self, seeds: Sequence[Seed], rng: random.Random, target: str, dtype: str, layout: str
    ) -> None:
        self.rng, self.dtype, self.size = rng, dtype, SIZES[target]
        self.seeds = [s for s in seeds if dtype == "float32" or s.low_precision]
        self.nodes: list[Node] = []
        self.tensors: list[torch.Tensor] = []
        self.values: list[Value] = []
        shape = (self.size.batch(layout, rng), *self.size.shape(layout, rng))
        self._add(Node("input", shape=shape), layout, "any", "input")

    def _add(self, node: Node, layout: str, range_: str, family: str) -> int:
        out = run(node, self.tensors)
        if not isinstance(out, torch.Tensor) or not 1 < out.numel() < self.size.elements:
            raise Rejected("size")
        if weights(node) > self.size.weights:
            raise Rejected("weights")
        self.nodes.append(node)
        self.tensors.append(out)
        self.values.append(Value(tuple(out.shape), layout, range_, family))
        return len(self.nodes) - 1

    def leaf(self, op: str, shape: tuple[int, ...] = (), like: int | None = None) -> int:
        layout = self.values[like].layout if like is not None else "rows"
        return self._add(Node(op, shape=shape, like=like), layout, "any", op)

    def transposed(self, at: int) -> int:
        """Value `at` with its last two axes exchanged."""
        node = Node("torch.transpose", (at,), {"dim0": -2, "dim1": -1})
        return self._add(node, "tokens", "any", "shape")

    def unary(self, at: int, *, want: tuple[int, ...] | None = None, last: bool = False) -> int:
        """One more operator after value `at`, its output of shape `want` if given."""
        value = self.values[at]
        for _ in range(24):
            family = grammar.choose_family(self.rng, value.layout, value.family, want, last)
            try:
                if family == "affine":
                    return self.affine(at)
                return self._seed_step(at, family, want)
            except (Rejected, RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
                continue
        raise Rejected("no operator fits")

    def _seed_step(self, at: int, family: str, want: tuple[int, ...] | None) -> int:
        value = self.values[at]
        fit = [
            s for s in self.seeds
            if s.family == family and value.layout in s.layouts and s.operands == 0
            and (want is None or s.family in ("linear", "conv") or value.layout in s.keeps)
        ]
        fit = [s for s in fit if grammar.allows(s, value.range, at == 0, value.layout)]
        if not fit:
            raise Rejected("no seed")
        weights = [grammar.weight(s, value.layout) for s in fit]
        seed = self.rng.choices(fit, weights)[0]
        context = Context(value.shape, value.layout, self.rng, want)
        made = settings(seed.name, seed.overload, context)
        if made is None:
            raise Rejected("no recipe")
        node = Node(seed.name, (at,), made)
        out = run(node, self.tensors)
        if want is not None and tuple(out.shape) != want:
            raise Rejected("shape")
        gives = seed.gives if seed.gives != "any" or family != "shape" else value.range
        if at == 0 and seed.domain != "any" and value.range == "any":
            self._set_domain(seed.domain)
        return self._add(node, _layout_after(value, tuple(out.shape)), gives, seed.family)

    def _set_domain(self, domain: str) -> None:
        self.nodes[0] = replace(self.nodes[0], domain=domain)
        self.values[0] = replace(self.values[0], range=domain)

    def affine(self, at: int) -> int:
        """x * s, x + s, x - s, x / s; with a constant or with a learned value for each feature."""
        value, rng = self.values[at], self.rng
        op = rng.choice(("torch.add", "torch.mul", "torch.mul", "torch.sub", "torch.div"))
        if rng.random() < 0.5 or len(value.shape) < 2:
            scalar = rng.choice((0.5, 2.0, 0.1, 1.5, 0.25))
            return self._add(Node(op, (at,), {"other": scalar}), value.layout, "any", "affine")
        op = rng.choice(("torch.add", "torch.mul"))
        first = value.layout in CHANNELS_FIRST
        shape = (value.shape[1], *(1 for _ in value.shape[2:])) if first else value.shape[-1:]
        learned = self.leaf("parameter", shape)
        return self._add(Node(op, (at, learned)), value.layout, "any", "affine")

    def join(self, a: int, b: int, op: str) -> int:
        value = self.values[a]
        out = self._add(Node(op, (a, b)), value.layout, "any", "join")
        self.values[out] = replace(
            self.values[out], layout=_layout_after(value, self.values[out].shape)
        )
        return out

    def chain(self, at: int, count: int, want: tuple[int, ...] | None = None) -> int:
        for left in range(count, 0, -1):
            at = self.unary(at, want=want, last=left == 1)
        return at

    def chunk(self, at: int) -> tuple[int, int]:
        value = self.values[at]
        dim = 1 if value.layout in CHANNELS_FIRST else -1
        if value.shape[dim] % 2:
            raise Rejected("odd")
        halves = [
            self._add(
                Node("torch.chunk", (at,), {"chunks": 2, "dim": dim}, index=i), value.layout,
                value.range, "chunk",
            )
            for i in range(2)
        ]
        return halves[0], halves[1]


def _layout_after(value: Value, shape: tuple[int, ...]) -> str:
    if len(shape) == len(value.shape):
        return value.layout
    by_rank = {2: "rows", 4: "image", 5: "volume"}
    return "tokens" if len(shape) == 3 else by_rank.get(len(shape), "vector")


def compose(
    seeds: Sequence[Seed], seed: int, index: int, *, max_ops: int, target: str
) -> Composition:
    """Composition `index` of a run. Raises Rejected where the draw leads nowhere."""
    rng = random.Random(f"{seed}/{index}")
    count = grammar.choose_count(rng, max_ops)
    layout = grammar.choose_layout(rng)
    dtype = rng.choices(*zip(*SIZES[target].dtypes))[0]
    structure = grammar.choose_structure(rng, count, layout)
    for _ in range(4):
        builder = Builder(seeds, rng, target, dtype, layout)
        try:
            output = grammar.TEMPLATES[structure](builder, count)
            made = Composition(tuple(builder.nodes), output, dtype, layout, structure)
            if len(made.ops) > max_ops or not _all_used(made):
                continue
            return fit_batch(made, SIZES[target], rng)
        except (Rejected, RuntimeError, ValueError, TypeError, IndexError):
            continue
    raise Rejected("no composition of this shape")


def _all_used(made: Composition) -> bool:
    used = {i for n in made.nodes for i in (*n.inputs, n.like)} | {made.output}
    return all(i in used for i in range(len(made.nodes)))


def fit_batch(made: Composition, size: Size, rng: random.Random) -> Composition:
    """`made` with the batch at which the estimated time is one drawn from the target's window, or
    as near to it as memory allows."""
    goal = math.exp(rng.uniform(*map(math.log, size.aim_ms)))
    for _ in range(3):
        tensors = infer(made)
        room = min(
            goal / cost_ms(made, tensors, size), size.bytes / held_bytes(made, tensors),
            size.elements / (1.5 * max(t.numel() for t in tensors)),
        )
        first = replace(made.nodes[0], shape=(_round(made.batch * room), *made.nodes[0].shape[1:]))
        made = replace(made, nodes=(first, *made.nodes[1:]))
    tensors = infer(made)
    if max(t.numel() for t in tensors) >= size.elements:
        raise Rejected("size")
    low, high = size.aim_ms
    if not low / 2 <= cost_ms(made, tensors, size) <= high * 2:
        raise Rejected("size")
    if held_bytes(made, tensors) > 2 * size.bytes:
        raise Rejected("memory")
    return made


def held_bytes(made: Composition, tensors: Sequence[torch.Tensor]) -> int:
    """Of all values together."""
    itemsize: int = getattr(torch, made.dtype).itemsize
    return itemsize * sum(t.numel() for t in tensors)


def _round(batch: float) -> int:
    """The nearest 2^k or 3 * 2^k: sizes as people choose them."""
    if batch < 1.5:
        return 1
    k = math.floor(math.log2(batch))
    return min((2**k, 3 * 2 ** (k - 1), 2 ** (k + 1)), key=lambda n: abs(n - batch))
