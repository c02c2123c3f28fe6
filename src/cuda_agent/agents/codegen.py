"""The text of `model_new.py`: a module whose forward runs the regions of a graph in order.

The file depends on torch, on `runtime.py` beside it and, for a problem with source, on
`reference.py` beside it. It never imports this package.
"""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cuda_agent.agents.torchcode import literal, torch_lines
from cuda_agent.graph.ir import DTYPE_BYTES, Derived, Graph, InputTree, Region, Tensor
from cuda_agent.records import Problem

LARGE_BYTES = 1 << 20
"""Dead intermediates of this size are deleted at once; smaller ones at the end of forward."""

_LOADER = '''\
import importlib.util
import pathlib

import torch

_file = pathlib.Path(__file__).with_name("runtime.py")
_spec = importlib.util.spec_from_file_location(f"runtime_{__name__}", _file)
runtime = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runtime)
'''

_HOLDERS = '''

class Holder(torch.nn.Module):
    """Holds parameters, buffers and other holders under the names of the original module."""


def hold(root, path, tensor, kind):
    """Register `tensor` at the dotted `path` below `root`."""
    *parents, leaf = path.split(".")
    for name in parents:
        if name not in root._modules:
            root.add_module(name, Holder())
        root = root._modules[name]
    if kind == "parameter":
        root.register_parameter(leaf, torch.nn.Parameter(tensor, tensor.is_floating_point()))
    else:
        root.register_buffer(leaf, tensor, persistent=kind == "buffer")
'''

_ADOPT = '''
    @classmethod
    def adopt(cls, module):
        """A ModelNew that shares parameters, buffers and constants with the original module."""
        new = cls()
        for path, _, _, kind in STATE:
            value, root = module, new
            *parents, leaf = path.split(".")
            for name in parents:
                value, root = getattr(value, name), root._modules[name]
            table = root._parameters if kind == "parameter" else root._buffers
            table[leaf] = getattr(value, leaf)
        return new.train(module.training)
'''


@dataclass(frozen=True)
class Piece:
    """One region as it is written: lines of Python, and a comment that says what they do."""

    region: Region
    lines: tuple[str, ...]
    comment: str


def model_source(
    problem: Problem,
    graph: Graph,
    pieces: Sequence[Piece],
    device_type: str,
    *,
    has_kernels: bool,
    cuda_graph: bool,
    header: Sequence[str],
) -> str:
    """The whole file. `header` are lines of its docstring after the first."""
    writer = _Writer(problem, graph, device_type, cuda_graph)
    text = "\n".join(writer.file(pieces, has_kernels, header))
    return text.rstrip() + "\n"


class _Writer:
    def __init__(
        self, problem: Problem, graph: Graph, device_type: str, cuda_graph: bool
    ) -> None:
        self.problem, self.graph = problem, graph
        self.device_type, self.cuda_graph = device_type, cuda_graph
        self.live = problem.kind == "live"
        self.kinds = {held.path: held.kind for held in graph.state}
        first = next(iter((*graph.input_values, *graph.attributes)), None)
        self.device = f"{first}.device" if first else f'"{device_type}"'

    # --- the file, top to bottom ----------------------------------------------------------------

    def file(self, pieces: Sequence[Piece], has_kernels: bool, header: Sequence[str]) -> list[str]:
        title = f"{self.problem.name}, rewritten for {self.device_type} by cuda-agent."
        lines = [f'"""{_safe(title)}', "", *(_safe(line) for line in header), '"""', ""]
        if self.graph.constants or any(not d.sources for d in self.graph.derived):
            lines.append("import functools")
        lines += _LOADER.splitlines()
        if has_kernels:
            lines.append("kernels = runtime.load(__file__)")
        if not self.live:
            lines.append('reference = runtime.sibling(__file__, "reference")')
        lines.append("aten = torch.ops.aten")
        if self.live:
            lines += ["", *self._state_table(), *_HOLDERS.splitlines()]
        for name in self.graph.constants:
            lines += ["", "", *self._constant(name)]
        for derived in self.graph.derived:
            lines += ["", "", *self._derived(derived)]
        lines += ["", "", *self._class(pieces)]
        return lines

    def _state_table(self) -> list[str]:
        rows = [
            f"    ({held.path!r}, {held.tensor.shape}, torch.{held.tensor.dtype}, {held.kind!r}),"
            for held in self.graph.state
        ]
        return [
            "# What the original module holds; constants are not part of its state_dict.",
            "STATE = (  # path, shape, dtype, kind", *rows, ")",
        ]

    def _constant(self, name: str) -> list[str]:
        tensor = self.graph.values[name]
        numbers = ", ".join(literal(x) for x in self.graph.constants[name])
        wrapped = textwrap.wrap(numbers, 90, break_long_words=False) or [""]
        return [
            "@functools.cache", f"def make_{name}(device):", "    numbers = [",
            *(f"        {line}" for line in wrapped), "    ]",
            f"    made = torch.tensor(numbers, dtype=torch.{tensor.dtype}, device=device)",
            f"    return made.reshape({tensor.shape})",
        ]

    def _derived(self, derived: Derived) -> list[str]:
        """A function of parameters; or of the device alone, as for a causal mask."""
        name, sources = derived.name, derived.sources
        device = f"{sources[0]}.device" if sources else "device"
        body = torch_lines(derived.ops, self.graph.values, {name}, device)
        if sources:
            head = [f"def compute_{name}({', '.join(sources)}):"]
        else:
            head = ["@functools.cache", f"def make_{name}(device):"]
        return [*head, *_indented(body, 4), f"    return {name}"]

    def _class(self, pieces: Sequence[Piece]) -> list[str]:
        base = "torch.nn.Module" if self.live else "reference.Model"
        lines = [f"class ModelNew({base}):", *_indented(self._init(), 4)]
        if self.live:
            lines += [*_ADOPT.splitlines(), ""]
        inside = self._body(pieces)
        checks = self._checks()
        if not self.cuda_graph:
            lines.append(f"    def forward({self._signature()}):")
            return [*lines, *_indented([*checks, *inside], 8)]
        names = ", ".join(self.graph.input_values)
        lines.append(f"    def forward({self._signature()}):")
        lines += [*_indented(checks, 8), f"        return self._graphed({names})", ""]
        lines.append(f"    def run({', '.join(['self', *self.graph.input_values])}):")
        return [*lines, *_indented(inside, 8)]

    def _init(self) -> list[str]:
        own = [
            f"self._{d.name} = runtime.Derived(compute_{d.name})"
            for d in self.graph.derived if d.sources
        ]
        if self.cuda_graph:
            own.append("self._graphed = runtime.Graphed(self.run, self)")
        if self.live:
            return [
                "def __init__(self):", "    super().__init__()",
                "    for path, shape, dtype, kind in STATE:",
                "        hold(self, path, torch.empty(shape, dtype=dtype), kind)",
                *_indented(own, 4),
            ]
        if not own:
            return []
        return [
            "def __init__(self, *args, **kwargs):", "    super().__init__(*args, **kwargs)",
            *_indented(own, 4), "",
        ]

    # --- forward --------------------------------------------------------------------------------

    def _signature(self) -> str:
        graph = self.graph
        parts = [
            f"{name}={literal(graph.baked[name])}" if name in graph.defaulted else name
            for name in graph.input_names
        ]
        return ", ".join(["self", *parts])

    def _checks(self) -> list[str]:
        """Unpacks and checks what forward was given."""
        lines: list[str] = []
        for name, tree in zip(self.graph.input_names, self.graph.inputs):
            if tree is None:
                lines += _baked_check(name, literal(self.graph.baked.get(name)))
            else:
                lines += self._unpack(name, tree)
        if "parameter" in self.kinds.values():
            lines.append("runtime.inference_only(self)")
        return lines

    def _unpack(self, source: str, tree: InputTree) -> Iterator[str]:
        if isinstance(tree, tuple):
            for i, item in enumerate(tree):
                yield from self._unpack(f"{source}[{i}]", item)
        elif tree is not None:
            tensor = self.graph.values[tree]
            yield (
                f'{tree} = runtime.expect("{source}", {source}, {tensor.shape}, '
                f'torch.{tensor.dtype}, "{self.device_type}")'
            )

    def _body(self, pieces: Sequence[Piece]) -> list[str]:
        graph = self.graph
        lines: list[str] = []
        for name, path in graph.attributes.items():
            lines.append(f"{name} = {self._attribute(path)}")
        alone = [derived.name for derived in graph.derived if not derived.sources]
        for name in [*graph.constants, *alone]:
            lines.append(f"{name} = make_{name}({self.device})")
        for derived in graph.derived:
            if not derived.sources:
                continue
            lines.append(f"{derived.name} = self._{derived.name}({', '.join(derived.sources)})")
        dead = _last_uses(graph)
        for piece in pieces:
            lines += ["", f"# {piece.region.id}: {piece.comment}"]
            lines += [line for text in piece.lines for line in text.splitlines()]
            if names := dead.get(piece.region.id):
                lines.append(f"del {', '.join(names)}")
        return [*lines, f"return {graph.output_form.format(*graph.outputs)}"]

    def _attribute(self, path: str) -> str:
        """`self.layers._modules["0"].weight`: by name where Python can spell it."""
        *parents, leaf = path.split(".")
        text = "self"
        for name in parents:
            text += f".{name}" if _spellable(name) else f'._modules["{name}"]'
        if _spellable(leaf):
            return f"{text}.{leaf}"
        table = "_parameters" if self.kinds.get(path) == "parameter" else "_buffers"
        return f'{text}.{table}["{leaf}"]'


def _spellable(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def _baked_check(name: str, value: str) -> list[str]:
    differs = f"{name} is not None" if value == "None" else f"{name} != {value}"
    return [
        f"if {differs}:",
        f'    raise ValueError(f"{name}: this solution was built for {value}, not {{{name}!r}}")'
        if '"' not in value and "{" not in value and "'" not in value
        else f'    raise ValueError("{name} has another value than this solution was built for")',
    ]


def _last_uses(graph: Graph) -> dict[str, list[str]]:
    """{region id: large intermediates that nothing reads after it}."""
    last: dict[str, str] = {}
    made: set[str] = set()
    for region in graph.regions:
        for tensor in region.outputs:
            made.add(tensor.name)
        for tensor in region.inputs:
            last[tensor.name] = region.id
    dead: dict[str, list[str]] = {}
    for name, region_id in last.items():
        large = _nbytes(graph.values[name]) >= LARGE_BYTES
        if large and name in made and name not in graph.outputs:
            dead.setdefault(region_id, []).append(name)
    return dead


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel * DTYPE_BYTES[tensor.dtype]


def _indented(lines: Sequence[str], width: int) -> list[str]:
    return [" " * width + line if line else "" for line in lines]


def _safe(text: str) -> str:
    """Text that may stand in a docstring."""
    return text.replace("\\", "/").replace('"""', "'''")

