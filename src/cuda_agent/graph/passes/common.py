"""Equal ops are computed once; scalar constants once for each reader."""

from __future__ import annotations

from dataclasses import replace

from cuda_agent.graph.ir import Arg, Op, Ref
from cuda_agent.graph.ops import NULLARY, RANDOM
from cuda_agent.graph.program import Program


def renamed(op: Op, names: dict[str, str]) -> Op:
    """`op` with the values it reads called by other names."""

    def walk(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(names.get(arg.name, arg.name))
        return tuple(map(walk, arg)) if isinstance(arg, tuple) else arg

    kwargs = tuple((key, walk(value)) for key, value in op.kwargs)
    return replace(op, args=tuple(map(walk, op.args)), kwargs=kwargs)


def merge_equal(program: Program) -> bool:
    """Common subexpressions. True when an op went away."""
    known: dict[str, Op] = {}
    names: dict[str, str] = {}
    kept: list[Op] = []
    for original in program.ops:
        op = renamed(original, names)
        # repr tells 1 from 1.0 and True, which compare equal
        twin = known.setdefault(repr((op.target, op.args, op.kwargs)), op)
        if twin is op or op.name in RANDOM or not _covers(twin, op):
            kept.append(op)
            continue
        names.update((old, new) for old, new in zip(op.outputs, twin.outputs) if old)
    if not names:
        return False
    program.ops = kept
    program.outputs = tuple(names.get(name, name) for name in program.outputs)
    program.prune()
    return True


def _covers(twin: Op, op: Op) -> bool:
    return all(new or not old for old, new in zip(op.outputs, twin.outputs))


def private_scalars(program: Program) -> None:
    """Give each reader of a number its own copy, so that no region has to hand it to another."""
    makers = {op.outputs[0]: op for op in program.ops if op.name in NULLARY}
    done: list[Op] = []
    read: set[str] = set()
    for op in program.ops:
        names: dict[str, str] = {}
        for name in dict.fromkeys(op.refs()):
            if name in makers and name in read:
                names[name] = copy = program.fresh(name)
                program.values[copy] = replace(program.values[name], name=copy)
                done.append(replace(makers[name], outputs=(copy,)))
            read.add(name)
        done.append(renamed(op, names) if names else op)
    program.ops = done
