"""The trusted side: one problem, many candidates, a verdict for each.

The judge owns the problem, its inputs, the expected outputs, the clock policy and the verdict.
Candidates run in other processes; see contestant.py for all that they get.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from cuda_agent import targets
from cuda_agent.errors import (
    CandidateError,
    CompileFailure,
    ContestantFailure,
    CudaAgentError,
    ProblemError,
)
from cuda_agent.evaluation import (
    diagnostics,
    forms,
    guard,
    layout,
    profile,
    roofline,
    sandbox,
    stats,
    trial,
)
from cuda_agent.evaluation.baselines import Baselines, BaselineStore
from cuda_agent.evaluation.handover import Handover, State
from cuda_agent.evaluation.lock import device_lock
from cuda_agent.evaluation.precision import flags
from cuda_agent.evaluation.process import Pool
from cuda_agent.evaluation.reference import CheckedSet, Reference
from cuda_agent.evaluation.settings import Settings, default_threads
from cuda_agent.problems import Instance, probe
from cuda_agent.records import BASELINES, Candidate, Finding, Interval, Problem, Timing, Verdict

_ATTEMPTS = 2
_UNKNOWN = -1  # operations not counted yet
_ROOM_BYTES = 8 << 30  # of address space for a small problem's contestants, beside torch's own
_HELD_BYTES = 12 << 30  # of input sets at a time, so that judges side by side fit a device


class Judge:
    """Judges candidates for one problem on one device. Not for several threads at once.

    Args:
        cache_dir: builds and measured baselines are kept there, by content.
        baseline_cache: folder of measured baselines, if not under cache_dir.
        pool: contestant processes shared with other judges; the judge makes its own otherwise.
    Raises: TargetUnavailable; ProblemError where inputs do not fit the device's memory.
    """

    def __init__(
        self, problem: Problem, instance: Instance, settings: Settings, *,
        cache_dir: str | Path, baseline_cache: str | Path | None = None, pool: Pool | None = None,
    ) -> None:
        self.problem = problem
        self.instance = instance
        self.settings = settings.complete()
        self.target = targets.resolve(self.settings.target)
        self.cache = Path(cache_dir).resolve()
        self.facts = self.target.facts()
        self.threads = self.settings.threads or default_threads(self.facts.units)
        self.work = Path(tempfile.mkdtemp(prefix="cuda-agent-judge-"))
        self.reference = Reference(instance, self.settings.precision)
        self.handover = Handover(instance, self.settings, self.target, self.threads)
        self.device_name = f"{self.target.name}-{self.target.torch_device().index or 0}"
        self._own_pool = pool is None
        self.pool = pool or contestant_pool(instance, self.settings)
        self.baselines = Baselines(
            instance, self.reference, self.settings, self.target, self.handover, self.pool,
            self.work, self.cache, self.device_name,
        )
        folder = Path(baseline_cache) if baseline_cache else self.cache / "baselines"
        self._store = BaselineStore(folder, instance, self.settings, self.target)
        self._probed: list[Finding] | None = None
        self._sets: list[CheckedSet] = []
        self._operations: int | None = _UNKNOWN
        self._measured: tuple[dict[str, Timing], dict[str, Interval], dict[str, str]] | None = None
        self._environment = self.target.environment()
        self.warm: trial.Warm | None = None
        self.other: tuple[State, CheckedSet] | None = None

    # --- the problem ----------------------------------------------------------------------------

    def unsound(self) -> list[Finding]:
        """Why this problem cannot be judged; empty for a sound one. Found out once."""
        if self._probed is None:
            with device_lock(self.device_name), flags(self.settings.precision):
                self._probed = probe(self.instance)
                if not self._probed and (noise := self.reference.noise()):
                    self._probed = [Finding("P-noise", noise)]
        return self._probed

    def sets(self) -> list[CheckedSet]:
        """Random sets first, then the structured styles that suit the problem. Drawn once; a
        candidate that is not trusted gets new ones."""
        if not self._sets:
            self._sets = self.draw_sets()
        return self._sets

    def draw_sets(self) -> list[CheckedSet]:
        with device_lock(self.device_name):
            return self._drawn()

    def _drawn(self) -> list[CheckedSet]:
        first = self.reference.draw()
        assert first is not None
        # Pristine and expected here; copies in the arenas of candidate and baselines.
        each = first.nbytes + 3 * self.instance.input_bytes
        free = self.target.free_memory_bytes() // 2
        budget = self.settings.memory_bytes or min(free, max(_HELD_BYTES, each))
        if each > budget:
            raise ProblemError(
                f"{self.problem.origin}: one set of inputs with its copies and expected outputs "
                f"takes {each / 1e9:.1f} GB, but {budget / 1e9:.1f} GB may be used on "
                f"{self.facts.name}; use smaller shapes or free memory."
            )
        random_sets = max(1, min(int(self.settings.random_sets or 3), budget // each))
        made = [first]
        while len(made) < random_sets:
            more = self.reference.draw()
            assert more is not None
            made.append(more)
        for style in self.settings.styles or ():
            if (len(made) + 1) * each <= budget and (drawn := self.reference.draw(style)):
                made.append(drawn)
        return made

    def operations(self, made: CheckedSet) -> int | None:
        """Floating-point operations of the reference, see roofline.operations. Counted once."""
        if self._operations == _UNKNOWN:
            inputs = layout.rebuild(made.tree, made.tensors)
            self._operations = roofline.operations(self.instance, inputs)
        return self._operations

    # --- baselines ------------------------------------------------------------------------------

    def measure_baselines(self) -> dict[str, Timing | None]:
        """Times of the baselines in the settings, interleaved; None where one failed. Kept on
        disk; a verdict's ratios are measured anew, against eager at least."""
        timings, _, _ = self.baseline_measurements()
        wanted = self.settings.baselines or ()
        return {name: timings.get(name) if name in wanted else None for name in BASELINES}

    def baseline_measurements(
        self,
    ) -> tuple[dict[str, Timing], dict[str, Interval], dict[str, str]]:
        wanted = ["eager", *(n for n in self.settings.baselines or () if n != "eager")]
        if self._measured is None:
            held = self._store.load()
            if held is not None and all(n in held[0] or n in held[2] for n in wanted):
                self._measured = held
        if self._measured is None:
            sets = [s for s in self.sets() if s.style == "random"]
            entrants = self.baselines.entrants(wanted)
            with self.timing_mode():
                limit = max(1.0, self.settings.time_limit_s or 0.0)
                brief = replace(self.settings, time_limit_s=limit)
                race = profile.Race(self.target, self.reference, brief, entrants, sets)
                try:
                    if "eager" in entrants:
                        race.place_baselines()
                        race.run()
                finally:
                    for entrant in entrants.values():
                        entrant.drop()
                    race.close()
            if self.settings.tier == "screen":  # which goes on with eager alone
                self.baselines.release([name for name in entrants if name != "eager"])
            method = profile.method(race, trusted=True)
            timings = {n: stats.timing(race.times(n), method) for n in race.samples}
            self._measured = timings, race.ratios() if timings else {}, dict(self.baselines.missing)
            self._store.save(*self._measured)
        return self._measured

    @contextmanager
    def timing_mode(self) -> Iterator[None]:
        """The device for this judge alone, the policy's flags, and on a CPU one thread: the
        judge's own OpenMP threads must not be spinning while somebody else's time is taken."""
        threads = torch.get_num_threads()
        if self.target.torch_device().type == "cpu":
            torch.set_num_threads(1)
        try:
            with device_lock(self.device_name), flags(self.settings.precision):
                yield
        finally:
            torch.set_num_threads(threads)

    # --- verdicts -------------------------------------------------------------------------------

    def judge(self, candidate: Candidate) -> Verdict:
        """The verdict. Failures of our own are tried again once and then `harness_error`.

        Raises ProblemError and TargetUnavailable only: what the user has to mend.
        """
        start = time.perf_counter()
        if found := self.unsound():
            return self._verdict(candidate, "invalid_problem", start, findings=tuple(found))
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                return self._judged(candidate, start)
            except (CompileFailure, CandidateError) as error:
                return self._verdict(
                    candidate, "compile_error", start, feedback=str(error),
                    diagnostic=getattr(error, "diagnostic", None),
                )
            except ContestantFailure as error:
                return self._failed(candidate, error, start)
            except ProblemError:
                raise
            except (CudaAgentError, RuntimeError, OSError, MemoryError) as error:
                failure = error
                self.discard_warm()
        return self._verdict(
            candidate, "harness_error", start, feedback=f"{type(failure).__name__}: {failure}"
        )

    def _judged(self, candidate: Candidate, start: float) -> Verdict:
        form = forms.detect_form(candidate.files)
        seen = guard.review(candidate, self.problem, self.settings.track)
        external = tuple(seen.external)
        if seen.findings and not candidate.trusted:
            return self._verdict(
                candidate, "cheating", start, findings=tuple(seen.findings), external_ops=external,
                feedback=seen.findings[0].detail,
            )
        outcome = trial.Trial(self, candidate, form).run()
        outcome.external_ops = sorted({*external, *outcome.external_ops})
        return self._verdict(candidate, outcome.status, start, **outcome.fields())

    def _failed(self, candidate: Candidate, error: ContestantFailure, start: float) -> Verdict:
        text = str(error)
        findings: tuple[Finding, ...] = ()
        if rule := re.match(r"([A-F]\d+|form): ", text):
            findings = (Finding(rule[1], text[rule.end():]),)
        found = None
        if error.status == "compile_error":  # of an extension that the candidate builds itself
            found = diagnostics.first_cause(text, candidate.files)
        said = diagnostics.render(found) if found else diagnostics.shorten(text)
        return self._verdict(
            candidate, error.status, start, findings=findings, feedback=said, diagnostic=found
        )

    def _verdict(
        self, candidate: Candidate, status: str, start: float, **fields: object
    ) -> Verdict:
        settings = self.settings
        seconds = dict(fields.pop("seconds", {}) or {})  # type: ignore[call-overload]
        environment = {
            **self._environment, "threads": str(self.threads),
            "sandbox": sandbox.walls(self.pool.isolated),
        }
        for name, reason in self.baselines.missing.items():
            environment[f"missing_{name}"] = reason
        return Verdict(
            status=status,  # type: ignore[arg-type]
            problem=self.problem.name, problem_hash=self.problem.hash,
            candidate_hash=candidate.hash, target=self.target.name, tier=settings.tier,
            track=settings.track, precision=settings.precision, dtype=self.problem.dtype,
            seconds={**seconds, "total": time.perf_counter() - start},
            environment=environment,
            hashes={
                "problem": self.problem.hash, "candidate": candidate.hash, "settings": settings.key,
            },
            **fields,  # type: ignore[arg-type]
        )

    # --- life -----------------------------------------------------------------------------------

    def discard_warm(self) -> None:
        """Throw away the process that trusted candidates share."""
        if self.warm is not None:
            self.warm.entrant.client.kill()
            self.warm.entrant.forget()
            self.warm = None

    def close(self) -> None:
        self.discard_warm()
        self.baselines.close()
        if self._own_pool:
            self.pool.close()
        shutil.rmtree(self.work, ignore_errors=True)

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def shares_contestants(instance: Instance) -> bool:
    """Whether the contestants of other small problems will do for this one: their memory is limited
    alike."""
    return _wanted_bytes(instance) <= _ROOM_BYTES


def _wanted_bytes(instance: Instance) -> int:
    return 16 * (instance.input_bytes + instance.parameter_bytes)


def contestant_pool(instance: Instance, settings: Settings) -> Pool:
    """Contestants' processes for the judges of one problem; their server begins to start."""
    target = targets.resolve(settings.target)
    threads = settings.threads or default_threads(target.facts().units)
    limit = None
    if target.torch_device().type == "cpu":
        # Of address space, so that a huge allocation fails there instead of waking the system's
        # killer. CUDA reserves far more addresses than memory: no limit there.
        room = max(_ROOM_BYTES, _wanted_bytes(instance))
        limit = int(min(room, max(4 << 30, target.free_memory_bytes())) + (6 << 30))
    return Pool(target.name, threads, limit)
