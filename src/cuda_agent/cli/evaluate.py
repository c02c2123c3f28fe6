"""`cuda-agent evaluate PROBLEM CANDIDATE`: the judge alone."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import get_args

from rich.console import Console

from cuda_agent.cli import common
from cuda_agent.cli.verdict import show_verdict
from cuda_agent.records import Precision, Tier, Track

_RUNNABLE = ("ok", "wrong", "runtime_error", "timeout", "out_of_memory")  # a cheat runs no more


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "evaluate", help="judge one candidate", description=__doc__,
    )
    common.add_problem_options(parser)
    parser.add_argument(
        "candidate", metavar="CANDIDATE", type=Path,
        help="a folder with model_new.py, or one Python file that defines ModelNew",
    )
    parser.add_argument(
        "--tier", choices=get_args(Tier), default="screen",
        help="screen: quick (default); audit: the only figures to quote",
    )
    parser.add_argument(
        "--counters", action="store_true",
        help="also count hardware events of one forward, apart from what is timed",
    )
    parser.add_argument(
        "--sanitize", action="store_true",
        help="also run the kernels under memory checkers, apart from what is timed",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when the candidate is correct, 1 when it is not, 2 when the problem cannot be judged."""
    from cuda_agent.agents.optimize import cache_dir
    from cuda_agent.evaluation import Judge, Settings, load_candidate
    from cuda_agent.evaluation.counters import count
    from cuda_agent.evaluation.sanitize import sanitize
    from cuda_agent.problems import materialize

    progress = Console(stderr=True)
    target = common.resolve_target(args.target)
    with common.only_json_on_stdout(args.json):
        problem = common.load(args, target)
        candidate = load_candidate(args.candidate, problem)
        instance = materialize(problem, target.torch_device())
        settings = Settings(
            target=target.name, tier=args.tier, track=args.track or get_args(Track)[0],
            precision=args.precision or get_args(Precision)[0], baselines=args.baselines,
        )
        with (
            progress.status(f"judging on {target.name} ({args.tier})"),
            Judge(problem, instance, settings, cache_dir=cache_dir()) as judge,
        ):
            verdict = judge.judge(candidate)
            if args.counters and verdict.ok:
                verdict = replace(verdict, counters=count(judge, candidate))
            if args.sanitize and verdict.status in _RUNNABLE:
                verdict = replace(verdict, sanitizer=sanitize(judge, candidate))
    if args.json:
        common.write_json(verdict.to_json())
    else:
        console = Console()
        show_verdict(verdict, console)
    if verdict.status == "invalid_problem":
        return 2
    return 0 if verdict.ok else 1
