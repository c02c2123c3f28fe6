"""`synthesize`: draw, filter, and write N problems; killed at any moment, it goes on from there."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cuda_agent import targets
from cuda_agent.errors import SettingsError
from cuda_agent.problems.dataset import pyarrow_parquet
from cuda_agent.records import Problem, content_hash
from cuda_agent.synthesis.crew import Crew, Place
from cuda_agent.synthesis.draw import Drawer
from cuda_agent.synthesis.filters import Outcome
from cuda_agent.synthesis.journal import Draw, Journal
from cuda_agent.synthesis.publish import PARQUET, publish, summary
from cuda_agent.synthesis.seeds import crawl
from cuda_agent.synthesis.similarity import read_suites
from cuda_agent.synthesis.sizes import SIZES

_DRY = 3000  # draws in a row without anything new: there is no more to be had
MAX_OPS = 5


@dataclass(frozen=True)
class Options:
    """`suites` are folders of problems to stay away from; `workers` None: one for each core.

    Without `parquet`, which needs pyarrow, `pack` writes that file later, maybe elsewhere.
    """

    count: int
    out: Path
    target: str = "cpu"
    max_ops: int = MAX_OPS
    seed: int = 0
    suites: tuple[str, ...] = ()
    workers: int | None = None
    minutes: float | None = None
    parquet: bool = True

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SettingsError(f"--count {self.count}: at least one problem must be wanted.")
        if not 1 <= self.max_ops <= MAX_OPS:
            raise SettingsError(f"--max-ops {self.max_ops}: it must be between 1 and {MAX_OPS}.")
        if self.workers is not None and self.workers < 1:
            raise SettingsError(f"--workers {self.workers}: at least one worker is needed.")
        if self.target not in SIZES:
            raise SettingsError(
                f"there are no problem sizes for target {self.target}; use {' or '.join(SIZES)}."
            )

    def crew(self) -> tuple[int, int]:
        """(workers, threads of each). On a GPU threads only compile, one at a time."""
        cores = len(os.sched_getaffinity(0))
        workers = self.workers or cores
        return workers, 1 if self.target == "cuda" else max(1, cores // workers)


@dataclass(frozen=True)
class Progress:
    """`passed` of at most `count` after `draws`; `fresh` of them were settled by this process."""

    passed: int
    count: int
    draws: int
    fresh: int
    seconds: float


def synthesize(
    options: Options, observe: Callable[[Progress], None] = lambda _: None
) -> dict[str, Any]:
    """Writes the data set under `options.out` and returns its report.

    `report["complete"]` is False where time (`minutes`) or the grammar's supply of new structures
    ran out first. The same call goes on with what is missing.
    Raises: SettingsError, ProblemError, OutputError, TargetUnavailable; HarnessError where no
        worker process starts.
    """
    start = time.monotonic()
    if options.parquet:
        pyarrow_parquet(options.out / PARQUET)  # not after all the work
    target = targets.resolve(options.target)
    environment = target.environment()
    suite = read_suites(options.suites)
    seeds = crawl()
    workers, threads = options.crew()
    settings = {
        "seed": options.seed, "max_ops": options.max_ops, "target": options.target,
        "avoid": {"suites": list(options.suites), "problems": len(suite.names),
                  "hash": content_hash(suite.names, suite.sequences)},
        "torch": environment["torch"], "device": environment["device"],
        "seeds": {"operators": len(seeds), "hash": content_hash([s.to_json() for s in seeds])},
    }  # fmt: skip
    with Journal(options.out, settings) as journal:
        drawer = Drawer(
            seeds, suite, seed=options.seed, max_ops=options.max_ops, target=options.target,
            earlier=journal.draws.values(),
        )
        work = options.out / "work"
        work.mkdir(exist_ok=True)
        window = SIZES[options.target].window_ms
        place = Place(str(target.torch_device()), window, threads, work.resolve())
        with Crew(place, workers) as crew:
            below = _fill(options, journal, drawer, crew, observe, start)
        admitted = journal.admitted(below)[: options.count]
        report = {
            "settings": settings, "window_ms": list(window), "workers": workers,
            "threads": threads, "environment": environment,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(time.monotonic() - start, 1),
            "complete": len(admitted) == options.count,
            **summary({i: d for i, d in journal.draws.items() if i < below}, admitted),
        }
        publish(options.out, admitted, report, parquet=options.parquet)
        if report["complete"]:
            shutil.rmtree(work, ignore_errors=True)
    return report


def _fill(
    options: Options, journal: Journal, drawer: Drawer, crew: Crew,
    observe: Callable[[Progress], None], start: float,
) -> int:
    """Draws until enough have passed, and returns the first index that was not drawn.

    Candidates finish in any order; as every draw below that index is settled when this returns
    (unless time ran out), the first `count` that passed do not depend on it.
    """
    end = start + 60 * options.minutes if options.minutes is not None else float("inf")
    given: dict[int, Draw] = {}
    index = passed = dry = fresh = 0

    def settle(draw: Draw) -> None:
        nonlocal passed, fresh
        journal.append(draw)
        passed, fresh = passed + (not draw.rejected), fresh + 1
        observe(Progress(passed, options.count, index, fresh, time.monotonic() - start))

    while time.monotonic() < end:
        enough = passed >= options.count or dry >= _DRY
        if not enough and crew.idle:
            known = journal.draws.get(index)
            draw = known or drawer.draw(index)
            index += 1
            dry = dry + 1 if draw.rejected else 0
            if known is not None:
                passed += not known.rejected
            elif draw.rejected:
                settle(draw)
            else:
                given[draw.index] = draw
                crew.give(draw.index, Problem(draw.name, draw.code, draw.name, draw.dtype))
            continue
        if not given:
            break
        for at, outcome in crew.outcomes(end - time.monotonic()):
            settle(_settled(given.pop(at), outcome))
    return index


def _settled(draw: Draw, outcome: Outcome) -> Draw:
    return replace(
        draw, rejected=outcome.rejected, detail=outcome.detail[:300], eager_ms=outcome.eager_ms,
        seconds=outcome.seconds, code="" if outcome.rejected else draw.code,
    )
