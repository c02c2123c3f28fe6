"""Composition -> the text of a KernelBench-format file, as a person would write it."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any

import torch

from cuda_agent.synthesis.compose import Composition, Node, infer
from cuda_agent.synthesis.seeds import CHANNELS_FIRST, resolve

_AXES = {
    "rows": ("rows", "features"),
    "tokens": ("batch", "steps", "features"),
    "sequence": ("batch", "channels", "length"),
    "image": ("batch", "channels", "height", "width"),
    "volume": ("batch", "channels", "depth", "height", "width"),
}
_SIZED = ("in_features", "out_features", "in_channels", "out_channels", "num_features",
          "num_channels", "normalized_shape", "hidden_size", "input_size", "in1_features",
          "in2_features", "embed_dim")  # fmt: skip
_SIGNS = {"torch.add": "+", "torch.sub": "-", "torch.mul": "*", "torch.div": "/",
          "torch.matmul": "@"}  # fmt: skip
_ATTRIBUTES = {"linear": "linear", "conv": "conv", "norm": "norm", "pool": "pool"}
_DRAWS = {
    "any": "torch.randn({})", "nonneg": "torch.rand({})", "positive": "torch.rand({}) + 0.1",
    "unit": "torch.rand({}) * 0.98 + 0.01",
}  # fmt: skip


class _Writer:
    def __init__(self, made: Composition) -> None:
        self.made = made
        self.shapes = [tuple(t.shape) for t in infer(made)]
        self.sizes: dict[str, int] = {}
        self.init: list[str] = []
        self.forward: list[str] = []
        self.attributes: set[str] = set()
        self.used: list[str] = []
        self.names: dict[int, str] = {}

    def size(self, value: int, role: str) -> str:
        """The name of a size: an old one of the same value, else a new one for `role`."""
        batch = next(iter(self.sizes), None)
        for name, known in self.sizes.items():
            if known == value and name != batch:
                return name
        name, number = role, 2
        while name in self.sizes:
            name, number = f"{role}_{number}", number + 1
        self.sizes[name] = value
        return name

    def shape(self, shape: tuple[int, ...]) -> str:
        axes = _AXES[self.made.layout]
        first = self.shapes[0]
        parts = []
        for i, n in enumerate(shape):
            if len(shape) == len(first) and n == first[i]:
                parts.append(axes[i])
            else:
                parts.append(self.size(n, "columns" if n > 64 else "parts"))
        return ", ".join(parts)

    def argument(self, name: str) -> str:
        """A size as the constructor sees it."""
        if name not in self.used:
            self.used.append(name)
        return name

    def setting(self, key: str, value: Any) -> str:
        role = "filters" if "channels" in key else "hidden" if "features" in key else "width"
        if key in _SIZED:
            if isinstance(value, list):
                parts = [self.argument(self.size(n, role)) for n in value]
                return f"[{', '.join(parts)}]"
            return self.argument(self.size(value, role))
        if key == "groups" and value > 16 and value in self.sizes.values():
            return f"groups={self.argument(self.size(value, role))}"
        return f"{key}={value!r}"

    def attribute(self, base: str) -> str:
        name, number = base, 2
        while name in self.attributes:
            name, number = f"{base}{number}", number + 1
        self.attributes.add(name)
        return name

    def node(self, i: int, node: Node) -> None:
        if node.op == "input":
            free = ("x", "y", "z", "w")
            self.names[i] = free[sum(n.op == "input" for n in self.made.nodes[:i])]
        elif node.op == "parameter":
            self.parameter(i, node)
        elif node.index is not None:
            self.chunk(i, node)
        else:
            self.names[i] = self.target(i)
            self.forward.append(f"{self.names[i]} = {self.expression(node)}")

    def target(self, i: int) -> str:
        """A new name, or the name of an input of this node that nothing needs later."""
        nodes = self.made.nodes
        last = {k: max((j for j, n in enumerate(nodes) if k in n.inputs), default=-1)
                for k in nodes[i].inputs}  # fmt: skip
        for k in nodes[i].inputs:
            if last[k] == i and nodes[k].op != "parameter" and k != self.made.output:
                return self.names[k]
        taken = set(self.names.values())
        return next(n for n in ("h", "u", "v", "g", "s", "t", "a", "b") if n not in taken)

    def parameter(self, i: int, node: Node) -> None:
        user = next(n for n in self.made.nodes if i in n.inputs)
        scale = user.op == "torch.mul"
        name = self.attribute("scale" if scale else "bias")
        sizes = [self.argument(self.size(n, "width")) if n > 1 else "1" for n in self.shapes[i]]
        shape = ", ".join(sizes)
        made = f"torch.rand({shape}) + 0.5" if scale else f"torch.randn({shape})"
        self.init.append(f"self.{name} = nn.Parameter({made})")
        self.names[i] = f"self.{name}"

    def chunk(self, i: int, node: Node) -> None:
        taken = set(self.names.values())
        self.names[i] = ("value", "gate")[node.index or 0]
        if node.index == 0:
            assert not taken & {"value", "gate"}
            source = self.names[node.inputs[0]]
            self.forward.append(f"value, gate = {source}.chunk(2, dim={node.settings['dim']})")

    def expression(self, node: Node) -> str:
        operands = [self.names[k] for k in node.inputs]
        sign = _SIGNS.get(node.op)
        if sign and "other" in node.settings:
            return f"{operands[0]} {sign} {node.settings['other']!r}"
        if sign and len(operands) == 2:
            return f"{operands[0]} {sign} {operands[1]}"
        arguments: list[str] = []
        named = False  # after a keyword everything is one
        for key, value in node.settings.items():
            if key in defaults(node.op) and defaults(node.op)[key] == value:
                continue
            text = self.setting(key, value)
            named = named or text.startswith(f"{key}=")
            arguments.append(text if text.startswith(f"{key}=") or not named else f"{key}={text}")
        if not isinstance(resolve(node.op), type):
            return f"{node.op}({', '.join([*operands, *arguments])})"
        short = node.op.removeprefix("nn.")
        name = self.attribute(_attribute_of(short))
        self.init.append(f"self.{name} = {node.op}({', '.join(arguments)})")
        self.init += _random_statistics(name, resolve(node.op), node.settings)
        return f"self.{name}({', '.join(operands)})"


@cache
def defaults(op: str) -> dict[str, Any]:
    """Arguments that a person would leave out; empty where there is no Python signature."""
    try:
        found = inspect.signature(resolve(op)).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {p.name: p.default for p in found if p.default is not p.empty}


def _attribute_of(short: str) -> str:
    lower = short.lower()
    for word in ("linear", "conv", "norm", "pool", "pad", "shuffle", "softmax"):
        if word in lower:
            return word
    return re.sub(r"\d+d$", "", lower)


def _random_statistics(name: str, kind: type, settings: dict[str, Any]) -> list[str]:
    """Weights of a norm start as ones and zeros, which a kernel could leave out unnoticed."""
    lines: list[str] = []
    if "Norm" not in kind.__name__:
        return lines
    with torch.device("meta"):
        module = kind(**settings)
    if getattr(module, "weight", None) is not None:
        lines.append(f"nn.init.uniform_(self.{name}.weight, 0.5, 1.5)")
    if getattr(module, "bias", None) is not None:
        lines.append(f"nn.init.normal_(self.{name}.bias, std=0.1)")
    if getattr(module, "running_mean", None) is not None:
        lines.append(f"nn.init.normal_(self.{name}.running_mean, std=0.5)")
        lines.append(f"nn.init.uniform_(self.{name}.running_var, 0.5, 1.5)")
    return lines


def render(made: Composition) -> str:
    """Text that `problems.load_problem` reads: dtype as DTYPE, sizes by name at module level."""
    writer = _Writer(made)
    for axis, n in zip(_AXES[made.layout], writer.shapes[0]):
        writer.sizes[axis] = n
    for i, node in enumerate(made.nodes):
        writer.node(i, node)
    draws = []
    for i, node in enumerate(made.nodes):
        if node.op == "input":
            draws.append(_DRAWS[node.domain].format(writer.shape(writer.shapes[i])))
    inputs = [writer.names[i] for i, n in enumerate(made.nodes) if n.op == "input"]
    parts = [f'"""{describe(made)}"""\n', "import torch", "from torch import nn"]
    body = "\n".join([*writer.init, *writer.forward])
    if "F." in body:
        parts.append("from torch.nn import functional as F")
    parts.append("")
    if made.dtype != "float32":
        parts.append(f'DTYPE = "{made.dtype}"')
    parts += [f"{name} = {n}" for name, n in writer.sizes.items()]
    parts += ["", "", "class Model(nn.Module):"]
    if writer.init:
        parts += [f"    def __init__({', '.join(['self', *writer.used])}):",
                  "        super().__init__()", *(f"        {line}" for line in writer.init), ""]
    # inputs are renamed only where forward assigns to them, as people do
    parts += [f"    def forward(self, {', '.join(dict.fromkeys(_input_names(made)))}):"]
    parts += [f"        {line}" for line in _returning(writer, made.output)]
    parts += ["", "", "def get_inputs():"]
    parts += ([f"    return [{', '.join(draws)}]"] if sum(map(len, draws)) < 80 else
              ["    return [", *(f"        {d}," for d in draws), "    ]"])
    parts += ["", "", "def get_init_inputs():", f"    return [{', '.join(writer.used)}]", ""]
    assert inputs
    return "\n".join(parts)


def _input_names(made: Composition) -> list[str]:
    count = sum(n.op == "input" for n in made.nodes)
    return list(("x", "y", "z", "w")[:count])


def _returning(writer: _Writer, output: int) -> list[str]:
    *before, last = writer.forward
    name, _, expression = last.partition(" = ")
    if name == writer.names[output]:
        return [*before, f"return {expression}"]
    return [*writer.forward, f"return {writer.names[output]}"]


def describe(made: Composition) -> str:
    """One line: the operators in order, and how they meet."""
    names = [re.sub(r"^(nn|F|torch)\.", "", op) for op in made.ops]
    text = " -> ".join(names)
    how = {"residual": "residual", "gate": "two branches", "split": "gated halves",
           "second_input": "second input", "product": "matrix product"}  # fmt: skip
    note = how.get(made.structure)
    layout = "channels first" if made.layout in CHANNELS_FIRST else made.layout
    return f"{text} ({', '.join(filter(None, (note, layout)))})."
