"""Seconds a verdict takes: our two tiers beside the published evaluators, in one run on one device.

    python benchmarks/judge/run.py --target cuda --kernelbench external/KernelBench \\
        --work-folder external/CUDA-Agent/agent_workdir --out benchmarks/judge/h200.jsonl

The same kernel, in the form of each evaluator. Ours judge `--count` distinct candidates, the
published ones `--slow-count`. "cold": nothing is built and no process runs; "warm": the processes
are up, and for ours the same candidates come again. A line is written when a part ends, and a part
that has a line is not run again. `--table` only renders what is there.

KernelBench and the published work folder are fetched, never committed:
github.com/ScalingIntelligence/KernelBench, github.com/BytedTsinghua-SIA/CUDA-Agent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import candidates as forms
import numpy as np
from candidates import Variant, problem

from cuda_agent import targets
from cuda_agent.evaluation import Settings
from cuda_agent.workers import LocalPool

Line = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One line of the result: an evaluator in one state."""

    evaluator: str
    workers: int
    measure: Callable[[], Iterator[Line]]

    @property
    def key(self) -> str:
        return f"{self.evaluator}, {self.workers} workers"


# --- ours -----------------------------------------------------------------------------------------


def ours(tier: str, count: int, workers: int, target: str, trusted: bool) -> Iterator[Line]:
    """Cold with a fresh cache, then the same candidates again."""
    settings = Settings(target=target, tier=tier)  # type: ignore[arg-type]
    made = [forms.native(Variant(i), target, trusted) for i in range(count)]
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        with LocalPool(problem(target), settings, cache_dir=cache, workers=workers) as pool:
            for state in ("cold", "warm"):
                verdicts = [f.result() for f in [pool.submit(c) for c in made]]
                elapsed = time.perf_counter() - start
                bad = [v.feedback for v in verdicts if not v.ok]
                yield {
                    "state": state, "verdicts": count, "elapsed_s": elapsed,
                    "seconds": [v.seconds["total"] for v in verdicts],
                    "speedups": [v.speedup["eager"].value for v in verdicts if v.speedup["eager"]],
                    "failures": bad[:3],
                }
                start = time.perf_counter()


# --- the published ones ---------------------------------------------------------------------------


def published(script: str, count: int, place: Path) -> Iterator[Line]:
    """One process judges all: the first verdict is the cold one. Printed as JSON by `script`."""
    command = [sys.executable, __file__, "--child", script, "--count", str(count)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCH_EXTENSIONS_DIR": cache, "TORCH_CUDA_ARCH_LIST": "9.0"}
        done = subprocess.run(
            [*command, "--place", str(place)], capture_output=True, text=True, env=environment
        )
    try:
        seconds, failures = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        yield {"state": "cold", "verdicts": 0, "failures": [done.stderr[-2000:]]}
        return
    yield {
        "state": "each a new candidate", "verdicts": count, "elapsed_s": sum(seconds),
        "seconds": seconds, "failures": failures,
    }


def judge_with_kernelbench(count: int, place: Path) -> tuple[list[float], list[str]]:
    """`eval_kernel_against_ref` as its scripts call it: 5 correctness trials, 100 timed ones."""
    import types

    for name in ("openai", "litellm", "dotenv"):  # imported by it, for its language models only
        try:
            __import__(name)
        except ImportError:
            stand_in = types.ModuleType(name)
            stand_in.__dict__.update(OpenAI=None, completion=None, load_dotenv=lambda *_: None)
            sys.modules[name] = stand_in
    sys.path.insert(0, str(place / "src"))
    import torch
    from kernelbench.eval import eval_kernel_against_ref

    seconds, failures = [], []
    for i in range(count):
        start = time.perf_counter()
        found = eval_kernel_against_ref(
            problem("cuda").source, forms.kernelbench(Variant(i)), num_correct_trials=5,
            num_perf_trials=100, measure_performance=True, device=torch.device("cuda:0"),
        )
        seconds.append(time.perf_counter() - start)
        if not found or not found.correctness:
            failures.append(str(found)[:2000])
    return seconds, failures


def judge_with_work_folder(count: int, place: Path) -> tuple[list[float], list[str]]:
    """Compile, verify and profile as its SKILL file says, each a process of its own."""
    steps = (
        ["bash", "utils/compile.sh"], [sys.executable, "-m", "utils.verification"],
        [sys.executable, "-m", "utils.profiling"],
    )
    seconds, failures = [], []
    for i in range(count):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, "work")
            shutil.copytree(place, folder)
            for old in folder.glob("kernels/*"):
                old.unlink()
            for name, text in forms.work_folder(Variant(i)).items():
                (folder / name).write_text(text)
            start = time.perf_counter()
            for step in steps:
                done = subprocess.run(step, cwd=folder, capture_output=True, text=True)
                if done.returncode:
                    failures.append(f"{step}: {(done.stdout + done.stderr)[-2000:]}")
                    break
            seconds.append(time.perf_counter() - start)
    return seconds, failures


CHILDREN = {"kernelbench": judge_with_kernelbench, "work-folder": judge_with_work_folder}


# --- the run and the table ------------------------------------------------------------------------


def parts(args: argparse.Namespace) -> list[Part]:
    def own(tier: str, count: int, workers: int, trusted: bool = False) -> Part:
        name = f"ours, {tier}" + (", trusted" if trusted else "")
        return Part(name, workers, lambda: ours(tier, count, workers, args.target, trusted))

    found = [own("screen", args.count, w) for w in args.workers]
    found += [own("screen", args.count, w, trusted=True) for w in args.workers]
    found += [own("audit", args.audit_count, args.workers[0])]
    for name, place in (("kernelbench", args.kernelbench), ("work-folder", args.work_folder)):
        if place is not None:
            found.append(
                Part(name, 1, lambda n=name, p=place: published(n, args.slow_count, p))  # type: ignore[misc]
            )
    return found


def table(lines: list[Line]) -> str:
    """A Markdown table; rates against each published evaluator that has a line."""
    rates = {
        line["evaluator"]: _rate(line) for line in lines
        if line["evaluator"] in CHILDREN and line["verdicts"]
    }
    rows = ["| evaluator | CPU workers | state | verdicts | s median | s p95 | verdicts an hour |"
            + "".join(f" against {name} |" for name in rates),
            "| --- | ---: | --- | ---: | ---: | ---: | ---: |" + " ---: |" * len(rates)]
    for line in lines:
        if not line["verdicts"]:
            rows.append(f"| {line['evaluator']} | failed: {line['failures'][0][-200:]} |")
            continue
        own = _rate(line)
        cells = [
            line["evaluator"], line["workers"], line["state"], line["verdicts"],
            f"{statistics.median(line['seconds']):.2f}",
            f"{np.percentile(line['seconds'], 95):.2f}", f"{own:,.0f}",
            *(f"{own / rate:.0f}x" for rate in rates.values()),
        ]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def _rate(line: Line) -> float:
    return float(3600 * line["verdicts"] / line["elapsed_s"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--audit-count", type=int, default=20)
    parser.add_argument("--slow-count", type=int, default=5)
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 4, 16], help="CPU workers, for example 1,4,16")
    parser.add_argument("--kernelbench", type=Path, help="its folder, unpacked")
    parser.add_argument("--work-folder", type=Path, help="the published agent_workdir")
    parser.add_argument("--total-minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("judge.jsonl"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args.count, args.place)))
        return 0
    args.target = targets.resolve(args.target).name
    lines = _read(args.out)
    end = time.monotonic() + 60 * args.total_minutes
    for part in parts(args) if not args.table else ():
        if any(line["key"] == part.key for line in lines) or time.monotonic() > end:
            continue
        print(part.key, "...", file=sys.stderr, flush=True)
        for found in part.measure():
            line = {
                "key": part.key, "evaluator": part.evaluator, "workers": part.workers, **found,
                "date": date.today().isoformat(), "target": args.target,
            }
            lines.append(line)
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"  {line['state']}: {line['verdicts']} in {line.get('elapsed_s', 0):.1f} s "
                  f"{line['failures'][:1]}", file=sys.stderr, flush=True)
    print(table(lines))
    return 0


def _read(path: Path) -> list[Line]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
