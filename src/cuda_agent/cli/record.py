"""`cuda-agent record`: a table of judged plans, for training and comparisons without hardware."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from cuda_agent.cli import common
from cuda_agent.errors import SettingsError

if TYPE_CHECKING:
    from cuda_agent.training.recording import Progress
    from cuda_agent.training.table import Entry


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "record", help="judge every plan of many problems into a table", description=__doc__,
    )
    parser.add_argument("--target", choices=common.TARGETS, default="auto", help="default: auto")
    parser.add_argument(
        "--problems", nargs="+", metavar="PATH", default=["ours"],
        help='files, folders, Parquet files with a `code` column, or "ours" (default)',
    )
    parser.add_argument(
        "--space-limit", type=int, default=64, metavar="N",
        help="plans of a problem at most; larger spaces are narrowed (default: 64)",
    )
    parser.add_argument(
        "--limit", type=int, default=0, metavar="N", help="only the first N problems"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("verdicts.jsonl.gz"), metavar="TABLE",
        help="made, or gone on with (default: verdicts.jsonl.gz)",
    )
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="end after so long; call again to go on"
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="W", help="judging processes (default: 1)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every plan is in the table, 1 when some are left."""
    from cuda_agent.agents.optimize import cache_dir
    from cuda_agent.training.config import Environment
    from cuda_agent.training.recording import open_table, record
    from cuda_agent.training.sources import load_problems, open_source

    if args.space_limit < 2 or (args.minutes is not None and args.minutes <= 0):
        raise SettingsError("--space-limit must be at least 2 and --minutes above 0.")
    progress = Console(stderr=True, highlight=False)
    target = common.resolve_target(args.target)
    facts = target.facts()
    table = open_table(args.out, facts)
    environment = Environment(
        source="live", target=target.name, space_limit=args.space_limit, workers=args.workers
    )
    with progress.status("capturing the problems"):
        problems = load_problems(environment, args.problems, cache=cache_dir(), limit=args.limit)
    table.about = {
        "target": target.name, "device": facts.name, "date": time.strftime("%Y-%m-%d"),
        "command": shlex.join(["cuda-agent", *sys.argv[1:]]),
        "settings": {"tier": "screen", "track": "library", "precision": "strict"},
    }
    with open_source(environment, cache=cache_dir()) as source:
        done = record(
            source, problems, table, args.out, minutes=args.minutes,
            on_problem=lambda state: progress.print(_line(state)),
        )
    for name, why in done.skipped.items():
        progress.print(f"left out: {name}: {why}")
    held = sum(entry.complete for entry in table.entries.values())
    print(
        f"{args.out}: {table.rows} plans, {held} of {len(table.entries)} problems whole; "
        f"{done.measured} plans in {done.seconds:.0f} s"
    )
    return 0 if done.done_plans == done.plans else 1


def _line(state: Progress) -> str:
    assert state.last is not None
    left = "?" if math.isinf(state.left_s) else f"{state.left_s / 60:.0f}"
    rate = state.measured / state.seconds
    return (
        f"{state.done_problems}/{state.problems} {_summary(state.last)}; "
        f"{state.done_plans}/{state.plans} plans, {rate:.1f}/s, about {left} min left"
    )


def _summary(entry: Entry) -> str:
    ran = sum(m.status == "ok" for m in entry.measurements)
    text = f"{entry.problem.name}: {len(entry.plans)} plans, {ran}/{len(entry.measurements)} ran"
    best = entry.best()
    if best is None:
        return text
    speedups = [
        f"{name} {interval.value:.2f}x"
        for name, interval in (("eager", best[1].eager), ("compile", best[1].compile_default))
        if interval is not None
    ]
    return f"{text}, best {', '.join(speedups)}"
