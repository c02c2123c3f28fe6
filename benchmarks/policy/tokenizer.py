"""Train the tokenizer that ships with the package, on rendered episodes of our suite.

    python benchmarks/policy/tokenizer.py [--problems DIR ...]

Writes src/cuda_agent/policies/builtin/tokenizer.json. Nothing is measured: times and feedback are
drawn at random, because the tokenizer only needs to have seen what numbers look like. Weights
belong to the tokenizer that they were trained with, so a new one needs a new training run.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch

from cuda_agent.agents.workspace import plan_space
from cuda_agent.errors import CudaAgentError
from cuda_agent.graph import capture
from cuda_agent.policies import PlanSpace, Step, Task, apply_plan
from cuda_agent.policies.builtin import call_text, feedback, opening, train
from cuda_agent.problems import load_problem, materialize
from cuda_agent.records import DTYPES, Status
from cuda_agent.targets import DeviceFacts

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "src" / "cuda_agent" / "policies" / "builtin"
DEVICES = (
    DeviceFacts("cuda", "a large GPU", "sm_90a", 132, 16, 50 << 20, 140 << 30, 232448, 233472,
                65536, 2048),
    DeviceFacts("cuda", "a small GPU", "sm_86", 28, 16, 3 << 20, 12 << 30, 101376, 102400, 65536,
                1536),
    DeviceFacts("cpu", "a CPU", "x86_64-avx512", 8, 64, 32 << 20, 64 << 30),
    DeviceFacts("cpu", "another CPU", "x86_64-avx2", 4, 32, 8 << 20, 16 << 30),
)
PLANS = 6  # calls for each task


def tasks(path: Path, rng: random.Random) -> Iterator[Task]:
    instance = materialize(load_problem(path), torch.device("cpu"), seed=0)
    graph = capture(instance.model, instance.inputs(instance.seed), fold=True)
    for device in DEVICES:
        found = plan_space(graph, device)
        times = {name: 10 ** rng.uniform(-2, 2) for name in ("eager", "compile_default")}
        yield Task(
            PlanSpace.from_json(found), found["details"], device, rng.choice(DTYPES),
            baselines_ms=times,
        )


def texts(folders: list[Path], rng: random.Random) -> Iterator[str]:
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        try:
            for task in tasks(path, rng):
                yield opening(task)
                for _ in range(PLANS):
                    plan = task.space.random(rng)
                    yield call_text(apply_plan(plan), task.space)
                    yield feedback(Step(apply_plan(plan), rng.choice(get_args(Status))))
                    numbers = (10 ** rng.uniform(-2, 2), *(rng.uniform(0.2, 9) for _ in range(2)))
                    yield "ok ms={:.3g} eager={:.2f} compile={:.2f}\n".format(*numbers)
        except CudaAgentError as error:
            print(f"{path.name}: {error}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=Path, nargs="+", default=[ROOT / "problems"])
    args = parser.parse_args()
    made = train(texts(args.problems, random.Random(0)))
    made.save(OUT)
    print(f"{len(made)} tokens in {OUT / 'tokenizer.json'}")


if __name__ == "__main__":
    main()
