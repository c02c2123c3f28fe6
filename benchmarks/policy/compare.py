"""Policies against one another at equal numbers of evaluations.

    python benchmarks/policy/compare.py --source recorded --table TABLE --problems TABLE#held-out \\
        --model DIR [--policies builtin untrained random rules search] [--seeds 3] [--out FILE]

Each policy plays one episode for each problem and seed. After k distinct candidates its best one,
by what was measured then, is looked at again at the audit tier: from a table that is the recorded
value without noise, live it is measured anew. So luck in measuring is no merit.

geomean     of the speed-up over torch.compile's default. Where nothing correct was found the user
            keeps the module as it is: that counts with eager's speed.
of oracle   the same over that of the best plan known: the table's best, else the best that any
            policy found here.
pass        share of problems with a correct candidate.
faster      share whose 95% intervals over eager and torch.compile both lie above 1.

The figure after ± is the standard deviation over seeds. Results carry the source's label; those of
"simulated" say nothing of any device.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from cuda_agent.agents.optimize import cache_dir, is_faster
from cuda_agent.cli import sentence
from cuda_agent.errors import SettingsError, UserError
from cuda_agent.policies import Conversation, Policy, Step, ToolCall, cost, get
from cuda_agent.policies.builtin import Builtin
from cuda_agent.policies.builtin.policy import BuiltinPolicy
from cuda_agent.records import Verdict
from cuda_agent.training.config import SOURCES, Environment
from cuda_agent.training.recorded import RecordedSource
from cuda_agent.training.sources import Source, load_problems, open_source
from cuda_agent.training.tasks import TrainingProblem

POLICIES = ("builtin", "untrained", "random", "rules", "search")
_TURNS = 3  # for each evaluation: plans may lead to candidates that are known


@dataclass
class Played:
    """An episode. `found` has each distinct candidate's first step, in order."""

    problem: TrainingProblem
    conversation: Conversation
    found: list[Step] = field(default_factory=list)
    done: bool = False

    def add(self, call: ToolCall, verdict: Verdict) -> None:
        step = Step(call, verdict.status, verdict, verdict.feedback)
        self.conversation += step
        known = {s.verdict.candidate_hash for s in self.found if s.verdict is not None}
        if not verdict.candidate_hash or verdict.candidate_hash not in known:
            self.found.append(step)
        budget = self.conversation.budget
        full = len(self.conversation.steps) >= _TURNS * budget
        self.done = full or len(self.found) >= budget

    def best(self, k: int) -> Step | None:
        ran = [step for step in self.found[:k] if step.cost is not None]
        return min(ran, key=lambda step: step.cost or math.inf, default=None)


@dataclass(frozen=True)
class Score:
    """Of one policy, seed and k over all problems."""

    geomean: float
    of_oracle: float
    passed: float
    faster: float


def play(
    policy: Policy, problems: Sequence[TrainingProblem], source: Source, budget: int
) -> list[Played]:
    """One episode for each problem, all in step."""
    played = [
        Played(p, Conversation(p.space, p.space.default(), budget, task=p.task)) for p in problems
    ]
    while active := [one for one in played if not one.done]:
        asked = []
        for one, call in zip(active, _act(policy, [one.conversation for one in active])):
            if call.name == "submit":
                one.done = True
            else:
                asked.append((one, call, source.submit(one.problem, call.arguments["plan"])))
        for one, call, future in asked:
            one.add(call, future.result())
    return played


def _act(policy: Policy, conversations: Sequence[Conversation]) -> list[ToolCall]:
    if isinstance(policy, BuiltinPolicy):
        return policy.act_many(conversations)
    return [policy.act(conversation) for conversation in conversations]


def again(source: Source, problem: TrainingProblem, step: Step | None) -> Verdict | None:
    """The audit of a step's plan; None where it fails there."""
    if step is None or step.plan is None:
        return None
    verdict = source.submit(problem, step.plan, "audit").result()
    return verdict if verdict.ok else None


def speedup(verdict: Verdict | None, name: str = "compile_default") -> float | None:
    interval = None if verdict is None else verdict.speedup.get(name)
    return None if interval is None else interval.value


class Comparison:
    """Plays and scores. `audited[policy][seed][k]` has a verdict or None for each problem."""

    def __init__(
        self, source: Source, problems: Sequence[TrainingProblem], ks: Sequence[int]
    ) -> None:
        self.source, self.problems, self.ks = source, problems, sorted(ks)
        self.audited: dict[str, list[dict[int, list[Verdict | None]]]] = {}
        self.episodes = 0
        self.seconds = 0.0

    def run(self, name: str, policy: Policy) -> None:
        start = time.perf_counter()
        played = play(policy, self.problems, self.source, self.ks[-1])
        self.seconds += time.perf_counter() - start
        self.episodes += len(played)
        self.audited.setdefault(name, []).append({
            k: [again(self.source, one.problem, one.best(k)) for one in played] for k in self.ks
        })

    def oracle(self) -> list[Verdict | None]:
        """The best known verdict of each problem."""
        if isinstance(self.source, RecordedSource):
            known = [self.source.best(problem) for problem in self.problems]
            return [None if best is None else best[1] for best in known]
        columns = [column for runs in self.audited.values() for run in runs
                   for column in run.values()]
        return [
            min((v for v in seen if v is not None), key=lambda v: cost(v) or math.inf, default=None)
            for seen in zip(*columns)
        ]

    def scores(self) -> tuple[dict[str, dict[int, list[Score]]], float, int]:
        """(scores by policy and k, one for each seed; the oracle's geometric mean; problems that
        count: those with a known speed-up over torch.compile)."""
        oracle = self.oracle()
        counted = [i for i, verdict in enumerate(oracle) if speedup(verdict) is not None]
        if not counted:
            raise SettingsError("no problem has a known speed-up over torch.compile.")
        best = _geomean([speedup(oracle[i]) or 1.0 for i in counted])
        found = {
            name: {
                k: [_score([run[k][i] for i in counted], [oracle[i] for i in counted], best)
                    for run in runs]
                for k in self.ks
            }
            for name, runs in self.audited.items()
        }
        return found, best, len(counted)


def _score(
    verdicts: Sequence[Verdict | None], oracle: Sequence[Verdict | None], best: float
) -> Score:
    values = []
    for verdict, known in zip(verdicts, oracle):
        kept = (speedup(known) or 1.0) / (speedup(known, "eager") or 1.0)  # the module as it is
        values.append(speedup(verdict) or kept)
    ran = [verdict for verdict in verdicts if verdict is not None]
    mean = _geomean(values)
    return Score(
        mean, mean / best, len(ran) / len(verdicts), sum(map(is_faster, ran)) / len(verdicts)
    )


def _geomean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def make_policy(name: str, seed: int, model: str | None, share: float) -> Policy:
    """Raises SettingsError for no such policy or no model."""
    if name == "untrained":
        config = Builtin.load(model).model.config if model else None
        return BuiltinPolicy(seed, Builtin.untrained(seed, config, critic="none"), share)
    if name == "builtin":
        return BuiltinPolicy(seed, model, share)
    return get(name, seed)


def show(comparison: Comparison, label: str, console: Console) -> None:
    scores, best, count = comparison.scores()
    grid = Grid(
        "policy", "k", "geomean over compile", "of oracle", "pass", "faster",
        title=f"{count} problems, {label}; oracle {best:.3f}", title_justify="left",
    )
    for name, by_k in scores.items():
        for k, runs in by_k.items():
            grid.add_row(
                name, str(k), *(
                    _spread([getattr(run, part) for run in runs], digits)
                    for part, digits in
                    (("geomean", 3), ("of_oracle", 3), ("passed", 2), ("faster", 2))
                ),
            )
    console.print(grid)


def _spread(values: Sequence[float], digits: int) -> str:
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text


def document(comparison: Comparison, args: argparse.Namespace, about: Any) -> dict[str, Any]:
    scores, best, count = comparison.scores()
    per_problem = {
        name: [{k: [speedup(v) for v in column] for k, column in run.items()} for run in runs]
        for name, runs in comparison.audited.items()
    }
    return {
        "command": shlex.join(["python", "benchmarks/policy/compare.py", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"), "source": args.source, "table": about,
        "problems": [p.problem.name for p in comparison.problems], "counted": count,
        "oracle_geomean": best, "oracle": [speedup(v) for v in comparison.oracle()],
        "scores": {
            name: {k: [vars(run) for run in runs] for k, runs in by_k.items()}
            for name, by_k in scores.items()
        },
        "speedups_over_compile": per_problem,
    }


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--source", choices=SOURCES, default="recorded")
    made.add_argument("--table", default="", help="of recorded verdicts")
    made.add_argument("--target", default="null", help="of a simulated or live source")
    made.add_argument("--problems", nargs="+", default=["ours"], metavar="PATH")
    made.add_argument("--space-limit", type=int, default=0)
    made.add_argument("--limit", type=int, default=0, help="only the first so many problems")
    made.add_argument("--workers", type=int, default=1, help="of a live source")
    made.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME")
    made.add_argument("--model", help="folder of the builtin model; default: the package's")
    made.add_argument("--share", type=float, default=0.5, help="of the budget for the model")
    made.add_argument("--k", nargs="+", type=int, default=[1, 4, 16])
    made.add_argument("--seeds", type=int, default=3)
    made.add_argument("--out", type=Path, help="a JSON file")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    console = Console(highlight=False)
    environment = Environment(
        source=args.source, target=args.target, table=args.table, space_limit=args.space_limit,
        workers=args.workers,
    )
    try:
        problems = load_problems(environment, args.problems, cache=cache_dir(), limit=args.limit)
        comparison: Comparison | None = None
        about: Any = None
        for seed in range(args.seeds):
            with open_source(environment, cache=cache_dir(), seed=seed) as source:
                comparison = comparison or Comparison(source, problems, args.k)
                comparison.source = source
                about = source.table.about if isinstance(source, RecordedSource) else None
                for name in args.policies:
                    comparison.run(name, make_policy(name, seed, args.model, args.share))
        assert comparison is not None
        show(comparison, args.source, console)
        rate = 60 * comparison.episodes / comparison.seconds
        console.print(f"{comparison.episodes} episodes, {rate:.0f} a minute")
        if args.out:
            args.out.write_text(json.dumps(document(comparison, args, about), indent=1) + "\n")
    except UserError as error:
        print(f"compare: {sentence(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
