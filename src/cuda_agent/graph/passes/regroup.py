"""Views that merge or split dims move past pointwise ops, to where those can fuse.

`hoist_rule` takes a view above the pointwise op that feeds it, so that the op joins what reads the
view: a norm, a reduction, or the epilogue of a product. `sink_rule` takes a view below the
pointwise op that reads it, so that the op becomes the epilogue of the product, norm or scan in
front of the view. Operands follow as long as they are broadcast along whole groups of the dims
that the view merges or splits.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from cuda_agent.graph.ir import Arg, Op, Ref
from cuda_agent.graph.ops import GEMMS, anchor, is_pointwise
from cuda_agent.graph.program import Program, Rewriter

Shape = tuple[int, ...]
_RESHAPES = frozenset({"view", "unsqueeze", "squeeze"})
_UNMOVABLE = frozenset({"clone", "_native_batch_norm_legit_no_training", "prelu"})


@dataclass
class Facts:
    """Values by what lies above and below them through pointwise ops alone."""

    behind: set[str] = field(default_factory=set)  # a product, norm, reduction or scan
    before: set[str] = field(default_factory=set)  # read by a norm, reduction or scan
    joining: set[str] = field(default_factory=set)  # read by a pointwise op behind one of these

    @classmethod
    def of(cls, program: Program) -> Facts:
        facts = cls()
        for op in program.ops:
            starts = op.name in GEMMS or anchor(op, program.values) is not None
            follows = _movable(op) and not facts.behind.isdisjoint(op.refs())
            if starts or follows:
                facts.behind.update(filter(None, op.outputs))
            if follows:
                facts.joining.update(op.refs())
        for op in reversed(program.ops):
            if anchor(op, program.values) is not None:
                facts.before.update(op.refs())
                continue
            for group in (facts.before, facts.joining) if is_pointwise(op) else ():
                if op.outputs[0] in group:
                    shape = program.values[op.outputs[0]].shape
                    group.update(n for n in op.refs() if program.values[n].shape == shape)
        return facts


_FACTS: weakref.WeakKeyDictionary[Rewriter, Facts] = weakref.WeakKeyDictionary()


def facts_of(rw: Rewriter) -> Facts:
    """Facts of the program as it was when this walk began."""
    if rw not in _FACTS:
        _FACTS[rw] = Facts.of(rw.program)
    return _FACTS[rw]


def _movable(op: Op) -> bool:
    return is_pointwise(op) and op.name not in _UNMOVABLE and op.kwarg("memory_format") is None


def hoist_rule(rw: Rewriter, op: Op) -> bool:
    """view(f(a, b)) -> f(view(a), view(b)), where only what is behind the view can fuse with f."""
    facts = facts_of(rw)
    if op.name not in _RESHAPES or not op.outputs[0]:
        return False
    source = op.args[0]
    maker = rw.producer(source)
    if maker is None or not _movable(maker) or not rw.single_use(source):
        return False
    assert isinstance(source, Ref)
    wanted = op.outputs[0] in facts.before or op.outputs[0] in facts.joining
    if not wanted or source.name in facts.behind:
        return False
    shape, target = rw.tensor(source).shape, rw.values[op.outputs[0]].shape
    moved = _reshaped(rw, maker, shape, target)
    if moved is None or not rw.substitute(op.outputs[0], moved):
        return False
    facts.joining.update(rw.producers[moved.name].refs())
    return True


def sink_rule(rw: Rewriter, op: Op) -> bool:
    """f(view(m), b) -> view(f(m, view(b))), where m comes from a product, norm or scan."""
    facts = facts_of(rw)
    if not _movable(op) or op.outputs[0] in facts.before:
        return False
    out = rw.values[op.outputs[0]].shape
    for arg in op.args:
        view = rw.producer(arg)
        if view is None or view.name not in _RESHAPES:
            continue
        inner = view.args[0]
        assert isinstance(inner, Ref) and isinstance(arg, Ref)
        if not free_to_sink(rw, op, arg, inner):
            continue
        if rw.tensor(arg).shape != out or rw.tensor(arg).numel <= 1:
            continue
        args = tuple(inner if a == arg else a for a in op.args)
        below = Op(op.target, args, op.outputs, op.kwargs)
        result = _reshaped(rw, below, out, rw.tensor(inner).shape, done=inner)
        if result is None:
            continue
        facts.behind.add(result.name)
        if rw.substitute(op.outputs[0], rw.emit("aten.view.default", result, out)):
            return True
    return False


def free_to_sink(rw: Rewriter, op: Op, arg: Ref, inner: Ref) -> bool:
    """Whether `op` gains by following `arg`, a view of `inner`, to the shape of `inner`.

    It must be able to fuse with what computes `inner`, and with no other operand as it stands:
    else two views could pull it to and fro.
    """
    facts = facts_of(rw)
    if inner.name not in facts.behind or not rw.single_use(inner) or not rw.single_use(arg):
        return False
    shape = rw.tensor(arg).shape
    others = (name for name in op.refs() if name != arg.name)
    return not any(n in facts.behind and rw.values[n].shape == shape for n in others)


def _reshaped(
    rw: Rewriter, op: Op, shape: Shape, target: Shape, done: Ref | None = None
) -> Ref | None:
    """`op`, whose result has `shape`, computed in `target`; the operand `done` has it already.

    None where an operand cannot follow without a copy.
    """
    args: list[Arg] = []
    for arg in op.args:
        if not isinstance(arg, Ref) or arg == done or not rw.tensor(arg).shape:
            args.append(arg)
            continue
        wanted = operand_shape(rw.tensor(arg).shape, shape, target)
        if wanted is None:
            return None
        try:
            same = wanted == rw.tensor(arg).shape
            args.append(arg if same else rw.emit("aten.view.default", arg, wanted))
        except (RuntimeError, ValueError):  # its strides do not allow this view
            return None
    try:
        return rw.emit(op.target, *args, name=op.outputs[0], **dict(op.kwargs))
    except (RuntimeError, ValueError):
        return None


def operand_shape(own: Shape, shape: Shape, target: Shape) -> Shape | None:
    """Shape in which an operand that broadcasts to `shape` broadcasts to `target`, a reshape of it.

    None when the operand is broadcast along a part only of dims that the reshape merges.
    """
    padded = (1,) * (len(shape) - len(own)) + own
    result: list[int] = []
    for ours, theirs in dim_groups(shape, target):
        if all(padded[d] == shape[d] for d in ours):
            result += [target[d] for d in theirs]
        elif all(padded[d] == 1 for d in ours):
            result += [1] * len(theirs)
        else:
            return None
    while len(own) < len(shape) and len(result) > 1 and result[0] == 1:
        result.pop(0)
    return tuple(result)


def dim_groups(shape: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """The finest split of two shapes of equal size into runs of dims with equal products.

    (6, 4) and (2, 3, 4) give [([0], [0, 1]), ([1], [2])]. No dim may be 0.
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(shape) or j < len(target):
        if i < len(shape) and shape[i] == 1 and not (j < len(target) and target[j] == 1):
            groups.append(([i], []))
            i += 1
            continue
        if j < len(target) and target[j] == 1 and not (i < len(shape) and shape[i] == 1):
            groups.append(([], [j]))
            j += 1
            continue
        ours, theirs, left, right = [i], [j], shape[i], target[j]
        i, j = i + 1, j + 1
        while left != right:
            if left < right:
                left *= shape[i]
                ours.append(i)
                i += 1
            else:
                right *= target[j]
                theirs.append(j)
                j += 1
        groups.append((ours, theirs))
    return groups
