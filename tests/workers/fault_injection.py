"""Evaluations while workers, contestants, fork servers and the store's own process are killed at
random and the disk fills once. Every candidate must end with one verdict, the one that it gets when
nothing disturbs.

    python tests/workers/fault_injection.py --evaluations 2000 --out faults.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.progress import Progress, TimeRemainingColumn

from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.evaluation import Settings
from cuda_agent.records import Candidate, Problem, Run, Verdict
from cuda_agent.store import Store
from cuda_agent.workers import LocalPool
from cuda_agent.workers.batch import judge_all

SOURCE = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)
def get_inputs():
    return [torch.randn(32, 64)]
"""
PROBLEM = Problem("softmax", SOURCE, "softmax.py")
SETTINGS = Settings(
    target="cpu", baselines=("eager",), threads=1, deadline_s=1.5, time_limit_s=0.05, min_rounds=3
)
RUN = "faults"
# What forward does, and the status that must come of it.
KINDS = {
    "torch.softmax(x, 1)": "ok",
    "(x - x.amax(-1, True)).exp().softmax(-1) * 0 + torch.softmax(x, -1)": "ok",
    "x.exp() / x.exp().sum(-1, keepdim=True)": "ok",
    "x.exp()": "wrong",
    "torch.zeros_like(x)": "wrong",
    "torch.softmax(x.add_(1), -1)": "wrong",
    "torch.softmax(x, 7)": "runtime_error",
    "__import__('ctypes').string_at(8)": "runtime_error",
    "torch.empty(1 << 50)": "out_of_memory",
    "torch.softmax(x, -1": "compile_error",
    "__import__('os')._exit(0)": "cheating",
    "(__import__('time').sleep(9), x)[1]": "timeout",
}
# How many candidates of a kind, beside one of each other kind: a timeout costs its deadline.
_WEIGHT = {"timeout": 1, "ok": 6}


def candidates(count: int) -> list[Candidate]:
    """Distinct ones, all kinds mixed, the same for every call."""
    kinds = [k for k, status in KINDS.items() for _ in range(_WEIGHT.get(status, 3))]
    mixed = [kinds[i % len(kinds)] for i in range(count)]
    random.Random(0).shuffle(mixed)
    return [_candidate(kind, i) for i, kind in enumerate(mixed)]


def _candidate(expression: str, number: int) -> Candidate:
    text = SOURCE.replace("Model", "ModelNew").replace("torch.softmax(x, -1)", expression)
    return Candidate(PROBLEM.hash, {"model_new.py": f"{text}\n# {number}\n"})


def outcome(verdict: Verdict) -> tuple[str, tuple[str, ...]]:
    """What must not depend on anything that happens around an evaluation."""
    return verdict.status, tuple(sorted(f.id for f in verdict.findings))


# --- the process that is disturbed ----------------------------------------------------------------


def drive(folder: Path, count: int, workers: int) -> int:
    """Judge all candidates into the store under `folder`. 3 when the disk is full."""
    store = Store(folder / "runs")
    with LocalPool(PROBLEM, SETTINGS, cache_dir=folder / "cache", workers=workers) as pool:
        try:
            store.put_run(Run(RUN, "faults", PROBLEM, asdict(SETTINGS), created=""))
            judge_all(candidates(count), pool, store, RUN, SETTINGS.key)
        except OutputError:
            os._exit(3)
        except SettingsError:  # the process before this one is not gone yet
            return 4
    return 0


# --- what disturbs it -----------------------------------------------------------------------------


@dataclass
class Chaos:
    """Kills what runs below `process`; fills the disk at `folder` once."""

    folder: Path
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def disturb(self, process: subprocess.Popen[bytes]) -> None:
        kinds = _below(process.pid)
        kind = self.chance.choices(
            ["contestant", "fork server", "worker", "store"], [60, 12, 20, 4]
        )[0]
        victims = [process.pid] if kind == "store" else kinds.get(kind, [])
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.chance.choice(victims), signal.SIGKILL)
                self.done[kind] += 1

    def fill_disk(self) -> None:
        """Until a write fails; freed by the next start."""
        self.done["full disk"] += 1
        with contextlib.suppress(OSError), open(self.folder / "filler", "wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()


def _below(root: int) -> dict[str, list[int]]:
    """Processes below `root` by kind."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            stat = (entry / "stat").read_text()
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found: dict[str, list[int]] = {"worker": [], "fork server": [], "contestant": []}
    depth = {root: 0}
    for _ in range(6):
        for pid, parent in parents.items():
            if parent in depth and pid not in depth:
                depth[pid] = depth[parent] + 1
    for pid in depth:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"multiprocessing.spawn" in text:
                found["worker"].append(pid)
            elif b"evaluation.contestant" in text:
                server = depth[pid] == 2
                found["fork server" if server else "contestant"].append(pid)
    return found


# --- the whole ------------------------------------------------------------------------------------


def run(
    folder: Path, count: int, workers: int, pause_s: float, seed: int, may_fill: bool
) -> dict[str, object]:
    """Disturb until all is judged; what was done and found."""
    start = time.monotonic()
    chance = random.Random(seed)
    chaos = Chaos(folder, chance)
    store = Store(folder / "runs")
    starts = 0
    command = [
        sys.executable, __file__, "--drive", str(folder), "--evaluations", str(count),
        "--workers", str(workers),
    ]
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    with Progress(*Progress.get_default_columns()[:-1], TimeRemainingColumn()) as progress:
        task = progress.add_task("judged while disturbed", total=count)
        while True:
            (folder / "filler").unlink(missing_ok=True)
            shutil.rmtree(folder / "tmp", ignore_errors=True)
            (folder / "tmp").mkdir()
            process = subprocess.Popen(command, env=environment)
            starts += 1
            while process.poll() is None:
                time.sleep(chance.uniform(0.5, 1.5) * pause_s)
                held = len(store.verdicts(RUN))
                progress.update(task, completed=held)
                if may_fill and not chaos.done["full disk"] and held > 0.4 * count:
                    chaos.fill_disk()
                elif process.poll() is None:
                    chaos.disturb(process)
            if process.returncode == 0:
                break
    verdicts = store.verdicts(RUN)
    return {
        "evaluations": count, "starts": starts, "seconds": round(time.monotonic() - start),
        "killed": dict(chaos.done), **compare(count, verdicts),
    }


def compare(count: int, verdicts: list[Verdict]) -> dict[str, object]:
    """Lost, duplicated and different verdicts, against an undisturbed one of each kind."""
    made = {c.hash: c for c in candidates(count)}
    seen = Counter(v.candidate_hash for v in verdicts)
    expected = _undisturbed()
    differ = []
    for verdict in verdicts:
        if (candidate := made.get(verdict.candidate_hash)) is not None:
            kind = _kind(candidate)
            if outcome(verdict) != expected[kind]:
                differ.append(f"{kind}: {outcome(verdict)}, undisturbed {expected[kind]}: "
                              f"{verdict.feedback[:200]}")
    return {
        "lost": sum(h not in seen for h in made),
        "duplicated": sum(n > 1 for n in seen.values()),
        "foreign": sum(h not in made for h in seen),
        "different": differ,
        "statuses": dict(Counter(v.status for v in verdicts)),
    }


def _kind(candidate: Candidate) -> str:
    text = candidate.files["model_new.py"]
    return next(k for k in sorted(KINDS, key=len, reverse=True) if f"return {k}\n" in text)


def _undisturbed() -> dict[str, tuple[str, tuple[str, ...]]]:
    with tempfile.TemporaryDirectory() as cache, LocalPool(
        PROBLEM, SETTINGS, cache_dir=cache, workers=1
    ) as pool:
        return {kind: outcome(pool.evaluate(_candidate(kind, -1))) for kind in KINDS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluations", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between disturbances")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where the result is written as JSON")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        return drive(given.drive, given.evaluations, given.workers)
    with small_disk() as (folder, may_fill):
        found = run(
            folder, given.evaluations, given.workers, given.pause, given.seed, may_fill
        )
    text = json.dumps(found, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 0 if passed(found) else 1


def passed(found: dict[str, object]) -> bool:
    return not (found["lost"] or found["duplicated"] or found["foreign"] or found["different"])


@contextlib.contextmanager
def small_disk(megabytes: int = 600) -> Iterator[tuple[Path, bool]]:
    """A folder, and whether it is a file system of its own, which may be filled without harm to
    others; making one needs root."""
    folder = Path(tempfile.mkdtemp(prefix="cuda-agent-faults-"))
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], capture_output=True).returncode == 0
    try:
        yield folder, mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
