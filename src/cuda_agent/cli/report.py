"""`cuda-agent report RUN`: the table and the page of a run again, from stored records."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from cuda_agent.agents.compete import transcripts
from cuda_agent.benchmark.episode import render_episodes
from cuda_agent.benchmark.report import from_store, render
from cuda_agent.cli import common
from cuda_agent.cli.verdict import show_verdict
from cuda_agent.errors import OutputError
from cuda_agent.store import Store, write_file


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "report", help="table and page of a stored run", description=__doc__,
    )
    parser.add_argument("run_id", metavar="RUN", nargs="?", help="default: the newest")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: report.html in the run's own folder"
    )
    parser.add_argument("--json", action="store_true", help="the verdict and the page's path")
    common.add_runs_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    store = Store(common.runs_dir(args))
    run_id = args.run_id or next((r.id for r in reversed(store.runs())), "")
    data = from_store(store, run_id)
    turns: Path | None = None
    out = args.out or store.root / "reports" / run_id / "report.html"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_file(out, render(data).encode())
        if episodes := transcripts(store, run_id):
            turns = out.with_name("episode.html")
            write_file(turns, render_episodes(data.run, episodes).encode())
    except OSError as error:
        raise OutputError(f"{out} cannot be written ({error.strerror or error}).") from error
    if args.json:
        verdict = None if data.verdict is None else data.verdict.to_json()
        common.write_json({"verdict": verdict, "report": str(out), "run": run_id})
        return 0
    console = Console()
    if data.verdict is None:
        console.print(f"run {run_id} has no verdict yet")
    else:
        show_verdict(data.verdict, console)
    console.print(f"page: {out}", highlight=False, soft_wrap=True)
    if turns is not None:
        console.print(f"turn by turn: {turns}", highlight=False, soft_wrap=True)
    return 0
