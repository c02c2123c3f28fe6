"""A graph under construction: a list of ops that passes rewrite, with shapes inferred by torch.

Every rewrite keeps shape, stride and dtype of the values it replaces, so passes compose in any
order and the outputs keep the memory layout that eager gives them.
"""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cuda_agent.graph.ir import Arg, InputTree, Op, Ref, Tensor, leaves
from cuda_agent.graph.ops import FACTORIES

# Names that generated code uses itself.
_RESERVED = frozenset({"torch", "runtime", "kernels", "aten", "self", "math", "reference"})


@dataclass
class Program:
    """`outputs`, `inputs` and the other fields are those of `ir.Graph`."""

    ops: list[Op]
    values: dict[str, Tensor]
    inputs: tuple[InputTree, ...]
    attributes: dict[str, str]
    outputs: tuple[str, ...]
    output_form: str = "{0}"
    input_names: tuple[str, ...] = ()
    baked: dict[str, Arg] = field(default_factory=dict)
    constants: dict[str, tuple[float | int | bool, ...]] = field(default_factory=dict)
    defaulted: tuple[str, ...] = ()

    def fresh(self, wanted: str) -> str:
        """A name that no value has, is an identifier and no name of the generated code."""
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "value"
        if base[0].isdigit() or keyword.iskeyword(base) or base in _RESERVED:
            base = f"v_{base}"
        name, count = base, 0
        while name in self.values:
            count += 1
            name = f"{base}_{count}"
        return name

    def users(self) -> dict[str, int]:
        """How often each value is read; being an output of the graph counts as one read."""
        count: dict[str, int] = {}
        for op in self.ops:
            for name in op.refs():
                count[name] = count.get(name, 0) + 1
        for name in self.outputs:
            count[name] = count.get(name, 0) + 1
        return count

    def fixed(self) -> set[str]:
        """Values that exist before any op runs."""
        return set(leaves(self.inputs)) | set(self.attributes) | set(self.constants)

    def prune(self) -> None:
        """Drop ops, attributes and values that no output depends on."""
        live = set(self.outputs)
        kept: list[Op] = []
        for op in reversed(self.ops):
            if live.isdisjoint(op.outputs):
                continue
            live.update(op.refs())
            outputs = tuple(name if name in live else "" for name in op.outputs)
            kept.append(replace(op, outputs=outputs))
        self.ops = kept[::-1]
        self.attributes = {k: v for k, v in self.attributes.items() if k in live}
        self.constants = {k: v for k, v in self.constants.items() if k in live}
        live.update(leaves(self.inputs))
        self.values = {k: v for k, v in self.values.items() if k in live}


class Rewriter:
    """Walks a program once. A rule sees each op and either emits a replacement or leaves it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.values = program.values
        self.users = program.users()
        self.outputs = set(program.outputs)
        self.ops: list[Op] = []
        self.producers: dict[str, Op] = {}
        self._renamed: dict[str, str] = {}
        self.changed = False

    def run(self, rule: Callable[[Rewriter, Op], bool]) -> bool:
        """Apply `rule` to every op in order; true when anything changed."""
        for op in self.program.ops:
            op = self._substituted(op)
            mark = len(self.ops)
            if rule(self, op):
                self.changed = True
            else:
                del self.ops[mark:]
                self._append(op)
        program = self.program
        program.ops = self.ops
        program.outputs = tuple(self._renamed.get(n, n) for n in program.outputs)
        if self.changed:
            program.prune()
        return self.changed

    def emit(self, target: str, *args: Arg, name: str | None = None, **kwargs: Arg) -> Ref:
        """Add an op with one tensor result that matters (its first)."""
        pairs = tuple(kwargs.items())
        results = infer(target, args, pairs, self.values)
        hint = name or target.split(".")[1].strip("_")
        first = self.program.fresh(hint)
        self.values[first] = replace(results[0], name=first)
        self._append(Op(target, args, (first, *[""] * (len(results) - 1)), pairs))
        return Ref(first)

    def tensor(self, ref: Arg) -> Tensor:
        assert isinstance(ref, Ref)
        return self.values[ref.name]

    def producer(self, ref: Arg) -> Op | None:
        return self.producers.get(ref.name) if isinstance(ref, Ref) else None

    def single_use(self, ref: Arg) -> bool:
        return isinstance(ref, Ref) and self.users.get(ref.name, 0) <= 1

    def substitute(self, old: str, new: Arg) -> bool:
        """Let `new` stand for `old` from here on. False, and nothing done, if layouts differ."""
        assert isinstance(new, Ref)
        if not same_layout(self.values[old], self.values[new.name]):
            return False
        self._renamed[old] = new.name
        self.users[new.name] = self.users.get(new.name, 0) + self.users.get(old, 0)
        return True

    def _append(self, op: Op) -> None:
        self.ops.append(op)
        for name in op.outputs:
            self.producers[name] = op

    def _substituted(self, op: Op) -> Op:
        if not self._renamed:
            return op

        def walk(arg: Arg) -> Arg:
            if isinstance(arg, Ref):
                return Ref(self._renamed.get(arg.name, arg.name))
            if isinstance(arg, tuple):
                return tuple(walk(a) for a in arg)
            return arg

        kwargs = tuple((k, walk(v)) for k, v in op.kwargs)
        return replace(op, args=tuple(walk(a) for a in op.args), kwargs=kwargs)


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Equal shape, dtype and strides; the stride of a dim of size 1 means nothing."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return all(s == t for n, s, t in zip(a.shape, a.stride, b.stride) if n != 1)


def overload(target: str) -> Callable[..., Any]:
    """"aten.add.Tensor" -> torch.ops.aten.add.Tensor."""
    namespace, name, variant = target.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant)


def decode(arg: Arg, lookup: Callable[[str], Any]) -> Any:
    """An IR argument as torch takes it; "torch.float32" and the like become torch's objects."""
    if isinstance(arg, Ref):
        return lookup(arg.name)
    if isinstance(arg, tuple):
        return [decode(a, lookup) for a in arg]
    if isinstance(arg, str) and arg.startswith("torch."):
        return getattr(torch, arg.removeprefix("torch."))
    return arg


def infer(
    target: str,
    args: tuple[Arg, ...],
    kwargs: Iterable[tuple[str, Arg]],
    values: dict[str, Tensor],
) -> tuple[Tensor, ...]:
    """Shapes, strides and dtypes of an op's results, without running it.

    Raises whatever torch raises when the op refuses its arguments (a view that is impossible).
    """
    keywords = dict(kwargs)
    with torch.no_grad(), _fake_mode():

        def lookup(name: str) -> Any:
            t = values[name]
            return torch.empty_strided(t.shape, t.stride, dtype=getattr(torch, t.dtype))

        if target.split(".")[1] in FACTORIES:
            keywords.setdefault("device", "cpu")
        result = overload(target)(
            *(decode(a, lookup) for a in args),
            **{k: decode(v, lookup) for k, v in keywords.items()},
        )
    results = result if isinstance(result, (tuple, list)) else (result,)
    return tuple(describe("", r) for r in results)


def describe(name: str, tensor: torch.Tensor) -> Tensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(int(n) for n in tensor.shape)
    return Tensor(name, shape, tuple(int(n) for n in tensor.stride()), dtype)


@functools.lru_cache(maxsize=1)
def _fake_mode() -> FakeTensorMode:
    return FakeTensorMode()
