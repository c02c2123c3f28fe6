"""`cuda-agent episodes`: what policies did, listed, shown as pages, exported."""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cuda_agent.agents import export
from cuda_agent.cli import common
from cuda_agent.errors import OutputError
from cuda_agent.store import Store, write_file


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "episodes", help="what policies did: list, export", description=__doc__
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="every stored episode, oldest first")
    listing.add_argument("--json", action="store_true", help="one JSON document")
    listing.set_defaults(run=run_list, runs_named=[])
    making = actions.add_parser(
        "export", help="to train on, to replay, to share", description=export.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    making.add_argument("runs_named", metavar="RUN", nargs="*", help="default: all")
    making.add_argument("--format", choices=export.FORMATS, default="plans")
    making.add_argument(
        "--out", type=Path, metavar="FILE", help="default: standard output; .gz is compressed"
    )
    making.add_argument(
        "--min-speedup", type=float, metavar="X",
        help="only episodes whose best was so many times as fast as eager",
    )
    making.set_defaults(run=run_export)
    for one in (listing, making):
        common.add_runs_option(one)


def run_list(args: argparse.Namespace) -> int:
    found = list(export.stored(Store(common.runs_dir(args)), []))
    if args.json:
        common.write_json({
            "episodes": [
                {
                    "id": one.id, "problem": one.run.problem.name, "policy": one.episode.policy,
                    "turns": _turns(one), "speedup": one.speedup,
                }
                for one in found
            ]
        })  # fmt: skip
        return 0
    table = Table("episode", "problem", "policy")
    for name in ("turns", "best, x eager"):
        table.add_column(name, justify="right")
    for one in found:
        best = "–" if one.speedup is None else f"{one.speedup:.2f}"
        table.add_row(
            one.id, one.run.problem.name, one.episode.policy, str(_turns(one)), best
        )
    Console().print(table)
    return 0


def _turns(one: export.Stored) -> int:
    return len(one.steps) if one.transcript is None else len(one.transcript.turns)


def run_export(args: argparse.Namespace) -> int:
    store = Store(common.runs_dir(args))
    found = [
        one for one in export.stored(store, args.runs_named)
        if args.min_speedup is None or (one.speedup or 0.0) >= args.min_speedup
    ]  # fmt: skip
    data = "".join(export.lines(found, args.format)).encode()
    if args.out is None:
        sys.stdout.write(data.decode())
        return 0
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_file(args.out, gzip.compress(data, mtime=0) if args.out.suffix == ".gz" else data)
    except OSError as error:
        raise OutputError(f"{args.out} cannot be written ({error.strerror or error}).") from error
    print(f"{len(found)} episodes: {args.out}", file=sys.stderr)
    return 0
