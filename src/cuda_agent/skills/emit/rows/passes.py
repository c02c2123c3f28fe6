"""When each step of a row program runs: a pass over the columns for every round of reductions.

Pass p computes what depends on p rounds of reductions, and ends with round p, if any. Values that
a later pass needs again are either kept (registers, shared memory, a scratch row) or computed anew
from the loads. `fuse_online` trades two dependent rounds for one where a row is too long to keep.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cuda_agent.graph.ir import Op, Ref
from cuda_agent.skills.emit.rows.program import (
    Load,
    Map,
    Reduce,
    RowProgram,
    Step,
    Store,
    Value,
    defined,
    used,
)

Keep = Literal["all", "loads", "maps", "none"]

# One or two instructions: cheaper to repeat than to hold in a register.
CHEAP = frozenset({"add", "sub", "mul", "neg", "abs", "_to_copy", "relu", "maximum", "minimum",
                   "where", "ne", "eq", "gt", "lt", "ge", "le", "logical_not", "clamp"})


@dataclass(frozen=True)
class Pass:
    """Elem-level work of one pass, its reductions, then the row-level steps that they allow."""

    loads: tuple[Load, ...]
    maps: tuple[Map, ...]
    reduces: tuple[Reduce, ...]
    stores: tuple[Store, ...]
    after: tuple[Step, ...]

    @property
    def memory(self) -> tuple[Load | Store, ...]:
        return (*self.loads, *self.stores)

    @property
    def computed(self) -> tuple[Load | Map, ...]:
        return (*self.loads, *self.maps)

    @property
    def consumers(self) -> tuple[Reduce | Store, ...]:
        return (*self.reduces, *self.stores)

    @property
    def over_columns(self) -> bool:
        return bool(self.reduces or self.stores)


@dataclass(frozen=True)
class Passes:
    """`before` are row-level steps that need no reduction. `kept` maps an elem-level value to its
    (first, last) pass when it outlives the first."""

    program: RowProgram
    before: tuple[Step, ...]
    passes: tuple[Pass, ...]
    kept: dict[str, tuple[int, int]]

    @property
    def rounds(self) -> int:
        return sum(1 for p in self.passes if p.reduces)


def plan_passes(program: RowProgram, keep: Keep) -> Passes:
    """`keep`: "all" holds each reused value but cheap ones, "loads" prefers to hold loads and to
    repeat maps of one operand, "maps" reads loads again and holds expensive maps, "none" reads and
    computes everything again."""
    available = _available(program)
    computed, kept = _place(program, available, keep)
    count = 1 + max((available[s.source] for s in program.steps
                     if isinstance(s, Reduce) or (isinstance(s, Store) and s.level == "elem")),
                    default=0)
    passes = tuple(_one_pass(program, p, available, computed) for p in range(count))
    before = tuple(s for s in program.steps if _row_time(program, s, available) == 0)
    return Passes(program, before, passes, kept)


def _available(program: RowProgram) -> dict[str, int]:
    """How many rounds of reductions must be over before a value can be computed."""
    available: dict[str, int] = {}
    for step in program.steps:
        rounds = max((available[n] for n in used(step)), default=0)
        for name in defined(step):
            available[name] = rounds + isinstance(step, Reduce)
    return available


def _row_time(program: RowProgram, step: Step, available: dict[str, int]) -> int | None:
    """Rounds after which a row-level step runs; None for elem-level steps and reductions."""
    if isinstance(step, Reduce):
        return None
    if isinstance(step, Store):
        return available[step.source] if step.level == "row" else None
    return available[step.value] if program.values[step.value].level == "row" else None


def _place(
    program: RowProgram, available: dict[str, int], keep: Keep
) -> tuple[dict[str, set[int]], dict[str, tuple[int, int]]]:
    """The passes in which each elem-level value is computed, and which values are kept."""
    values = program.values
    needed: dict[str, set[int]] = {}
    computed: dict[str, set[int]] = {}
    kept: dict[str, tuple[int, int]] = {}
    for step in reversed(program.steps):
        if isinstance(step, Reduce) or (isinstance(step, Store) and step.level == "elem"):
            needed.setdefault(step.source, set()).add(available[step.source])
        elif isinstance(step, (Load, Map)) and values[step.value].level == "elem":
            times = needed.get(step.value, set())
            if not times:
                continue
            if len(times) > 1 and not _repeats(program, step, keep):
                kept[step.value] = (min(times), max(times))
                times = {min(times)}
            computed[step.value] = times
            for name in used(step):
                if values[name].level == "elem":
                    needed.setdefault(name, set()).update(times)
    return computed, kept


def _repeats(program: RowProgram, step: Load | Map, keep: Keep) -> bool:
    """Whether a value is had again, where it is needed again, rather than kept."""
    if keep == "none":
        return True
    if isinstance(step, Load):
        weight = not any(step.operand.row_strides) and program.rows > 1  # in L1 by now
        return keep == "maps" or weight
    elems = [n for n in step.refs if program.values[n].level == "elem"]
    return len(elems) == 1 and (keep == "loads" or step.op.name in CHEAP)


def _one_pass(
    program: RowProgram, index: int, available: dict[str, int], computed: dict[str, set[int]]
) -> Pass:
    steps = program.steps
    here = {name for name, times in computed.items() if index in times}
    return Pass(
        loads=tuple(s for s in steps if isinstance(s, Load) and s.value in here),
        maps=tuple(s for s in steps if isinstance(s, Map) and s.value in here),
        reduces=tuple(
            s for s in steps if isinstance(s, Reduce) and available[s.source] == index),
        stores=tuple(s for s in steps if isinstance(s, Store) and s.level == "elem"
                     and available[s.source] == index),
        after=tuple(s for s in steps if _row_time(program, s, available) == index + 1),
    )


def fuse_online(program: RowProgram) -> RowProgram:
    """Join max + sum of exponentials, and mean + squared distances, into one-reading pairs."""
    fused = _fuse_expsum(program)
    while fused is not None:
        program, fused = fused, _fuse_expsum(fused)
    fused = _fuse_moments(program)
    while fused is not None:
        program, fused = fused, _fuse_moments(fused)
    return program


def _producers(program: RowProgram) -> dict[str, Step]:
    return {name: step for step in program.steps for name in defined(step)}


def _op_of(step: Step | None, name: str) -> Op | None:
    return step.op if isinstance(step, Map) and step.op.name == name else None


def _ref(op: Op, position: int) -> str:
    arg = op.args[position] if len(op.args) > position else None
    return arg.name if isinstance(arg, Ref) else ""


def _fuse_expsum(program: RowProgram) -> RowProgram | None:
    made, available = _producers(program), _available(program)
    for total in program.reduces:
        exp = _op_of(made.get(total.source), "exp") if total.kind == "sum" else None
        sub = _op_of(made.get(_ref(exp, 0)), "sub") if exp else None
        if not sub or len(sub.args) != 2 or sub.kwargs:
            continue
        x, shift = _ref(sub, 0), _ref(sub, 1)
        top = next((r for r in program.reduces if r.kind == "max" and r.source == x), None)
        float_x = bool(x) and program.values[x].dtype in ("float32", "bfloat16", "float16")
        if top is None or not shift or not float_x or program.values[shift].level == "elem":
            continue
        if available[shift] > available[x] + 1:
            continue
        m, s = top.values[0], total.values[0]
        raw, gap, scale = f"{s}_at_max", f"{s}_gap", f"{s}_scale"
        pair = Reduce((m, raw), "max_expsum", x)
        rescale: tuple[Step, ...] = (
            Map(gap, Op("aten.sub.Tensor", (Ref(m), Ref(shift)), (gap,))),
            Map(scale, Op("aten.exp.default", (Ref(gap),), (scale,))),
            Map(s, Op("aten.mul.Tensor", (Ref(raw), Ref(scale)), (s,))),
        )
        values = {n: Value(n, "float32", "row") for n in (raw, gap, scale)}
        return _rewritten(program, {top: (pair,), total: rescale}, values)
    return None


def _fuse_moments(program: RowProgram) -> RowProgram | None:
    made = _producers(program)
    for spread in program.reduces:
        if spread.kind != "sum":
            continue
        square = made.get(spread.source)
        mul, power = _op_of(square, "mul"), _op_of(square, "pow")
        centered = _ref(mul, 0) if mul and mul.args[0] == mul.args[1] else ""
        if power and power.args[1] in (2, 2.0):
            centered = _ref(power, 0)
        sub = _op_of(made.get(centered), "sub")
        if not sub or len(sub.args) != 2 or sub.kwargs:
            continue
        x, mean = _ref(sub, 0), _ref(sub, 1)
        mean_step = made.get(mean)
        div = _op_of(mean_step, "div")
        total = made.get(_ref(div, 0)) if div and div.args[1] == program.columns else None
        if not x or not isinstance(total, Reduce) or (total.kind, total.source) != ("sum", x):
            continue
        if program.values[x].dtype not in ("float32", "bfloat16", "float16"):
            continue
        pair = Reduce((mean, spread.values[0]), "mean_m2", x)
        again = Map(total.values[0], Op("aten.mul.Tensor", (Ref(mean), program.columns),
                                        total.values))
        assert mean_step is not None
        return _rewritten(program, {total: (pair, again), mean_step: (), spread: ()}, {})
    return None


def _rewritten(
    program: RowProgram, changes: dict[Step, tuple[Step, ...]], values: dict[str, Value]
) -> RowProgram:
    """The program with steps exchanged and what nothing needs any more removed."""
    steps = [new for step in program.steps for new in changes.get(step, (step,))]
    needed: set[str] = set()
    alive: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, Store) or needed.intersection(defined(step)):
            alive.append(step)
            needed.update(used(step))
    return replace(program, steps=tuple(reversed(alive)), values={**program.values, **values})
