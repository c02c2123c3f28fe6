"""A scan region made straight: flips and shifts become the way in which operands are read.

Step t of the scan sees index t of the scanned value. A value behind a flip is seen at index
N - 1 - t: its orientation is 1 instead of 0. So no flip moves data, and reversed, exclusive and
masked forms are the same kernel with other offsets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from cuda_agent.graph.ir import Arg, Op, Ref, Region, Tensor
from cuda_agent.skills.emit import elementwise, expressions, types
from cuda_agent.skills.emit.indexing import (
    Layout,
    Operand,
    Shape,
    Unaddressable,
    channel_operands,
    collapse,
    place,
)

_NULLARY = frozenset({"full", "scalar_tensor", "zeros", "ones"})


class Unsupported(ValueError):
    """A scan region that has no straight form."""


@dataclass(frozen=True)
class Read:
    """An operand as `name` in the kernel: `tensor` at the step's index (orientation 0) or at its
    mirror image. `shift` and `filler` make `filler` of the first (shift > 0) or last (shift < 0)
    indices and move the rest."""

    name: str
    tensor: Tensor
    orientation: int
    shift: int = 0
    filler: float | int | bool = 0


@dataclass
class Scan:
    """A scan along one dim of `space`, `length` steps. `before` computes `source`, the scanned
    value, from `reads`; `after` computes the outputs from `result` and `reads`.

    `reverse`: outputs are stored at index N - 1 - t. `layout` has the other dims (collapsed, in the
    order of the output's memory), `steps` each tensor's stride along the scan.
    """

    kind: str
    space: Shape
    dim: int
    length: int
    reads: list[Read]
    before: list[Op]
    after: list[Op]
    source: str
    result: str
    outputs: list[tuple[str, Tensor]]
    values: dict[str, Tensor]
    reverse: bool
    layout: Layout = field(init=False)
    steps: dict[str, int] = field(init=False)

    @property
    def rows(self) -> int:
        return prod(self.layout.sizes)

    @property
    def accumulator(self) -> str:
        return types.compute_type(self.values[self.result].dtype)

    def after_reads(self) -> list[Read]:
        """Operands that `after` or an output needs."""
        wanted = {n for op in self.after for n in op.refs()} | {n for n, _ in self.outputs}
        for op in reversed(self.before):
            if op.outputs[0] in wanted:
                wanted |= set(op.refs())
        return [r for r in self.reads if r.name in wanted]

    def after_ops(self) -> list[Op]:
        """`after`, with those of `before` in front whose values it reads again."""
        wanted = {n for op in self.after for n in op.refs()} | {n for n, _ in self.outputs}
        again: list[Op] = []
        for op in reversed(self.before):
            if op.outputs[0] in wanted:
                wanted |= set(op.refs())
                again.insert(0, op)
        return [*again, *self.after]

    def before_reads(self) -> list[Read]:
        wanted = {self.source} | {n for op in self.before for n in op.refs()}
        return [r for r in self.reads if r.name in wanted]

    def place_named(self, name: str) -> Operand:
        """A tensor's strides over the other dims."""
        return self.layout[name]

    def along(self, read: Read) -> int:
        """Stride of a read along the scan, in index order."""
        return self.steps[read.tensor.name]

    @property
    def traffic_bytes(self) -> int:
        tensors = {r.tensor.name: r.tensor for r in self.reads}
        tensors |= {t.name: t for _, t in self.outputs}
        return sum(elementwise.distinct_bytes(t) for t in tensors.values())


def analyse(region: Region) -> Scan | None:
    if region.kind != "scan":
        return None
    try:
        return _Straightener(region).scan()
    except (Unsupported, Unaddressable):
        return None


class _Straightener:
    def __init__(self, region: Region) -> None:
        self.region, self.values = region, dict(region.values)
        self.made = {name: op for op in region.ops for name in op.outputs if name}
        scans = [op for op in region.ops if op.name in ("cumsum", "cumprod")]
        if len(scans) != 1 or len(region.reduce_dims) != 1 or not prod(region.space):
            raise Unsupported("one scan along one dim")
        (self.op,) = scans
        if any(channel_operands([op], self.values) for op in region.ops):
            raise Unsupported("per-channel operands")
        self.dim = region.reduce_dims[0]
        self.length = region.space[self.dim]
        self.turned: dict[str, int] = {self.op.outputs[0]: 0}  # what depends on the scan
        self.reads: dict[tuple[str, int], Read] = {}
        self.names: dict[tuple[str, int], str] = {}
        self.ops: list[Op] = []

    def scan(self) -> Scan:
        source = self._need(self._source(), 0)
        before = list(self.ops)
        self.ops = []
        for op in self.region.ops[self.region.ops.index(self.op) + 1 :]:
            self._follow(op)
        final = [t for t in self.region.outputs if t.name in self.turned]
        if not final:
            raise Unsupported("no output depends on the scan")
        orientations = {self.turned[t.name] for t in final}
        if len(orientations) != 1:
            raise Unsupported("outputs of both directions")
        (reverse,) = orientations
        outputs = []
        for tensor in self.region.outputs:
            if tensor.shape != self.region.space or not elementwise.dense(tensor):
                raise Unsupported("an output does not fill the space")
            name = (self._name(tensor.name) if tensor.name in self.turned
                    else self._need(tensor.name, reverse))
            outputs.append((name, tensor))
        result = Scan(
            "sum" if self.op.name == "cumsum" else "prod", self.region.space, self.dim, self.length,
            list(self.reads.values()), before, self.ops, source, self.op.outputs[0], outputs,
            self.values, bool(reverse))
        _place(result)
        self._check(result)
        return result

    def _source(self) -> str:
        first = self.op.args[0]
        if not isinstance(first, Ref):
            raise Unsupported("the scan's operand")
        return first.name

    def _check(self, scan: Scan) -> None:
        for op in (*scan.before, *scan.after):
            if not expressions.supports(op, scan.values):
                raise Unsupported(op.target)
        names = [self.op.outputs[0], self._source(), *(t.name for _, t in scan.outputs)]
        if not all(types.supported(self.values[n].dtype) for n in names):
            raise Unsupported("a dtype")
        if scan.accumulator == "bool":
            raise Unsupported("a dtype")

    def _follow(self, op: Op) -> None:
        """An op behind the scan: takes the orientation of what it reads of the scan."""
        depends = {self.turned[n] for n in op.refs() if n in self.turned}
        if not depends:
            return  # evaluated where it is read
        if len(depends) > 1:
            raise Unsupported("both directions meet")
        (orientation,) = depends
        if op.name == "flip":
            (name,) = op.refs()
            self.turned[op.outputs[0]] = 1 - orientation
            self.names[op.outputs[0], 1 - orientation] = self._name(name)
            return
        if op.name == "cat":
            raise Unsupported("cat behind the scan")
        self.turned[op.outputs[0]] = orientation
        self._emit(op, op.outputs[0], orientation)

    def _name(self, value: str) -> str:
        return self.names.get((value, self.turned[value]), value)

    def _emit(self, op: Op, name: str, orientation: int) -> None:
        def renamed(arg: Arg) -> Arg:
            if isinstance(arg, Ref):
                if arg.name in self.turned:
                    return Ref(self._name(arg.name))
                return Ref(self._need(arg.name, orientation))
            return tuple(renamed(a) for a in arg) if isinstance(arg, tuple) else arg

        args = tuple(renamed(a) for a in op.args)
        self.values.setdefault(name, replace(self.values[op.outputs[0]], name=name))
        self.ops.append(replace(op, args=args, outputs=(name,)))

    def _need(self, value: str, orientation: int) -> str:
        """The kernel's name for `value` at `orientation`; adds the reads and ops it takes."""
        if not self._varies(value):
            orientation = 0
        key = (value, orientation)
        if key in self.names:
            return self.names[key]
        op = self.made.get(value)
        if op is not None and op.name == "flip":
            (inner,) = op.refs()
            self.names[key] = self._need(inner, 1 - orientation)
            return self.names[key]
        name = value if orientation == 0 else f"{value}_mirrored"
        self.names[key] = name
        if op is None or op.name == "cat":
            self.reads[key] = self._read(name, value, op, orientation)
            self.values.setdefault(name, replace(self.values[value], name=name))
        else:
            self._emit(op, name, orientation)
        return name

    def _varies(self, value: str) -> bool:
        shape = self.values[value].shape
        place = self.dim - (len(self.region.space) - len(shape))
        return place >= 0 and shape[place] != 1

    def _read(self, name: str, value: str, op: Op | None, orientation: int) -> Read:
        if op is None:
            return Read(name, self.values[value], orientation)
        parts = op.args[0]
        assert isinstance(parts, tuple)
        names = [p.name for p in parts if isinstance(p, Ref)]
        if len(names) != 2:
            raise Unsupported("cat of other than two")
        constant = 0 if self._constant(names[0]) is not None else 1
        filler = self._constant(names[constant])
        outside = names[1 - constant]
        if filler is None or outside in self.made:
            raise Unsupported("cat of two computed values")
        size = self.values[names[constant]].shape[self.dim]
        return Read(name, self.values[outside], orientation, size if constant == 0 else -size,
                    filler)

    def _constant(self, name: str) -> float | int | bool | None:
        op = self.made.get(name)
        if op is None or op.name not in _NULLARY:
            return None
        if op.name in ("zeros", "ones"):
            return int(op.name == "ones")
        value = op.args[0] if op.name == "scalar_tensor" else op.args[1]
        return value if isinstance(value, (int, float, bool)) else None


def _place(scan: Scan) -> None:
    """Strides of every tensor: along the scan, and over the other dims, collapsed."""
    space, dim = scan.space, scan.dim
    others = tuple(n for d, n in enumerate(space) if d != dim)
    placed: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
    for read in scan.reads:
        shape = list(space)
        if read.shift:
            shape[dim] = read.tensor.shape[dim]
        placed[read.tensor.name] = (read.tensor, place(read.tensor, tuple(shape)))
    for _, tensor in sorted(scan.outputs, key=lambda o: o[1].numel):
        placed.pop(tensor.name, None)
        placed[tensor.name] = (tensor, place(tensor, space))
    scan.steps = {name: strides[dim] for name, (_, strides) in placed.items()}
    scan.layout = collapse(others, [
        (tensor, tuple(s for d, s in enumerate(strides) if d != dim))
        for tensor, strides in placed.values()
    ])


def tensors(scan: Scan) -> Iterator[Tensor]:
    """What the kernel takes, each once: inputs in order of reading, then outputs."""
    seen: set[str] = set()
    for tensor in (*(r.tensor for r in scan.reads), *(t for _, t in scan.outputs)):
        if tensor.name not in seen:
            seen.add(tensor.name)
            yield tensor
