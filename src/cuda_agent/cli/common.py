"""What the verbs share: options, where runs are kept, how a verdict is shown."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from cuda_agent import targets
from cuda_agent.records import BASELINES, DTYPES, Precision, Problem, Track
from cuda_agent.targets import Target

TARGETS = ("auto", "cuda", "cpu")


def add_problem_options(parser: argparse.ArgumentParser, *, resumable: bool = False) -> None:
    """Options of every verb that judges. A default is in the help and not in the parser, so that
    what was typed can be told from what was not."""
    parser.add_argument(
        "problem", metavar="PROBLEM", nargs="?" if resumable else None,
        help="KernelBench-format file, ops.parquet#ROW, or package.module:Class with --inputs",
    )
    _choice(parser, "--target", TARGETS)
    parser.add_argument(
        "--dtype", choices=DTYPES, help=f"default: what the file declares, else {DTYPES[0]}"
    )
    _choice(parser, "--precision", get_args(Precision))
    _choice(parser, "--track", get_args(Track))
    parser.add_argument(
        "--baselines", metavar="NAMES", type=lambda text: tuple(text.split(",")),
        help=f"of an audit, with commas between; default: {','.join(BASELINES)}",
    )
    parser.add_argument(
        "--inputs", metavar="SPECS", help='inputs of forward, e.g. "randn(8,512,1024); randn(8)"'
    )
    parser.add_argument(
        "--json", action="store_true",
        help="one JSON document on standard output, progress on standard error",
    )


def _choice(parser: argparse.ArgumentParser, name: str, options: tuple[str, ...]) -> None:
    parser.add_argument(name, choices=options, help=f"default: {options[0]}")


def add_runs_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runs", type=Path, metavar="DIR", help="where runs are kept ($CUDA_AGENT_RUNS, or ./runs)"
    )


def runs_dir(args: argparse.Namespace) -> Path:
    return args.runs or Path(os.environ.get("CUDA_AGENT_RUNS") or "runs")


def size_for(target: Target) -> str:
    """Which shapes of our own suite's files suit a target."""
    return "gpu" if target.name == "cuda" else "cpu"


def resolve_target(name: str | None) -> Target:
    """Raises TargetUnavailable with the reason."""
    return targets.resolve(name or "auto")


def load(args: argparse.Namespace, target: Target) -> Problem:
    """Raises ProblemError."""
    from cuda_agent.problems import load_problem

    return load_problem(
        args.problem, inputs=args.inputs, dtype=args.dtype, size=size_for(target)
    )


@contextlib.contextmanager
def only_json_on_stdout(active: bool) -> Iterator[None]:
    """A problem file may print while it is loaded; with --json that goes to standard error."""
    if not active:
        yield
        return
    with contextlib.redirect_stdout(sys.stderr):
        yield


def write_json(document: dict[str, Any]) -> None:
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")
