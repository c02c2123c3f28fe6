"""`cuda-agent train`: the four stages, resumable after any end."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from cuda_agent.cli import common
from cuda_agent.cli.progress import duration
from cuda_agent.errors import SettingsError
from cuda_agent.training.config import STAGES

_SHOWN = ("reward", "faster", "speedup", "loss", "value_loss", "explained_variance")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "train", help="train the builtin policy, or a model of your own", description=__doc__,
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE",
        help="TOML; see recipes/ and docs/training.md",
    )
    parser.add_argument(
        "--stage", default="all", choices=[*STAGES, "all"],
        help="default: all stages of the config",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR",
        help="folder of the run, which continues there (default: train-NAME of the config's name)",
    )
    parser.add_argument(
        "--model", type=Path, metavar="PATH",
        help="a local Hugging Face folder to start from, instead of random weights",
    )
    parser.add_argument("--seed", type=int, help="instead of the config's")
    parser.add_argument("--json", action="store_true", help="the model's and the page's path")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from cuda_agent.agents.optimize import cache_dir
    from cuda_agent.training import config as configs
    from cuda_agent.training.run import train

    config = configs.load(args.config)
    if args.model is not None:
        model = dataclasses.replace(config.model, path=str(args.model.resolve()))
        config = dataclasses.replace(config, model=model)
    if args.seed is not None:
        if args.seed < 0:
            raise SettingsError(f"--seed is {args.seed}; it must be 0 or more.")
        config = dataclasses.replace(config, seed=args.seed)
    out = args.out or Path(f"train-{args.config.stem}")
    stages = () if args.stage == "all" else (args.stage,)
    console = Console(stderr=True)
    with _Progress(console) as progress:
        model_folder = train(config, out, stages, cache=cache_dir(), observer=progress)
    page = out / "report.html"
    if args.json:
        trained = str(model_folder) if model_folder.is_dir() else None
        common.write_json({"model": trained, "report": str(page), "run": str(out)})
        return 0
    said = Console()
    if model_folder.is_dir():
        said.print(f"model: {model_folder}", highlight=False, soft_wrap=True)
    said.print(f"page: {page}", highlight=False, soft_wrap=True)
    return 0


class _Progress:
    """A live bar for the stage in a terminal, elsewhere a line every ten seconds and at its end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._first = 0
        self._start = self._said = time.monotonic()
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"), console=console,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, stage: str, done: int, total: int, metrics: Mapping[str, float]) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._first, self._start = stage, done, now
            if self._bar is not None:
                self._task = self._bar.add_task(stage, total=total, note="")
        shown = [f"{name} {metrics[name]:.3g}" for name in _SHOWN if name in metrics]
        if done > self._first:  # the first call of a stage tells no pace
            left = (now - self._start) / (done - self._first) * (total - done)
            shown.append(f"{duration(left)} left")
        note = ", ".join(shown)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
        elif done == total or now - self._said > 10:
            self.say(f"{stage} {done}/{total}: {note}")
            self._said = now
