"""What may be asked of a judge beside a verdict: does it compile, what do tools see of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuda_agent.errors import CandidateError, CompileFailure
from cuda_agent.evaluation import forms, guard, resources
from cuda_agent.evaluation.compile import compile_candidate
from cuda_agent.evaluation.counters import count
from cuda_agent.evaluation.sanitize import sanitize
from cuda_agent.records import Candidate, Counters, Finding, KernelUse, Record, Sanitizer

if TYPE_CHECKING:
    from cuda_agent.evaluation.judge import Judge


@dataclass(frozen=True)
class Compiled(Record):
    """`error` is the first cause, "" for a candidate that compiles. `findings`: rules that would
    make it `cheating` as it stands."""

    error: str
    seconds: float = 0.0
    form: str = ""
    kernels: tuple[KernelUse, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Examined(Record):
    counters: Counters | None = None
    sanitizer: Sanitizer | None = None


def compile_only(judge: Judge, candidate: Candidate) -> Compiled:
    """Builds and reads the candidate; nothing of it runs but its compiler, behind walls."""
    try:
        form = forms.detect_form(candidate.files)
        seen = guard.review(candidate, judge.problem, judge.settings.track)
        build = compile_candidate(
            candidate, form, judge.target, judge.cache, judge.pool,
            judge.settings.compile_deadline_s,
        )
    except (CompileFailure, CandidateError) as error:
        return Compiled(str(error) or "does not compile")
    sources = forms.kernel_sources(candidate.files)
    used = resources.of_kernels(build, judge.facts, sources)
    found = () if candidate.trusted else tuple(seen.findings)
    return Compiled("", build.seconds, form, used, found)


def examine(judge: Judge, candidate: Candidate, counters: bool, memory: bool) -> Examined:
    """Runs of their own, apart from what is timed: hardware counters, memory checkers."""
    return Examined(
        count(judge, candidate) if counters else None,
        sanitize(judge, candidate) if memory else None,
    )
