"""Time many plans of every problem without the judge: which knob values are good, and how far from
the floor the kernels are.

    python benchmarks/kernels/sweep.py --target cuda --out sweep.jsonl [--only REGEX] [--plans 24]

Plans run in one process next to eager and torch.compile, on the same tensors, in random order,
each from a cold L2 and behind a busy device, as `session.py` times a call. The result is a hint
for whoever writes kernels and defaults, not a verdict: nothing here guards against a cheat.
A problem that has a line in the output is not run again. `--table` only renders what is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import multiprocessing
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUN_AHEAD_CYCLES = 2_000_000  # about a millisecond of a busy device
Forward = Callable[[], Any]


def chosen(space: Any, default: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """The default, all plans that differ from it in one choice, then random ones."""
    from cuda_agent.policies.space import plan_key

    rng = random.Random(0)
    plans = {plan_key(default): default}
    near = list(space.neighbours(default))
    far = [space.random(rng) for _ in range(4 * count)]
    for plan in [*near[: 3 * count // 4], *far, *near]:
        if len(plans) < min(count, len(space)):
            plans.setdefault(plan_key(plan), plan)
    return list(plans.values())


def difference(plan: dict[str, Any], default: dict[str, Any]) -> dict[str, Any]:
    """Only what `plan` chooses otherwise."""
    found: dict[str, Any] = {k: v for k, v in plan["graph"].items() if default["graph"][k] != v}
    for region, choice in plan["regions"].items():
        usual = default["regions"][region]
        if choice["skill"] != usual["skill"]:
            found[region] = choice
        else:
            changed = {k: v for k, v in choice["knobs"].items() if usual["knobs"].get(k) != v}
            found |= {f"{region}.{k}": v for k, v in changed.items()}
    return found


def loaded(folder: Path, files: dict[str, str], instance: Any) -> Any:
    """ModelNew of a candidate's files, with the reference's weights."""
    import torch

    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    name = f"swept_{folder.name}"
    spec = importlib.util.spec_from_file_location(name, folder / "model_new.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    torch.manual_seed(instance.seed)
    with torch.device(instance.device):
        model = module.ModelNew(*instance.init_inputs, **instance.init_kwargs)
    model.load_state_dict(instance.model.state_dict())
    return model.to(instance.device).eval()


def error(out: Any, expected: Any) -> float:
    """Largest difference over the expected spread, over all output tensors."""
    from torch.utils import _pytree

    worst = 0.0
    for got, want in zip(_pytree.tree_leaves(out), _pytree.tree_leaves(expected), strict=True):
        a, b = got.double(), want.double()
        if a.shape != b.shape:
            return math.inf
        spread = float(b.std()) if b.numel() > 1 else float(b.abs().max())
        worst = max(worst, float((a - b).abs().max()) / max(spread, 1e-30))
    return worst


def raced(target: Any, entrants: dict[str, Forward], rounds: int) -> dict[str, list[float]]:
    import torch

    samples: dict[str, list[float]] = {name: [] for name in entrants}
    cuda = target.torch_device().type == "cuda"
    for _ in range(rounds):
        for name in random.sample(list(entrants), len(entrants)):
            if cuda:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                torch.cuda._sleep(RUN_AHEAD_CYCLES)
                target.flush_cache()
                start.record()
                entrants[name]()
                end.record()
                end.synchronize()
                samples[name].append(start.elapsed_time(end))
            else:
                target.flush_cache()
                begun = time.perf_counter()
                entrants[name]()
                samples[name].append((time.perf_counter() - begun) * 1e3)
    return samples


def sweep(path: str, args: argparse.Namespace) -> dict[str, Any]:
    """One problem: a line of the result file."""
    import torch

    from cuda_agent import targets
    from cuda_agent.agents.planner import Planner
    from cuda_agent.agents.solution import solution_files
    from cuda_agent.evaluation.lock import device_lock
    from cuda_agent.evaluation.precision import set_flags
    from cuda_agent.problems import load_problem, materialize

    begun = time.monotonic()
    target = targets.resolve(args.target)
    set_flags(args.precision)
    size = "gpu" if target.name == "cuda" else "cpu"
    problem = load_problem(path, dtype=args.dtype, size=size)
    name = f"{Path(path).parent.name}/{Path(path).stem}"
    line: dict[str, Any] = {"problem": name, "dtype": args.dtype, "plans": []}
    with device_lock("sweep"):
        instance = materialize(problem, target.torch_device())
        inputs = instance.inputs(1)
        with torch.no_grad():
            expected = instance.model(*inputs)
    planner = Planner.make(instance, target.facts())
    line["regions"] = planner.regions()
    line["space"] = len(planner.space)
    entrants: dict[str, Forward] = {"eager": lambda: instance.model(*inputs)}
    if not args.no_compile:
        compiled = torch.compile(instance.model)
        entrants["compile"] = lambda: compiled(*inputs)
    moved = instance.input_bytes + sum(
        t.numel() * t.element_size() for t in torch.utils._pytree.tree_leaves(expected))
    source = torch.empty(max(4, moved // 2), dtype=torch.uint8, device=target.torch_device())
    copy = torch.empty_like(source)
    entrants["copy"] = lambda: copy.copy_(source)
    line["floor_ms"] = moved / (target.facts().copy_bytes_per_s or math.nan) * 1e3
    with torch.no_grad(), tempfile.TemporaryDirectory(prefix="sweep-") as work:
        seen: set[str] = set()
        for i, plan in enumerate(chosen(planner.space, planner.default, args.plans)):
            entry: dict[str, Any] = {"changed": difference(plan, planner.default)}
            line["plans"].append(entry)
            try:
                candidate = planner.assemble(plan)
                if candidate.hash in seen:
                    entry["status"] = "same"
                    continue
                seen.add(candidate.hash)
                folder = Path(work) / f"{os.getpid()}_{Path(path).stem}_{i}"
                model = loaded(folder, solution_files(problem, candidate), instance)
                with device_lock("sweep"):
                    entry["error"] = error(model(*inputs), expected)
                    target.synchronize()
            except Exception as failure:
                entry["status"] = f"{type(failure).__name__}: {failure}"[:400]
                if "illegal" in str(failure) or "CUDA error" in str(failure):
                    break
                continue
            entry["status"] = "ok"
            entrants[str(i)] = lambda model=model: model(*inputs)
        for baseline in ("eager", "compile", "copy"):
            if baseline in entrants:
                try:
                    for _ in range(2):
                        entrants[baseline]()
                except Exception as failure:
                    del entrants[baseline]
                    line[f"{baseline}_failure"] = f"{type(failure).__name__}: {failure}"[:300]
        target.synchronize()
        with device_lock("sweep"):
            raced(target, entrants, 2)
            samples = raced(target, entrants, args.rounds)
    times = {name: round(statistics.median(s), 5) for name, s in samples.items()}
    line |= {f"{n}_ms": times.get(n) for n in ("eager", "compile", "copy")}
    for i, entry in enumerate(line["plans"]):
        entry["ms"] = times.get(str(i))
    return line | {"seconds": round(time.monotonic() - begun, 1)}


def guarded(path: str, args: argparse.Namespace) -> dict[str, Any]:
    try:
        return sweep(path, args)
    except Exception as failure:
        name = f"{Path(path).parent.name}/{Path(path).stem}"
        return {"problem": name, "failure": f"{type(failure).__name__}: {failure}"[:600]}


def table(lines: list[dict[str, Any]]) -> str:
    """Losers against torch.compile first: default and best plan, in ms and as shares."""
    rows = []
    for line in lines:
        ran = [p for p in line.get("plans", []) if p.get("ms")]
        if not ran:
            why = line.get("failure") or str([p.get("status") for p in line.get("plans", [])[:1]])
            rows.append((-1.0, f"{line['problem']:42} {why[:150]}"))
            continue
        best = min(ran, key=lambda p: p["ms"])
        first = next((p["ms"] for p in line["plans"][:1] if p.get("ms")), math.nan)
        against = line.get("compile_ms") or line["eager_ms"]
        gain = against / best["ms"]
        floor, copied = line["floor_ms"] / best["ms"], line["copy_ms"] / best["ms"]
        wrong = sum(p["error"] > 1e-3 for p in ran)
        failed = sum(not p.get("ms") and p["status"] != "same" for p in line["plans"])
        rows.append((gain, (
            f"{line['problem']:42} default {first:8.4f} best {best['ms']:8.4f} "
            f"compile {against:8.4f} eager {line['eager_ms']:8.4f} "
            f"x{against / first:5.2f} x{gain:5.2f} "
            f"floor {floor:4.0%} of copy {copied:4.0%} "
            f"plans {len(ran)}/{line['space']} wrong {wrong} failed {failed} {best['changed']}")))
    return "\n".join(text for _, text in sorted(rows))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", default="auto")
    parser.add_argument("--precision", default="strict")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="", help="regular expression of problems")
    parser.add_argument("--plans", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--total-minutes", type=float, default=600.0)
    parser.add_argument("--suite", type=Path, default=ROOT / "problems")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(t) for t in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {line["problem"] for line in lines}
    todo = [] if args.table else [
        p for p in sorted(args.suite.glob("level*/*.py"))
        if re.search(args.only, str(p)) and f"{p.parent.name}/{p.stem}" not in done]
    end = time.monotonic() + args.total_minutes * 60
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(args.workers, mp_context=context, max_tasks_per_child=4)
    with args.out.open("a") as sink:
        futures = [pool.submit(guarded, str(p), args) for p in todo]
        try:
            for future in as_completed(futures, timeout=max(1.0, end - time.monotonic())):
                line = future.result()
                lines.append(line)
                sink.write(json.dumps(line) + "\n")
                sink.flush()
                print(table([line]), f"{line.get('seconds', 0)} s", flush=True)
        except TimeoutError:
            print("the time is over; run again to continue", flush=True)
            for process in list(pool._processes.values()):
                process.kill()
    pool.shutdown(wait=False, cancel_futures=True)
    print(table(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
