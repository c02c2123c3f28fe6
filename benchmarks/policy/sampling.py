"""Tokens a second of the builtin model's constrained sampling.

    python benchmarks/policy/sampling.py [--device cuda] [--batches 64,512] [--turns 8] [--out FILE]

Streams are those of our suite's problems, played on the analytic cost model with a model of the
default size and random weights; a turn's sampling alone is timed, prefill included. "tokens" are
what an LLM would have to generate, so forced tokens count; "steps" are passes through the model.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from cuda_agent import rewards
from cuda_agent.agents.optimize import cache_dir
from cuda_agent.policies.builtin import Builtin
from cuda_agent.training.config import Environment
from cuda_agent.training.rollouts import Rules, play
from cuda_agent.training.simulated import SimulatedSource
from cuda_agent.training.sources import load_problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", default="64,512")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    environment = Environment(target="cuda")
    problems = load_problems(environment, ["ours"], cache=cache_dir())
    builtin = Builtin.untrained(0)
    builtin.model.to(device=args.device, dtype=getattr(torch, args.dtype))
    grid = Table("batch", "tokens/s", "tokens", "seconds", title=f"{args.device}, {args.dtype}")
    rows = []
    for batch in map(int, args.batches.split(",")):
        drawn = [problems[i % len(problems)] for i in range(batch)]
        best: tuple[float, float, int] = (0.0, 0.0, 0)
        for repeat in range(args.repeats + 1):  # the first warms up
            rules = Rules(args.turns, rewards.milestone, seed=repeat)
            start = time.perf_counter()
            _, tally = play(builtin, drawn, SimulatedSource(), rules)
            whole = time.perf_counter() - start
            rate = tally.tokens / tally.sampling_s
            if repeat and rate > best[0]:
                best = rate, whole, tally.tokens
        rows.append({
            "batch": batch, "tokens_per_s": best[0], "tokens": best[2], "episode_s": best[1],
        })
        grid.add_row(str(batch), f"{best[0]:,.0f}", f"{best[2]:,}", f"{best[1]:.2f}")
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    parameters = sum(p.numel() for p in builtin.model.parameters())
    data = {"device": name, "torch": torch.__version__, "dtype": args.dtype,
            "parameters": parameters, "turns": args.turns, "rows": rows}
    Console().print(grid)
    if args.out is not None:
        args.out.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
