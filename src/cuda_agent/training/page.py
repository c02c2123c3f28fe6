"""Learning curves of a run as one self-contained page, from its metrics."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda_agent.benchmark import plots
from cuda_agent.benchmark.report import environment
from cuda_agent.errors import OutputError
from cuda_agent.store import write_file
from cuda_agent.training import metrics
from cuda_agent.training.config import STAGES

# caption: {label of a line: metric}
CHARTS: dict[str, dict[str, str]] = {
    "Reward": {"learnt from": "reward", "best verdict": "reward_best", "final": "reward_final"},
    "Share of episodes": {"correct": "pass", "beat torch.compile": "faster"},
    "Speed-up over torch.compile, geometric mean": {
        "training": "speedup", "validation, first plan": "validation_speedup",
    },
    "Entropy of a choice (nats)": {"entropy": "entropy"},
    "KL of an update": {"kl": "kl"},
    "Share of tokens clipped": {"above": "clip_high", "below": "clip_low"},
    "Largest importance ratio": {"over an update": "ratio_max", "at its first step": "ratio_first"},
    "Explained variance of the critic": {"explained variance": "explained_variance"},
    "Loss": {"imitation": "loss", "value": "value_loss"},
    "Seconds of a step": {
        "sampling": "sampling_s", "judging": "judging_s", "updating": "updating_s",
    },
    "Evaluations a second": {"evaluations a second": "evaluations_per_s"},
}
_LAST = ("reward", "pass", "faster", "speedup", "validation_speedup", "entropy",
         "explained_variance", "loss", "audit_disagreements")


def write(folder: Path) -> Path:
    """DIR/report.html. Raises OutputError."""
    path = folder / "report.html"
    try:
        write_file(path, render(folder).encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error.strerror or error}).") from error
    return path


def render(folder: Path) -> str:
    lines = list(metrics.read(folder / metrics.FILE)) if (folder / metrics.FILE).exists() else []
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    stages = []
    for stage in STAGES:
        mine = [line for line in lines if line["stage"] == stage]
        if mine:
            stages.append({
                "name": stage, "steps": mine[-1]["step"], "charts": _charts(mine),
                "seconds": sum(line["seconds"] for line in mine),
                "last": [(n, plots.number(mine[-1][n])) for n in _LAST if mine[-1].get(n)],
                "alarms": sum(line.get("audit_disagreements") or 0 for line in mine),
            })
    template = environment().get_template("training.html.j2")
    return template.render(name=folder.resolve().name, config=config, stages=stages)


def _charts(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    for caption, names in CHARTS.items():
        series = {
            label: [(line["step"], _value(line[name])) for line in lines if name in line]
            for label, name in names.items()
        }
        series = {label: points for label, points in series.items() if points}
        if svg := plots.lines(series, caption, "step"):
            made.append({"caption": caption, "labels": list(series), "svg": svg})
    return made


def _value(value: float | None) -> float:
    return math.nan if value is None else value
