"""The graph that skills see: values, operations and regions. No torch objects, so it can be
hashed, printed and sent to any policy.

A value is a tensor with a name that is a Python identifier. An operation is one core ATen op. A
region is a group of operations that one skill turns into one or a few kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

RegionKind = Literal["pointwise", "rowwise", "scan", "gemm", "stencil", "view", "torch"]


@dataclass(frozen=True)
class Tensor:
    """`stride` counts elements. `dtype` is torch's name without the prefix, e.g. "float32"."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def is_contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True


@dataclass(frozen=True)
class Ref:
    """An argument that is a value of the graph."""

    name: str


InputTree = str | None | tuple["InputTree", ...]
"""A value's name, None for an argument that is no tensor, or a tuple (or list) of these."""

Arg = Ref | int | float | bool | str | None | tuple["Arg", ...]


@dataclass(frozen=True)
class Op:
    """`outputs = target(*args, **kwargs)`; `target` like "aten.add.Tensor". An output that nothing
    reads is named "" (e.g. the saved mean of native_layer_norm)."""

    target: str
    args: tuple[Arg, ...]
    outputs: tuple[str, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()

    @property
    def name(self) -> str:
        """The op without namespace and overload, e.g. "add"."""
        return self.target.split(".")[1]

    def refs(self) -> Iterator[str]:
        """Names of the values read, in argument order, with repeats."""
        stack: list[Arg] = [*self.args, *(v for _, v in self.kwargs)]
        while stack:
            arg = stack.pop(0)
            if isinstance(arg, Ref):
                yield arg.name
            elif isinstance(arg, tuple):
                stack[:0] = arg

    def kwarg(self, key: str, default: Arg = None) -> Arg:
        return dict(self.kwargs).get(key, default)


@dataclass(frozen=True)
class Region:
    """Operations in topological order that fuse into one unit.

    `space` is the iteration shape of its elementwise work; `reduce_dims` the dims of `space` that
    its reductions run over, ascending, empty for a pure pointwise region. `inputs` are read from
    outside, `outputs` are read outside; `values` has every tensor named in `ops`.
    """

    id: str
    kind: RegionKind
    ops: tuple[Op, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    values: dict[str, Tensor] = field(repr=False)
    space: tuple[int, ...] = ()
    reduce_dims: tuple[int, ...] = ()

    @property
    def op_names(self) -> tuple[str, ...]:
        return tuple(op.name for op in self.ops)

    @property
    def bytes_moved(self) -> int:
        """The fewest bytes through memory: each input read once, each output written once."""
        return sum(_bytes(t) for t in (*self.inputs, *self.outputs))


@dataclass(frozen=True)
class Derived:
    """A value computed once from parameters by `ops` (a batch norm folded into a convolution).

    `sources` are the attribute or constant values that `ops` read; it is computed again when one
    of them changes.
    """

    name: str
    sources: tuple[str, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Held:
    """A tensor that the module holds at an attribute path; a constant is one outside its state_dict
    (a non-persistent buffer, a tensor in a plain attribute)."""

    path: str
    tensor: Tensor
    kind: Literal["parameter", "buffer", "constant"]


@dataclass(frozen=True)
class Graph:
    """A captured module.

    `inputs` are the names of the tensor arguments of forward, in order: None for an argument that
    is no tensor (its value is baked in), a tuple for a tuple or list of tensors. `attributes` maps
    a value name to the attribute path that holds it ("linear.weight"). `outputs` are value names;
    `output_form` says how forward returns them: "({0}, {1})".

    `input_names` are forward's parameter names in order, optional ones that were not given
    included at the end; `baked` maps those that are no tensor to the value they were captured
    with. `constants` maps a value name to the elements (row major) of a tensor that forward itself
    creates from numbers. `derived` values exist only in a graph captured with `fold=True`. `state`
    lists everything that the module holds, read by forward or not.
    """

    inputs: tuple[InputTree, ...]
    attributes: dict[str, str]
    values: dict[str, Tensor]
    regions: tuple[Region, ...]
    outputs: tuple[str, ...]
    output_form: str = "{0}"
    input_names: tuple[str, ...] = ()
    baked: dict[str, Arg] = field(default_factory=dict)
    constants: dict[str, tuple[float | int | bool, ...]] = field(default_factory=dict)
    derived: tuple[Derived, ...] = ()
    state: tuple[Held, ...] = ()
    defaulted: tuple[str, ...] = ()

    @property
    def input_values(self) -> tuple[str, ...]:
        """Names of the tensor inputs, nested ones in order."""
        return tuple(leaves(self.inputs))

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(op for region in self.regions for op in region.ops)


def leaves(tree: InputTree) -> Iterator[str]:
    """Value names of an input tree, in order."""
    if isinstance(tree, str):
        yield tree
    elif tree is not None:
        for item in tree:
            yield from leaves(item)


DTYPE_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1,
}


def _bytes(tensor: Tensor) -> int:
    """Bytes that hold distinct elements: a broadcast dim (stride 0) costs nothing."""
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride):
        count *= size if stride != 0 else 1
    return count * DTYPE_BYTES[tensor.dtype]
