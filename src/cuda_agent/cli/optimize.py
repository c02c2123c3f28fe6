"""`cuda-agent optimize PROBLEM`: search for faster kernels, audit the best, write a solution."""

from __future__ import annotations

import argparse
import dataclasses
import re
import time
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cuda_agent import policies
from cuda_agent.agents.compete import ChatOptions, is_chat, transcripts
from cuda_agent.agents.optimize import Options, Outcome, optimize_instance, refuse_unsound
from cuda_agent.agents.solution import check_out, solution_files, write_solution
from cuda_agent.benchmark.episode import render_episodes
from cuda_agent.benchmark.report import from_store, region_rows, render
from cuda_agent.cli import INTERRUPTED, NOT_FASTER, SUCCESS, chat_options, common
from cuda_agent.cli.live import LiveView
from cuda_agent.cli.progress import Reporter
from cuda_agent.cli.verdict import show_verdict
from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.policies import POLICIES
from cuda_agent.problems import Instance, materialize
from cuda_agent.records import Candidate, Precision, Run, Track
from cuda_agent.store import Store, new_run_id
from cuda_agent.targets import Target

BUDGET = 16
EPISODES = "episode.html"
# Options that a resumed run keeps; the others may be given anew.
_KEPT = ("target", "policy", "model", "dtype", "precision", "track", "seed")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "optimize", help="find faster kernels for a module", description=__doc__
    )
    common.add_problem_options(parser, resumable=True)
    parser.add_argument(
        "--policy",
        help=f"{', '.join(POLICIES)}, endpoint (a language model), scripted:FILE (a replay), or "
        "package.module:Class; default: search",
    )
    parser.add_argument(
        "--model", metavar="NAME",
        help="as the endpoint calls it; of --policy builtin a folder, default: the package's own",
    )
    parser.add_argument(
        "--budget", type=int, metavar="N",
        help=f"evaluations at most; default: {BUDGET}, for an endpoint as many as turns",
    )
    parser.add_argument("--minutes", type=float, metavar="M", help="time limit; default: none")
    parser.add_argument(
        "--audit-seconds", type=float, metavar="S", help="of sampling in an audit; default: 6"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="of policy and weights; default: 0")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: solutions/<problem's name>"
    )
    parser.add_argument("--resume", metavar="RUN", help="continue a run; nothing is measured twice")
    common.add_runs_option(parser)
    chat_options.add_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 faster, 1 not, 130 after Ctrl-C with the best so far kept."""
    store = Store(common.runs_dir(args))
    console = Console(stderr=True)
    with common.only_json_on_stdout(args.json):
        with console.status("checking the problem"):
            record, instance, target = _resumed(args, store) if args.resume else _new(args)
        out = Path(record.settings["out"])
        check_out(out)
        with store.hold(record.id):
            store.put_run(record)
            try:
                outcome = _search(record, instance, target, store, console)
                _keep(record, outcome, store, out)
            except (KeyboardInterrupt, OutputError):
                _say_how_to_resume(record.id, args)
                raise
    if args.json:
        verdict = None if outcome.verdict is None else outcome.verdict.to_json()
        common.write_json(
            {
                "verdict": verdict, "solution": str(out) if outcome.candidate else None,
                "run": record.id, "evaluations": outcome.evaluations,
            }
        )
    else:
        _show(record, outcome, store, out)
    if outcome.interrupted:
        _say_how_to_resume(record.id, args)
        return INTERRUPTED
    return SUCCESS if outcome.faster else NOT_FASTER


def folder_name(problem: str) -> str:
    """The name of a row of a data set, such as torch#12, may be anything."""
    return re.sub(r"[^\w.-]+", "_", problem).strip(".") or "problem"


def _new(args: argparse.Namespace) -> tuple[Run, Instance, Target]:
    if args.problem is None:
        raise SettingsError("name a PROBLEM (a file, or package.module:Class), or --resume RUN.")
    target = common.resolve_target(args.target)
    policy = args.policy or "search"
    chat = chat_options.given(args, is_chat(policy))
    if chat and not is_chat(policy):
        raise SettingsError(f"--{next(iter(chat)).replace('_', '-')} is for --policy endpoint.")
    usual = chat.get("turns", ChatOptions.turns) if is_chat(policy) else BUDGET
    settings = {
        "target": target.name, "policy": policy, "chat": chat if is_chat(policy) else None,
        "model": None if is_chat(policy) else args.model,
        "budget": usual if args.budget is None else args.budget, "minutes": args.minutes,
        "precision": args.precision or get_args(Precision)[0],
        "track": args.track or get_args(Track)[0], "seed": args.seed or 0, "out": None,
        "baselines": args.baselines, "audit_seconds": args.audit_seconds,
    }
    options = _options(settings)
    problem = common.load(args, target)
    settings["dtype"] = problem.dtype
    settings["out"] = str(args.out or Path("solutions") / folder_name(problem.name))
    check_out(Path(settings["out"]))
    instance = materialize(problem, target.torch_device(), seed=options.seed)
    refuse_unsound(instance)
    created = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    record = Run(
        new_run_id(problem.name), "optimize", problem, settings, created, target.environment()
    )
    return record, instance, target


def _resumed(args: argparse.Namespace, store: Store) -> tuple[Run, Instance, Target]:
    record = store.run(args.resume)
    if record.command != "optimize" or record.problem.kind != "file":
        raise SettingsError(f"run {record.id} is not one of `cuda-agent optimize PROBLEM`.")
    for name in _KEPT:
        given = getattr(args, name)
        kept = record.settings.get(name)
        if name == "model" and record.settings.get("chat"):
            kept = record.settings["chat"].get("model")
        if given not in (None, "auto", kept):
            raise SettingsError(
                f"run {record.id} was started with --{name} {kept}, not {given}; "
                "start a new run for that."
            )
    target = common.resolve_target(record.settings["target"])
    if args.problem is not None:
        args.dtype = record.problem.dtype
        if common.load(args, target).hash != record.problem.hash:
            raise SettingsError(
                f"{args.problem} is not, or no longer, the problem of run {record.id} "
                f"({record.problem.origin}); start a new run."
            )
    anew = {
        "budget": args.budget, "minutes": args.minutes, "baselines": args.baselines,
        "out": None if args.out is None else str(args.out),
    }
    settings = {**record.settings, **{k: v for k, v in anew.items() if v is not None}}
    if is_chat(settings["policy"]):
        settings["chat"] = chat_options.resumed(settings.get("chat") or {}, args)
    _options(settings)
    instance = materialize(record.problem, target.torch_device(), seed=settings["seed"])
    return dataclasses.replace(record, settings=settings, finished=False), instance, target


def _options(settings: dict[str, Any]) -> Options:
    names = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{k: v for k, v in settings.items() if k in names})
    known = ":" in options.policy or options.policy in POLICIES or is_chat(options.policy)
    if not known:
        raise SettingsError(
            f"there is no policy {options.policy!r}; choose from {', '.join(POLICIES)}, endpoint."
        )
    if options.policy == "builtin" or options.model is not None:
        policies.get(options.policy, options.seed, options.model)  # refused now, not after minutes
    return options


def _search(
    record: Run, instance: Instance, target: Target, store: Store, console: Console
) -> Outcome:
    options = _options(record.settings)
    episode = store.episode(record.id)
    best = episode.best_verdict_hash if episode is not None else None
    known = store.verdict_by_hash(best) if best is not None else None
    live = console.is_terminal and is_chat(options.policy)
    with (
        LiveView(console, record, options.chat.turns) if live
        else Reporter(console, record, options.budget, known)
    ) as reporter:
        return optimize_instance(
            instance, target.facts(), options, store, record.id, observer=reporter
        )


def _keep(record: Run, outcome: Outcome, store: Store, out: Path) -> None:
    """The result into the store, then the solution with its report to `out`."""
    candidate, verdict = outcome.candidate, outcome.verdict
    result = {
        "candidate": candidate.hash if candidate else None,
        "verdict": verdict.hash if verdict else None,
        "faster": outcome.faster, "out": str(out) if candidate else "",
    }
    store.put_note(record.id, "result", result)
    store.put_run(dataclasses.replace(record, finished=not outcome.interrupted))
    if candidate is not None and verdict is not None:
        page = render(from_store(store, record.id))
        files = solution_files(record.problem, candidate)
        if episodes := transcripts(store, record.id):
            files[EPISODES] = render_episodes(record, episodes)
        write_solution(out, files, verdict, page)


def _regions(record: Run, candidate: Candidate, store: Store) -> Table:
    table = Table("region", "skill", "knobs", "operations", title="Kernels", title_justify="left")
    for row in region_rows(store.note(record.id, "regions") or [], candidate):
        if row["kind"] != "view":
            table.add_row(row["id"], row["skill"], escape(row["knobs"]), escape(row["ops"]))
    return table


def _say_how_to_resume(run_id: str, args: argparse.Namespace) -> None:
    runs = f" --runs {args.runs}" if args.runs else ""
    Console(stderr=True, highlight=False, soft_wrap=True).print(
        f"run {run_id} is stored; continue with: cuda-agent optimize --resume {run_id}{runs}"
    )


def _show(record: Run, outcome: Outcome, store: Store, out: Path) -> None:
    console = Console(highlight=False)
    for sample, reason in enumerate(outcome.ended):
        console.print(escape(f"episode {sample} ended: {reason}"), soft_wrap=True)
    if outcome.verdict is None:
        console.print("nothing was measured")
        return
    show_verdict(outcome.verdict, console)
    if outcome.candidate is None:
        console.print(
            f"no correct solution in {outcome.evaluations} evaluations; run {record.id} keeps them"
        )
        return
    if outcome.candidate.plan is not None:
        console.print(_regions(record, outcome.candidate, store))
    if outcome.verdict.tier != "audit":
        console.print("[yellow]not audited yet: these are screen figures")
    if not outcome.faster and not outcome.interrupted:
        console.print(
            "[yellow]no solution faster than eager and torch.compile was found; "
            "this is the best correct one"
        )
    console.print(f"solution: {out}", soft_wrap=True)
    console.print(f"report:   {out / 'report.html'}", soft_wrap=True)
    if (out / EPISODES).exists():
        console.print(f"turns:    {out / EPISODES}", soft_wrap=True)
    console.print(f"run:      {record.id} ({outcome.evaluations} evaluations)", soft_wrap=True)


