"""`cuda_agent.optimize(module, example_inputs)`: from notebooks, on modules that live in memory."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cuda_agent import targets
from cuda_agent.agents.binding import bind
from cuda_agent.agents.optimize import Options, Outcome, optimize_instance, refuse_unsound
from cuda_agent.agents.replace import Applied, Replacement
from cuda_agent.agents.solution import solution_files, write_solution
from cuda_agent.benchmark.report import from_store, headline, render
from cuda_agent.errors import CandidateError, SettingsError
from cuda_agent.problems import Instance, live_instance
from cuda_agent.records import Candidate, Precision, Problem, Run, Track, Verdict
from cuda_agent.store import Store, new_run_id

__all__ = ["Applied", "Solution", "optimize"]


@dataclass(frozen=True)
class Solution:
    """The best correct candidate for a module.

    Attributes:
        module: drop-in for the optimized module, sharing its parameters and buffers. It runs under
            torch.no_grad(), in eval mode, with the shapes and dtypes of the example inputs.
        verdict: error, times and speed-ups with intervals.
        faster: whether it beats eager and torch.compile; False means that staying with the
            original costs nothing.
        report: the page, as HTML.
    """

    module: nn.Module
    verdict: Verdict
    faster: bool
    candidate: Candidate
    problem: Problem
    report: str
    _instance: Instance

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes model_new.py, kernels/, the runtime, verdict.json and report.html.

        Raises OutputError; what stood there before is kept then.
        """
        out = Path(folder)
        write_solution(out, solution_files(self.problem, self.candidate), self.verdict, self.report)
        return out

    def apply(
        self,
        model: nn.Module,
        example_inputs: Sequence[Any] | None = None,
        *,
        tolerance: float | None = None,
    ) -> Applied:
        """Replaces every submodule of `model` that is like the optimized module: same class and
        settings, same parameter shapes and dtypes, called with the same input shapes.

        Then the whole model's output is compared with what it was. With `example_inputs` (the
        positional arguments of model.forward) that happens now, else in the model's first call.

        Args:
            tolerance: relative error ||new - old|| / ||old - mean(old)|| allowed; default by dtype
                and precision.
        Returns: which submodules were replaced and which were not, with the reason.
        Raises: CandidateError, with the numbers, when the output differs; the model is then as it
            was. SettingsError when the model is in training mode or holds no such submodule.
        """
        replacement = Replacement(model, self.candidate, self._instance, self.verdict, tolerance)
        return replacement.apply(example_inputs)

    def __repr__(self) -> str:
        return f"Solution({self.problem.name}: {headline(self.verdict)})"


def optimize(
    module: nn.Module,
    example_inputs: Sequence[Any],
    *,
    target: str = "auto",
    policy: str = "search",
    budget: int = 16,
    minutes: float | None = None,
    precision: Precision = "strict",
    track: Track = "library",
    seed: int = 0,
    runs: str | os.PathLike[str] | None = None,
) -> Solution:
    """Searches for a faster replacement of `module`, on the device where it lies.

    Args:
        module: its parameters are not changed; it is judged in eval mode.
        example_inputs: positional arguments of one call. Fresh inputs are drawn like them.
        target: "auto" takes the module's device; another one is refused, never moved to.
        budget: evaluations at most. minutes: time limit of search and audits.
        runs: folder where every evaluation is kept; default: none are kept.
    Returns: the best correct solution, which may not be faster (see Solution.faster). Ctrl-C ends
        the search with the best so far.
    Raises: ProblemError for a module that cannot be judged, CaptureError for one that
        torch.export does not take, CandidateError where no candidate was correct.
    """
    with _eval_mode(module), _store(runs) as store:
        problem, instance = live_instance(module, example_inputs)
        chosen = _target(target, instance)
        options = Options(chosen.name, policy, budget, minutes, precision, track, seed)
        refuse_unsound(instance)
        created = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        run = Run(
            new_run_id(problem.name), "optimize", problem, options.to_json(), created,
            chosen.environment(),
        )
        with store.hold(run.id):
            store.put_run(run)
            outcome = optimize_instance(instance, chosen.facts(), options, store, run.id)
            return _solution(instance, outcome, store, run)


def _solution(instance: Instance, outcome: Outcome, store: Store, run: Run) -> Solution:
    candidate, verdict = outcome.candidate, outcome.verdict
    if candidate is None or verdict is None:
        if outcome.interrupted:
            raise KeyboardInterrupt
        said = "nothing was measured" if verdict is None else verdict.feedback or verdict.status
        raise CandidateError(f"no correct solution for {instance.problem.name}: {said}")
    store.put_note(
        run.id, "result",
        {"candidate": candidate.hash, "verdict": verdict.hash, "faster": outcome.faster},
    )
    page = render(from_store(store, run.id))
    module = bind(candidate, instance.model, instance)
    return Solution(module, verdict, outcome.faster, candidate, instance.problem, page, instance)


def _target(name: str, instance: Instance) -> targets.Target:
    kind = instance.device.type
    if name not in ("auto", kind):
        raise SettingsError(
            f"the module lies on {kind}, and target {name!r} was asked for; move the module and "
            "its inputs first."
        )
    return targets.resolve(kind)


@contextlib.contextmanager
def _eval_mode(module: nn.Module) -> Iterator[None]:
    """Every submodule's training flag comes back."""
    if not isinstance(module, nn.Module):  # live_instance says it in a sentence
        yield
        return
    flags = {m: m.training for m in module.modules()}
    try:
        with torch.no_grad():
            yield
    finally:
        for m, training in flags.items():
            m.training = training


@contextlib.contextmanager
def _store(runs: str | os.PathLike[str] | None) -> Iterator[Store]:
    if runs is not None:
        yield Store(runs)
        return
    with tempfile.TemporaryDirectory(prefix="cuda-agent-run-") as folder:
        yield Store(folder)
