"""Optimise every problem of our suite and write the table of README.md.

    python benchmarks/suite/run.py --target cuda --out benchmarks/suite/h200.jsonl [--levels 1,2]

One `cuda-agent optimize` process for each problem, a few side by side: compiling and searching
overlap, the device itself is locked while something is timed. A line is written as soon as its
problem ends, and a problem that has a line is not run again, so the run can be stopped at any
moment and continued with the same command. `--table` only renders what is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def optimize(problem: Path, args: argparse.Namespace) -> dict[str, Any]:
    """One line of the result file: the audit verdict, or the reason why there is none."""
    name = f"{problem.parent.name}/{problem.stem}"
    asked = [
        "--target", args.target, "--precision", args.precision, "--policy", args.policy,
        "--budget", str(args.budget), "--minutes", str(args.minutes),
        "--baselines", args.baselines, "--audit-seconds", str(args.audit_seconds),
    ]
    places = ["--out", str(args.solutions / name), "--runs", str(args.runs)]
    command = [
        sys.executable, "-m", "cuda_agent", "optimize", str(problem), "--json", *asked, *places,
    ]
    begun = time.monotonic()
    log = args.solutions / f"{name.replace('/', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    typed = ["cuda-agent", "optimize", f"problems/{name}.py", *asked]
    line: dict[str, Any] = {"problem": name, "command": " ".join(typed)}
    with log.open("w") as errors:
        try:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT,
                timeout=args.minutes * 60 + args.grace_s,
            )
            line |= {"exit": done.returncode} | json.loads(done.stdout or "{}")
        except subprocess.TimeoutExpired:
            line |= {"exit": None, "failure": "overran its time"}
        except json.JSONDecodeError:
            line |= {"exit": done.returncode, "failure": "no JSON on standard output"}
    if "verdict" not in line:
        line.setdefault("failure", log.read_text()[-300:])
    return line | {"seconds": round(time.monotonic() - begun, 1), "date": date.today().isoformat()}


def compact(line: dict[str, Any]) -> dict[str, Any]:
    """Raw samples rounded to 0.1 microseconds: the file stays small and loses nothing real."""
    verdict = line.get("verdict") or {}
    for timing in [verdict.get("timing"), *(verdict.get("baselines") or {}).values()]:
        if timing:
            timing["samples_ms"] = [round(s, 4) for s in timing["samples_ms"]]
    return line


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else float("nan")


def speed(verdict: dict[str, Any], baseline: str) -> float | None:
    found = (verdict.get("speedup") or {}).get(baseline)
    return found["value"] if found else None


def interval(verdict: dict[str, Any], baseline: str) -> str:
    found = (verdict.get("speedup") or {}).get(baseline)
    return f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]" if found else "–"


SUMMARY = (
    "level", "problems", "ok", "faster than compile default", "vs compile default", "vs eager",
)
COLUMNS = (
    "problem", "status", "ms", "of floor", "vs compile default", "vs reduce-overhead", "vs eager",
    "relative error", "evaluations",
)
LEGEND = (
    "Median speed-ups with 95% intervals; those by level are geometric means over correct ones. "
    "*Of floor*: the time that the bytes of inputs and outputs need at the measured bandwidth, "
    "divided by our time. Losers first. A problem without a result counts as one that failed."
)


def markdown(columns: tuple[str, ...], rows: list[list[str]]) -> list[str]:
    lines = [list(columns), ["---"] * len(columns), *rows]
    return ["| " + " | ".join(cell.replace("\n", " ") for cell in line) + " |" for line in lines]


def summary(level: str, verdicts: list[dict[str, Any]]) -> list[str]:
    ok = [v for v in verdicts if v.get("status") == "ok"]
    compiled = [s for v in ok if (s := speed(v, "compile_default"))]
    eager = [s for v in ok if (s := speed(v, "eager"))]
    faster = [v for v in ok if (i := v["speedup"].get("compile_default")) and i["low"] > 1]
    share = f"{len(faster)} ({len(faster) / len(verdicts):.0%})"
    means = [f"{geometric_mean(compiled):.2f}", f"{geometric_mean(eager):.2f}"]
    return [level, str(len(verdicts)), str(len(ok)), share, *means]


def caveats(verdict: dict[str, Any]) -> str:
    """What sets a figure apart from a strict audit's, the only one that may stand beside others."""
    usual = {"tier": "audit", "precision": "strict"}
    other = [v for k, usually in usual.items() if (v := verdict.get(k, usually)) != usually]
    return f" ({', '.join(other)})" if other else ""


def row(line: dict[str, Any]) -> list[str]:
    v = line.get("verdict") or {}
    timing, floor, error = v.get("timing"), v.get("floor_ms"), v.get("error")
    return [
        line["problem"],
        v.get("status", line.get("failure", "failed")[:60]) + caveats(v),
        f"{timing['median_ms']:.4g}" if timing else "–",
        f"{floor / timing['median_ms']:.0%}" if timing and floor else "–",
        *(interval(v, b) for b in ("compile_default", "compile_reduce_overhead", "eager")),
        f"{error['relative']:.1e}" if error else "–",
        str(line.get("evaluations", "–")),
    ]


def table(lines: list[dict[str, Any]], problems: Sequence[str] = ()) -> str:
    """Markdown: a summary by level, then a row for each problem of `problems` ("level1/gelu"), the
    suite as it is: a line that was dropped shows, and counts."""
    known = {line["problem"] for line in lines}
    lines = [*lines, *({"problem": p, "failure": "not run"} for p in problems if p not in known)]
    by_level: dict[str, list[dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: line["problem"]):
        by_level.setdefault(line["problem"].split("/")[0], []).append(line.get("verdict") or {})
    by_level["all"] = [v for verdicts in list(by_level.values()) for v in verdicts]
    ranked = sorted(lines, key=lambda x: speed(x.get("verdict") or {}, "compile_default") or 0.0)
    parts = [
        *markdown(SUMMARY, [summary(level, verdicts) for level, verdicts in by_level.items()]),
        "", LEGEND, "",
        *markdown(COLUMNS, [row(line) for line in ranked]),
    ]
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="auto")
    parser.add_argument("--precision", default="strict")
    parser.add_argument("--policy", default="search")
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--only", default="", help="regular expression of problems to run")
    parser.add_argument("--baselines", default="eager,compile_default,compile_reduce_overhead")
    parser.add_argument("--budget", type=int, default=12)
    parser.add_argument("--audit-seconds", type=float, default=6.0)
    parser.add_argument("--minutes", type=float, default=1.0, help="search time for one problem")
    parser.add_argument("--grace-s", type=float, default=240.0, help="for capture and audit")
    parser.add_argument("--total-minutes", type=float, default=1e9, help="start nothing after this")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--suite", type=Path, default=ROOT / "problems")
    parser.add_argument("--out", type=Path, required=True, help="JSONL, continued when it exists")
    parser.add_argument("--solutions", type=Path, default=ROOT / "solutions")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--table", action="store_true", help="only print the table of --out")
    args = parser.parse_args()

    folders = [args.suite / f"level{n}" for n in args.levels.split(",")]
    suite = [p for f in folders for p in sorted(f.glob("*.py"))]
    lines = [json.loads(t) for t in args.out.read_text().splitlines()] if args.out.exists() else []
    if not args.table:
        done = {line["problem"] for line in lines if "verdict" in line}
        lines = [line for line in lines if "verdict" in line]
        todo = [p for p in suite if f"{p.parent.name}/{p.stem}" not in done]
        todo = [p for p in todo if re.search(args.only, str(p))]
        begun = time.monotonic()
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text("".join(json.dumps(line) + "\n" for line in lines))

        def one(problem: Path) -> dict[str, Any] | None:
            late = time.monotonic() - begun > args.total_minutes * 60
            return None if late else compact(optimize(problem, args))

        with ThreadPoolExecutor(args.parallel) as pool, args.out.open("a") as sink:
            for ended, future in enumerate(as_completed(pool.submit(one, p) for p in todo), 1):
                if (line := future.result()) is None:
                    continue
                lines.append(line)
                sink.write(json.dumps(line) + "\n")
                sink.flush()
                os.fsync(sink.fileno())
                left = (time.monotonic() - begun) / ended * (len(todo) - ended)
                cells = [f"{ended}/{len(todo)}", *row(line), f"{line['seconds']} s"]
                print("  ".join(cells), f"(about {left / 60:.0f} min left)", flush=True)
    print(table(lines, [f"{p.parent.name}/{p.stem}" for p in suite]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
