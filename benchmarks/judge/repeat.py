"""Is a verdict the same when it is asked for again? Candidates of 10 us to 10 ms, judged again and
again in random order, by a warm worker (trusted candidates) and by fresh ones (untrusted).

    python benchmarks/judge/repeat.py --target cuda --out benchmarks/judge/repeat-h200.jsonl

For each candidate: the coefficient of variation of the speed-up over eager, and whether the status
or the side of 1 changed. Restartable: judgements that have a line are not made again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from candidates import CLASS, RUNTIME
from rich.progress import track

from cuda_agent import targets
from cuda_agent.evaluation import Judge, Settings, contestant_pool
from cuda_agent.problems import materialize
from cuda_agent.records import Candidate, Problem

# Rows of 1024 and how often the function is applied: bytes at first, then arithmetic.
SIZES = {
    "cuda": [(32 << i, 1) for i in range(12)] + [(16384, 4 << i) for i in range(8)],
    "cpu": [(1 << i, 1) for i in range(10)] + [(512, 2 << i) for i in range(2)],
}
SOURCE = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
    def forward(self, x):
        x = x + self.bias
        for _ in range({times}):
            x = torch.tanh(x)
        return x
def get_inputs():
    return [torch.randn({rows}, 1024)]
def get_init_inputs():
    return [1024]
"""
CUDA = """
extern "C" __global__ void fused(const float* __restrict__ x, const float* __restrict__ bias,
                                 float* __restrict__ y, long long n) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float v = x[i] + bias[i % 1024];
        for (int k = 0; k < TIMES; ++k) v = tanhf(v);
        y[i] = v;
    }
}
"""
CPU = """
#include <cmath>
#include <cstdint>
extern "C" void fused(const float* x, const float* bias, float* y, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        float v = x[i] + bias[i % 1024];
        for (int k = 0; k < TIMES; ++k) v = std::tanh(v);
        y[i] = v;
    }
}
"""


def problem_of(rows: int, times: int) -> Problem:
    text = SOURCE.format(rows=rows, times=times)
    return Problem(f"tanh_{rows}_{times}", text, f"tanh_{rows}_{times}.py")


def candidate_of(problem: Problem, target: str, rows: int, times: int, trusted: bool) -> Candidate:
    blocks = max(1, min(2112, rows * 4))
    launch = f"kernels.fused({blocks}, 256, " if target == "cuda" else "kernels.fused("
    body = (f"x = x.contiguous()\n        y = torch.empty_like(x)\n"
            f"        {launch}x, self.bias, y, x.numel())\n        return y")
    suffix, text = ("cu", CUDA) if target == "cuda" else ("cpp", CPU)
    files = {
        f"kernels/fused.{suffix}": text.replace("TIMES", str(times)),
        "model_new.py": RUNTIME + CLASS.format(body=body),
    }
    return Candidate(problem.hash, files, author="benchmark", trusted=trusted)


def measure(args: argparse.Namespace, held: list[dict[str, Any]]) -> None:
    """Every (candidate, trusted) `--times` times, in random order; a line each."""
    settings = Settings(target=args.target, baselines=("eager",))
    device = targets.resolve(args.target).torch_device()
    made = [(problem_of(*size), size) for size in SIZES[args.target]]
    first = materialize(made[0][0], device)
    done = {(line["problem"], line["trusted"], line["round"]) for line in held}
    todo = [
        (p, size, trusted, i)
        for p, size in made for trusted in (True, False) for i in range(args.times)
        if (p.name, trusted, i) not in done
    ]
    random.Random(args.seed).shuffle(todo)
    end = time.monotonic() + 60 * args.total_minutes
    judges: dict[str, Judge] = {}
    with tempfile.TemporaryDirectory() as cache, contestant_pool(first, settings) as pool:
        for problem, size, trusted, i in track(todo, "judging", console=None):
            if time.monotonic() > end:
                break
            if problem.name not in judges:
                instance = materialize(problem, device)
                judges[problem.name] = Judge(
                    problem, instance, settings, cache_dir=cache, pool=pool
                )
            verdict = judges[problem.name].judge(
                candidate_of(problem, args.target, *size, trusted)
            )
            ratio = verdict.speedup["eager"]
            line = {
                "problem": problem.name, "trusted": trusted, "round": i, "status": verdict.status,
                "speedup": ratio and ratio.value, "ms": verdict.timing and verdict.timing.median_ms,
                "seconds": verdict.seconds["total"], "feedback": verdict.feedback[:300],
                "method": verdict.timing and verdict.timing.method,
            }
            held.append(line)
            with args.out.open("a") as file:
                file.write(json.dumps(line) + "\n")
        for judge in judges.values():
            judge.close()


def table(held: list[dict[str, Any]]) -> str:
    rows = ["| candidate | worker | judged | ms | speed-up | CV % | flips |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    variations = []
    order = [f"tanh_{rows}_{times}" for sizes in SIZES.values() for rows, times in sizes]
    keys = {(line["problem"], line["trusted"]) for line in held}
    for key in sorted(keys, key=lambda k: (order.index(k[0]), k[1])):
        lines = [line for line in held if (line["problem"], line["trusted"]) == key]
        values = [line["speedup"] for line in lines if line["status"] == "ok"]
        flips = len(lines) - len(values) + min(
            sum(v > 1 for v in values), sum(v <= 1 for v in values)
        )
        if len(values) < 2:
            rows.append(f"| {key[0]} | {lines[0]['status']}: {lines[0]['feedback'][:80]} |")
            continue
        mean = statistics.fmean(values)
        variation = 100 * statistics.stdev(values) / mean
        variations.append(variation)
        ms = statistics.median(line["ms"] for line in lines if line["ms"])
        rows.append(f"| {key[0]} | {'warm' if key[1] else 'fresh'} | {len(lines)} | {ms:.4f} | "
                    f"{mean:.3f} | {variation:.2f} | {flips} |")
    if variations:
        rows.append(f"\nCV: median {statistics.median(variations):.2f} %, worst "
                    f"{max(variations):.2f} %")
    return "\n".join(rows) + clocks(held)


def clocks(held: list[dict[str, Any]]) -> str:
    """How far the judge's own clock is from the candidate's: what its margins must allow."""
    pairs = [
        (line["ms"], float(found.group(1))) for line in held
        if (found := re.search(r"second clock ([\d.e-]+) ms", line.get("method") or ""))
    ]
    if not pairs:
        return ""
    rows = ["\n\n| a call, ms | judged | second clock, ms longer: median | worst | worst ratio |",
            "| --- | ---: | ---: | ---: | ---: |"]
    for low, high in itertools.pairwise((0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 1e9)):
        here = [(inside, outside) for inside, outside in pairs if low <= inside < high]
        if here:
            longer = [outside - inside for inside, outside in here]
            ratios = max(outside / inside for inside, outside in here)
            rows.append(f"| {low:g} to {high:g} | {len(here)} | {statistics.median(longer):.4f} | "
                        f"{max(longer):.4f} | {ratios:.2f} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--total-minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("repeat.jsonl"))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    args.target = targets.resolve(args.target).name
    held = [json.loads(t) for t in args.out.read_text().splitlines()] if args.out.exists() else []
    if not args.table:
        measure(args, held)
    print(table(held))
    return 0


if __name__ == "__main__":
    sys.exit(main())
