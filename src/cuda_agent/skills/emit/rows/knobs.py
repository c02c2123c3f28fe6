"""Knobs of row programs, and the schedules that they stand for.

Every combination is valid: what does not fit (a block wider than its row, registers for a row that
is too long) is brought to the nearest schedule that does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cuda_agent.skills.base import Knob, KnobSpace
from cuda_agent.skills.emit.rows.cpp import CppSchedule
from cuda_agent.skills.emit.rows.passes import fuse_online, plan_passes
from cuda_agent.skills.emit.rows.program import Load, RowProgram, column_major
from cuda_agent.skills.emit.rows.schedule import Schedule, Storage, best_vector
from cuda_agent.targets.base import DeviceFacts

# 32-bit values that a thread may hold for the row, by block size; 64K registers an SM.
REGISTER_BUDGET = {32: 64, 64: 64, 128: 64, 256: 64, 512: 48, 1024: 24}
TILE_SLOTS_BYTES = 40 * 1024  # static shared memory ends at 48 KB
MIN_SPLIT_COLUMNS = 2048  # a block of a split row should have this much to do
STACK_BYTES = 256 * 1024  # scratch rows of the C++ kernels lie on the stack


def power_above(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << max(0, count - 1).bit_length()


def cuda_knobs(program: RowProgram, facts: DeviceFacts) -> KnobSpace:
    """Choices for a CUDA kernel, the expected best first."""
    if column_major(program):
        return _column_knobs(program, facts)
    units = max(facts.units, 1)
    vectors = -(-program.columns // best_vector(program))
    once = reads_once(program)
    strategy = _row_strategy(program, units)
    strategies: list[Knob] = [strategy]
    if vectors <= 1024 or (once and vectors <= 8192 and program.rows >= 16 * units):
        strategies.append("warp")
    if vectors > 32:
        strategies.append("block")
    if vectors >= 512 and (not once or program.rows < 2 * units):
        strategies += [f"cluster{n}" for n in (2, 4, 8) if vectors >= 256 * n]
    if program.rows < 4 * units and program.columns >= 8 * MIN_SPLIT_COLUMNS:
        strategies.append("split")
    threads = _row_threads(program, strategy)
    widest = max(128, min(1024, power_above(vectors)))
    near = [threads, *(t for t in (threads // 2, threads * 2) if 64 <= t <= widest)]
    choices: dict[str, tuple[Knob, ...]] = {
        "strategy": _unique(strategies), "threads": _unique([*near])}
    if vectors > 1024:
        choices["unroll"] = (4, 8)
        if not once:
            choices["storage"] = ("auto", "reread")
    return KnobSpace(choices)


def _column_knobs(program: RowProgram, facts: DeviceFacts) -> KnobSpace:
    vector = best_vector(program)
    tiles = -(-program.rows // (32 * vector))
    strategies: list[Knob] = ["column"]
    if tiles < 4 * facts.units and program.columns >= 64:
        strategies.append("column_split")
        if tiles < facts.units and program.columns >= 256 and reads_once(program):
            strategies.reverse()
    return KnobSpace({
        "strategy": tuple(strategies),
        "threads": (256, 128, 512),
        "vector": _unique([vector, max(1, vector // 2)]),
        "unroll": (4, 8),
    })


def _unique(options: list[Knob]) -> tuple[Knob, ...]:
    return tuple(dict.fromkeys(options))


def reads_once(program: RowProgram) -> bool:
    """Whether one sweep over the columns is enough even when nothing is kept."""
    plan = plan_passes(fuse_online(program), "none")
    return sum(p.over_columns for p in plan.passes) <= 1


def _row_strategy(program: RowProgram, units: int) -> str:
    vectors = -(-program.columns // best_vector(program))
    once = reads_once(program)
    if program.rows < 2 * units and vectors >= 4096:
        # Few long rows: one block each would leave most of the chip idle.
        by_cluster = program.columns < 2**19 or (not once and program.rows * 8 >= units)
        return "cluster8" if by_cluster else "split"
    if vectors <= 32 or (vectors <= 256 and program.rows >= 16 * units):
        return "warp"
    if once or _kept_words(program) * program.columns <= 512 * REGISTER_BUDGET[512]:
        return "block"
    return next((f"cluster{n}" for n in (2, 4, 8) if _fits_cluster(program, n, 512)), "cluster8")


def _fits_cluster(program: RowProgram, blocks: int, threads: int) -> bool:
    words = _kept_words(program) * program.columns
    return words <= blocks * threads * REGISTER_BUDGET[threads]


def _kept_words(program: RowProgram) -> float:
    """32-bit registers that one column needs while its row is held."""
    plan = plan_passes(program, "all")
    alive = [0.0] * (len(plan.passes) + 1)
    for value, (first, last) in plan.kept.items():
        for index in range(first, last):
            alive[index] += _words(program, value)
    return max(alive)


def _words(program: RowProgram, value: str) -> float:
    step = program.step_of(value)
    return step.operand.element_bytes / 4 if isinstance(step, Load) else 1.0


def _row_threads(program: RowProgram, strategy: str) -> int:
    """Threads of a block so that each holds about four vectors of the row, at most 512.

    Blocks of 512 with more vectors a thread beat blocks of 1024 on every long row measured: four
    of them share a multiprocessor, so that one reads while another waits at its barrier.
    """
    vectors = -(-program.columns // best_vector(program))
    if strategy == "warp":
        return 128
    if strategy == "split":
        return 512
    if strategy.startswith("cluster"):
        vectors = -(-vectors // int(strategy[7:]))
    return max(64, min(512, power_above(-(-vectors // 4))))


def cuda_schedule(
    program: RowProgram, knobs: Mapping[str, Knob], facts: DeviceFacts
) -> Schedule:
    """The schedule that knobs of `cuda_knobs` stand for."""
    strategy, threads = str(knobs["strategy"]), int(knobs["threads"])
    unroll = int(knobs.get("unroll", 4))
    if strategy.startswith("column"):
        return _column_schedule(program, strategy, threads, int(knobs["vector"]), unroll, facts)
    vector = best_vector(program)
    vectors = -(-program.columns // vector)
    if strategy == "warp":
        lanes = min(32, power_above(vectors))
        storage = _storage(program, threads, -(-vectors // lanes), vector, unroll, 0, "auto")
        return Schedule("warp", threads, vector, lanes, 1, storage, unroll)
    if strategy == "split":
        resident = facts.units * max(1, 2048 // threads) // program.rows
        blocks = max(2, min(resident, -(-program.columns // MIN_SPLIT_COLUMNS), 2048))
        return Schedule("split", threads, vector, threads, blocks, "reread", unroll)
    blocks = int(strategy[7:]) if strategy.startswith("cluster") else 1
    share = -(-vectors // blocks)
    threads = max(32, min(threads, power_above(share)))
    storage = _storage(program, threads, -(-share // threads), vector, unroll,
                       facts.shared_bytes_per_block - 4096, str(knobs.get("storage", "auto")))
    return Schedule("cluster" if blocks > 1 else "block", threads, vector, threads, blocks,
                    storage, unroll)


def _storage(
    program: RowProgram, threads: int, chunks: int, vector: int, unroll: int, shared_limit: int,
    wish: str,
) -> Storage:
    """Where a thread keeps `chunks` vectors of its row: the first place where they fit."""
    if wish == "reread" or not plan_passes(program, "all").kept:
        return "reread"
    if _kept_words(program) * chunks * vector <= REGISTER_BUDGET[threads]:
        return "register"
    if reads_once(program):
        return "reread"
    words = sum(_words(program, value) for value in plan_passes(program, "loads").kept)
    whole_batches = -(-chunks // unroll) * unroll
    needed = 4 * words * whole_batches * vector * threads
    return "shared" if needed <= shared_limit else "reread"


def _column_schedule(
    program: RowProgram, strategy: str, threads: int, vector: int, unroll: int, facts: DeviceFacts
) -> Schedule:
    inner = program.row_axes[-1]
    results = sum(len(r.values) + 1 for r in program.reduces)
    while vector > 1 and threads * vector * 8 * results > TILE_SLOTS_BYTES:
        vector //= 2
    # Parts of a block share the columns when each still has a few; else all threads lie along rows.
    parts = max(1, min(threads // 32, power_above(program.columns // 8 + 1) // 2))
    lanes = min(threads // parts, power_above(-(-inner // vector)))
    threads = max(32, lanes * min(threads // lanes, power_above(program.columns)))
    parts = threads // lanes
    if strategy == "column_split":
        tiles = -(-inner // (lanes * vector)) * (program.rows // inner)
        resident = facts.units * max(1, 2048 // threads) // tiles
        blocks = max(2, min(resident, program.columns // (parts * 4), 1024))
        return Schedule("column_split", threads, vector, lanes, blocks, "reread", unroll)
    chunks = -(-program.columns // parts)
    storage = _storage(program, threads, chunks, vector, unroll,
                       facts.shared_bytes_per_block - TILE_SLOTS_BYTES, "auto")
    return Schedule("column", threads, vector, lanes, 1, storage, unroll)


def cpp_knobs(program: RowProgram, facts: DeviceFacts) -> KnobSpace:
    """Choices for a C++ kernel, the expected best first."""
    tiny = program.bytes_moved < 64 * 1024
    threads: tuple[Knob, ...] = (True,) if facts.units < 2 else (not tiny, tiny)
    if column_major(program):
        inner = program.row_axes[-1]
        widths = [w for w in (64, 256, 1024, 16) if w <= power_above(inner)] or [power_above(inner)]
        return KnobSpace({"width": tuple(widths), "parallel": threads})
    few = program.rows < 4 * max(facts.units, 1)
    long_rows = program.columns >= 16384
    strategies: tuple[Knob, ...] = ("rows",)
    if program.rows < facts.units and long_rows:
        strategies = ("chunks", "rows")
    elif few and long_rows:
        strategies = ("rows", "chunks")
    inner = program.col_axes[-1] if program.col_axes else 1
    lanes = [n for n in (32, 64, 16) if n <= inner] or [power_above(inner + 1) // 2]
    choices: dict[str, tuple[Knob, ...]] = {
        "strategy": strategies, "lanes": tuple(lanes), "parallel": threads}
    if plan_passes(program, "maps").kept:
        choices["scratch"] = (True, False)
    return KnobSpace(choices)


def cpp_schedule(program: RowProgram, knobs: Mapping[str, Knob]) -> CppSchedule:
    """The schedule that knobs of `cpp_knobs` stand for."""
    parallel = bool(knobs["parallel"])
    held = 4 * len(plan_passes(program, "maps").kept) * program.columns
    if column_major(program):
        width = int(knobs["width"])
        keep = held * width <= STACK_BYTES
        return CppSchedule("columns", width, parallel=parallel, keep=keep)
    layout: Literal["rows", "chunks"] = "chunks" if knobs["strategy"] == "chunks" else "rows"
    keep = layout == "rows" and bool(knobs.get("scratch", True)) and held <= STACK_BYTES
    # Rows that leave the second-level cache are read again from memory: one pass less counts.
    cached = program.columns * 4 <= 512 * 1024 and layout == "rows"
    return CppSchedule(layout, int(knobs["lanes"]), parallel=parallel, keep=keep or cached)


