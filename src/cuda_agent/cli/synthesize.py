"""`cuda-agent synthesize`: problems for training, made from torch's own operators and filtered."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from cuda_agent.cli import NOT_FASTER, SUCCESS, common
from cuda_agent.cli.progress import duration
from cuda_agent.errors import SettingsError

_EVERY_S = 10.0  # between lines of progress where there is no terminal


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "synthesize", help="make a data set of problems", description=__doc__
    )
    parser.add_argument("--count", type=int, metavar="N", help="problems wanted")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR",
        help="gets problems/, problems.parquet, split.json and report.json; a run that was killed "
        "goes on from what is in it",
    )
    parser.add_argument(
        "--max-ops", type=int, default=5, metavar="K", help="operators in a problem; default: 5"
    )
    parser.add_argument(
        "--suite-to-avoid", nargs="+", action="extend", default=[], metavar="PATH",
        help="`ours`, or folders of problems to which none may be similar",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--target", choices=common.TARGETS, help="default: auto")
    parser.add_argument(
        "--workers", type=int, metavar="W", help="processes that share the device; default: cores"
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="time limit; default: none")
    parser.add_argument(
        "--no-parquet", action="store_true", help="leave out the one file that needs pyarrow"
    )
    parser.add_argument(
        "--pack", action="store_true",
        help="run nothing: write the Parquet file of a DIR that was made with --no-parquet",
    )
    parser.add_argument("--json", action="store_true", help="the report on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when N problems are there, 1 when time or new structures ran out before."""
    from cuda_agent.synthesis import Options, pack, synthesize

    console = Console(stderr=True)
    if args.pack:
        console.print(f"{pack(args.out)} rows written to {args.out}", highlight=False)
        return SUCCESS
    if args.count is None:
        raise SettingsError("--count N is missing: how many problems are wanted?")
    options = Options(
        count=args.count, out=args.out, target=common.resolve_target(args.target).name,
        max_ops=args.max_ops, seed=args.seed, suites=tuple(args.suite_to_avoid),
        workers=args.workers, minutes=args.minutes, parquet=not args.no_parquet,
    )
    reporter = Reporter(console)
    try:
        with common.only_json_on_stdout(args.json), console.status("starting") as status:
            reporter.status = status
            report = synthesize(options, reporter)
    except KeyboardInterrupt:
        console.print(f"what was done is kept in {args.out}; the same command goes on from there")
        raise
    if args.json:
        common.write_json(report)
    else:
        show(report, args.out, Console())
    if not report["complete"]:
        console.print(
            f"{report['admitted']} of {args.count} problems so far; the same command with more "
            "--minutes goes on", highlight=False,
        )
    return SUCCESS if report["complete"] else NOT_FASTER


class Reporter:
    """Progress with an estimate: a status line in a terminal, a line now and then elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said = time.monotonic()
        self._first: int | None = None
        self.status: Any = None

    def __call__(self, now: Any) -> None:
        if self._first is None:
            self._first = now.passed
        gained = now.passed - self._first
        left = "?"
        if gained > 0:
            left = duration(now.seconds / gained * max(now.count - now.passed, 0))
        text = f"{now.passed}/{now.count} problems from {now.draws} draws, about {left} left"
        if self._console.is_terminal:
            self.status.update(text)
        elif time.monotonic() - self._said > _EVERY_S:
            self._said = time.monotonic()
            self._console.print(text, highlight=False, soft_wrap=True)


def show(report: dict[str, Any], out: Path, console: Console) -> None:
    table = Table(title=f"{report['admitted']} problems from {report['draws']} draws")
    for name in ("filter", "rejected", "of those that came", "s each"):
        table.add_column(name, justify="left" if name == "filter" else "right")
    left = report["draws"]
    for name, entry in report["rejected"].items():
        each = report["seconds_per_candidate"].get(name)
        share = f"{entry['count'] / left:.1%}" if left else "–"
        table.add_row(name, str(entry["count"]), share, "" if each is None else f"{each:.3f}")
        left -= entry["count"]
    console.print(table)
    low, high = report["window_ms"]
    split = ", ".join(f"{count} {name}" for name, count in report["split"].items())
    console.print(
        f"eager time {low:g} to {high:g} ms on {report['environment']['device']} with "
        f"{report['threads']} threads; {report['combinations']} combinations of "
        f"{report['distinct_operators']} operators; {split}\nwritten to {out}",
        highlight=False, soft_wrap=True,
    )
