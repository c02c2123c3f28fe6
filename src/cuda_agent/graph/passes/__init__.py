"""Rewrites of a captured program, one file each. Every one keeps each value's memory layout.

`run_passes` applies them until nothing changes; the order only matters for speed.
"""

from __future__ import annotations

from collections.abc import Callable

from cuda_agent.graph.ir import Derived, Op
from cuda_agent.graph.passes import (
    algebra,
    canonical,
    common,
    constants,
    fold,
    noop,
    products,
    regroup,
    totals,
    views,
)
from cuda_agent.graph.program import Program, Rewriter

Rule = Callable[[Rewriter, Op], bool]

# A bound on rounds, for safety: each round makes the program simpler or moves a view.
MAX_ROUNDS = 40


def run_passes(program: Program, *, fold_parameters: bool = False) -> tuple[Derived, ...]:
    """Rewrite `program` in place. Returns the values to compute once, none unless asked for."""
    program.prune()
    _until_stable(program, [canonical.rule, noop.rule, constants.rule, views.broadcast_rule])
    if fold_parameters:
        _until_stable(program, [fold.batch_norm_rule, noop.rule])
    _until_stable(program, [algebra.rule, noop.rule, constants.rule])
    _until_stable(program, [products.rule, noop.rule])
    _until_stable(program, [views.sink_rule, noop.rule])
    _until_stable(program, [regroup.hoist_rule, regroup.sink_rule, noop.rule])
    _until_stable(program, [totals.rule, noop.rule])
    common.private_scalars(program)
    return fold.split_off(program) if fold_parameters else ()


def _until_stable(program: Program, rules: list[Rule]) -> None:
    for _ in range(MAX_ROUNDS):
        changed = [Rewriter(program).run(rule) for rule in rules]
        if not any([common.merge_equal(program), *changed]):
            return
