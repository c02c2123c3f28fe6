"""One candidate before the judge: compile, load, verify, profile, in this order."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuda_agent.errors import ContestantFailure
from cuda_agent.evaluation import (
    activity,
    clocks,
    feedback,
    forms,
    guard,
    idle,
    layout,
    profile,
    resources,
    roofline,
    stats,
    verify,
    weights,
)
from cuda_agent.evaluation import compile as building
from cuda_agent.evaluation.entrant import Entrant
from cuda_agent.evaluation.guard import plausibility
from cuda_agent.evaluation.handover import Staged
from cuda_agent.evaluation.lock import device_lock
from cuda_agent.evaluation.profile import WrongOutput
from cuda_agent.evaluation.reference import CheckedSet
from cuda_agent.records import (
    BASELINES,
    Activity,
    Candidate,
    ErrorReport,
    Finding,
    Interval,
    KernelUse,
    Roofline,
    Timing,
)
from cuda_agent.targets.base import Build

if TYPE_CHECKING:
    from cuda_agent.evaluation.judge import Judge

_MAX_USES = 500  # of one process by trusted candidates: shared libraries are never unmapped
SELF_BUILDING = ("single", "work_folder")


@dataclass
class Warm:
    """A process that trusted candidates use in turn, with the input sets that it already maps."""

    entrant: Entrant
    sets: Sequence[CheckedSet]
    uses: int = 0


@dataclass
class Outcome:
    """What goes into the verdict."""

    status: str = "ok"
    findings: list[Finding] = field(default_factory=list)
    error: ErrorReport | None = None
    speedup: dict[str, Interval | None] = field(default_factory=dict)
    timing: Timing | None = None
    baselines: dict[str, Timing | None] = field(default_factory=dict)
    floor_ms: float | None = None
    energy_mj: float | None = None
    activity: Activity | None = None
    kernels: tuple[KernelUse, ...] = ()
    roofline: Roofline | None = None
    external_ops: list[str] = field(default_factory=list)
    feedback: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Keyword arguments of Verdict; times only where the candidate is right."""
        given: dict[str, Any] = {
            "findings": tuple(self.findings), "error": self.error, "floor_ms": self.floor_ms,
            "external_ops": tuple(self.external_ops), "feedback": self.feedback,
            "seconds": self.seconds, "activity": self.activity, "kernels": self.kernels,
        }
        if self.status == "ok":
            given |= {
                "speedup": self.speedup, "timing": self.timing, "baselines": self.baselines,
                "energy_mj": self.energy_mj, "roofline": self.roofline,
            }
        return given


class Trial:
    def __init__(self, judge: Judge, candidate: Candidate, form: forms.Form) -> None:
        self.judge = judge
        self.candidate = candidate
        self.form = form
        self.reusing = candidate.trusted and judge.settings.tier == "screen"
        self.outcome = Outcome()
        self.checked: list[CheckedSet] = []
        self._folder = Path(tempfile.mkdtemp(prefix="candidate-", dir=judge.work))

    def run(self) -> Outcome:
        """Raises CompileFailure, CandidateError, ContestantFailure, HarnessError."""
        try:
            with self._phase("compile"):
                build, staged = self._compile()
            self.outcome.kernels = resources.of_kernels(
                build, self.judge.facts, self.candidate.files
            )
            # Nobody else's time may be taken while anything of this trial uses the device.
            with self._device():
                self.checked = self.judge.sets() if self.reusing else self.judge.draw_sets()
                entrant = self._entrant(staged)
            try:
                self._try(entrant, staged, build)
            finally:
                if self.reusing:
                    self._settle(entrant)
                else:
                    entrant.client.kill()
                    entrant.forget()
            self.outcome.feedback = feedback.complete(
                self.outcome.feedback, self.outcome.kernels,
                self.outcome.roofline if self.outcome.status == "ok" else None,
            )
            return self.outcome
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            if not self.reusing:
                self.judge.pool.refill()

    @contextmanager
    def apart(self) -> Iterator[Entrant]:
        """The candidate loaded in a process of its own, with new inputs, for a look at it that is
        no part of the verdict. Raises as `run`."""
        self.reusing = False
        judge = self.judge
        try:
            _, staged = self._compile()
            with self._device():
                self.checked = judge.draw_sets()
                entrant = self._entrant(staged)
            try:
                seconds = max(entrant.deadline_s, judge.settings.compile_deadline_s)
                judge.handover.load(entrant.client, staged, judge.reference.state(), seconds)
                yield entrant
            finally:
                entrant.client.kill()
                entrant.forget()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.outcome.seconds[name] = time.perf_counter() - start

    def _device(self) -> contextlib.AbstractContextManager[None]:
        return device_lock(self.judge.device_name)

    # --- compile and load -----------------------------------------------------------------------

    def _compile(self) -> tuple[Build, Staged]:
        judge = self.judge
        build = building.compile_candidate(
            self.candidate, self.form, judge.target, judge.cache, judge.pool,
            judge.settings.compile_deadline_s,
        )
        cache = building.stage(
            self.candidate, judge.problem, build, self._folder, judge.target, judge.cache
        )
        entry = forms.entry_of(self.candidate.files)
        staged = Staged(
            self._folder / "candidate", entry, forms.CLASS_NAME, self.form, cache,
            self._folder / "problem.py",
        )
        return build, staged

    def _entrant(self, staged: Staged) -> Entrant:
        """A process with the checked sets in its arenas: warm for trusted candidates."""
        judge = self.judge
        warm = judge.warm
        if self.reusing and warm is not None:
            usable = warm.sets is self.checked and warm.uses < _MAX_USES
            if usable and warm.entrant.client.answers():
                warm.uses += 1
                return warm.entrant
            judge.discard_warm()
        deadline = float(judge.settings.deadline_s or 10.0)
        entrant = Entrant(judge.pool.fresh(), judge.target, deadline)
        try:
            if not self.reusing:
                judge.handover.confine(entrant.client, staged, deadline)
            for i, made in enumerate(self.checked):
                entrant.place_inputs(i, made.tree, made.tensors)
            entrant.place_outputs(
                self.checked[0].outputs, profile.slot_count(_random_ones(self.checked))
            )
        except BaseException:
            entrant.client.kill()
            entrant.forget()
            raise
        if self.reusing:
            judge.warm = Warm(entrant, self.checked)
        return entrant

    def _settle(self, entrant: Entrant) -> None:
        """After a trusted candidate: nothing that it changed may meet the next one."""
        if not entrant.client.alive:
            self.judge.discard_warm()
            return
        try:
            entrant.client.request("unload", entrant.deadline_s)
        except ContestantFailure:
            self.judge.discard_warm()
            return
        with self._device():
            self._restore(entrant)

    def _restore(self, entrant: Entrant) -> None:
        for i, made in enumerate(self.checked):
            if not layout.identical(entrant.inputs(i), made.tensors):
                entrant.write(i, made.tensors)

    def _try(self, entrant: Entrant, staged: Staged, build: Build) -> None:
        judge = self.judge
        seconds = self.building_s(entrant)
        # A candidate that builds itself may take a minute, and the device has nothing to do then.
        own = contextlib.nullcontext() if self.form in SELF_BUILDING else self._device()
        with own, self._phase("load"):
            names = judge.handover.load(entrant.client, staged, judge.reference.state(), seconds)
        try:
            with self._device(), self._phase("verify"):
                self._verify(entrant, staged, names)
            if self.outcome.status == "ok":
                with self._phase("profile"):
                    self._profile(entrant, build)
        except WrongOutput as wrong:
            self._wrong(wrong)

    def building_s(self, entrant: Entrant) -> float:
        """Seconds for a load or a first forward: many build there, and only then."""
        if self.form in SELF_BUILDING:
            return max(entrant.deadline_s, self.judge.settings.compile_deadline_s)
        return entrant.deadline_s

    def _wrong(self, wrong: WrongOutput) -> None:
        self.outcome.status = "wrong"
        self.outcome.findings.append(Finding(wrong.rule, str(wrong)))
        self.outcome.error = wrong.report or self.outcome.error
        self.outcome.feedback = feedback.of_wrong(str(wrong), wrong.report)

    # --- verify ---------------------------------------------------------------------------------

    def _verify(self, entrant: Entrant, staged: Staged, names: Any) -> None:
        report: ErrorReport | None = None
        for i, made in enumerate(self.checked):
            seconds = None if i else self.building_s(entrant)
            answer = entrant.run(i, record=i == 0, seconds=seconds)
            if i == 0:
                self.outcome.external_ops = list(answer["ops"])
            try:
                report = self.check(entrant, i, made, answer, report)
            except WrongOutput as wrong:
                raise self._everywhere(entrant, i, wrong) from None
        self.outcome.error = report
        found = guard.operators(self.outcome.external_ops, self.judge.settings.track)
        if found:
            self.outcome.status = "cheating"
            self.outcome.findings += found
            self.outcome.feedback = found[0].detail
            return
        self.outcome.findings += weights.check(self, entrant, staged, names)

    def _everywhere(self, entrant: Entrant, first: int, wrong: WrongOutput) -> WrongOutput:
        """`wrong`, with the kinds of inputs on which the candidate is wrong, or right. What comes
        after the first mistake can't change the verdict any more."""
        if wrong.report is None or wrong.report.mismatch is None:
            return wrong
        failed = {self.checked[first].style}
        seen = {made.style for made in self.checked[: first + 1]}
        end = time.monotonic() + entrant.deadline_s
        for i, made in enumerate(self.checked[first + 1 :], first + 1):
            if time.monotonic() > end:
                break
            try:
                answer = entrant.run(i)
                seen.add(made.style)
                self.check(entrant, i, made, answer)
            except WrongOutput:
                failed.add(made.style)
            except ContestantFailure:
                break
        wrong.report = replace(
            wrong.report, wrong_on=tuple(sorted(failed)), right_on=tuple(sorted(seen - failed))
        )
        return wrong

    def check(
        self, entrant: Entrant, index: int, made: CheckedSet, answer: Any,
        report: ErrorReport | None = None,
    ) -> ErrorReport:
        """Form, values and untouched inputs after a run on set `index`. Raises WrongOutput."""
        judge = self.judge
        device = judge.target.torch_device().type
        if bad := verify.structure_error(answer, made.out_tree, made.outputs, device):
            raise WrongOutput(bad, rule="form")
        ok, found = judge.reference.judge(made, entrant.outputs(0), report)
        if not ok:
            raise WrongOutput("the output is wrong", found)
        same = judge.instance.mutates or layout.identical(entrant.inputs(index), made.tensors)
        if not same:
            raise WrongOutput(
                "F7: forward changed its inputs, which the reference does not", rule="F7"
            )
        return found

    # --- profile --------------------------------------------------------------------------------

    def _profile(self, entrant: Entrant, build: Build) -> None:
        judge, settings = self.judge, self.judge.settings
        timings: dict[str, Timing] = {}
        ratios: dict[str, Interval] = {}
        names = tuple(settings.baselines or ())
        if settings.tier == "screen":  # an audit races all of them against the candidate
            timings, ratios, _ = judge.baseline_measurements()
            names = ("eager",)
        baselines = judge.baselines.entrants(names)
        with judge.timing_mode():
            race = profile.Race(
                judge.target, judge.reference, settings, baselines,
                _random_ones(self.checked), entrant, not self.reusing,
            )
            try:
                race.place_baselines()
                race.run()
                second = clocks.Clocks(race)
                accusations = self._accusations(entrant, race, second)
                if settings.tier == "audit":
                    self.outcome.energy_mj = race.energy_mj()
                    self.outcome.activity = entrant.trace(0)
                event = statistics.median(race.times("candidate"))
                accusations += activity.check(
                    self.outcome.activity, event, build.resources, settings.track
                )
                method = profile.method(race, self.reusing, second.outside_ms)
                self._measured(race, method, accusations, timings, ratios)
            finally:
                for baseline in race.baselines.values():
                    baseline.drop()
                race.close()

    def _accusations(
        self, entrant: Entrant, race: profile.Race, second: clocks.Clocks
    ) -> list[Finding]:
        """Of work between calls and of a bent clock. Files of our own skills hold nothing that
        could do either."""
        if self.reusing:
            second.check_burst()
            return []
        pid = entrant.client.pid
        assert pid is not None, "an untrusted candidate runs in a process of its own"
        if found := idle.check(lambda: idle.processor_s(pid), race.renew_all):
            return found
        accusation = second.accusation()
        return [accusation] if accusation else []

    def _measured(
        self, race: profile.Race, method: str, accusations: list[Finding],
        timings: dict[str, Timing], ratios: dict[str, Interval],
    ) -> None:
        judge, outcome, wanted = self.judge, self.outcome, self.judge.settings.baselines or ()
        outcome.timing = stats.timing(race.times("candidate"), method)
        own = race.ratios()
        outcome.speedup = dict.fromkeys(BASELINES)
        outcome.baselines = dict.fromkeys(BASELINES)
        for name in wanted:
            if name in own:
                outcome.speedup[name] = own[name]
                outcome.baselines[name] = stats.timing(race.times(name), method)
            elif name in ratios and "eager" in own:
                # Measured once against eager; eager's sample of now anchors it.
                outcome.speedup[name] = stats.multiplied(own["eager"], ratios[name])
                outcome.baselines[name] = timings.get(name)
        trusted = [statistics.median(race.times(n)) for n in race.baselines]
        trusted += [t.median_ms for t in timings.values()]
        outputs = sum(t.numel() * t.element_size() for t in self.checked[0].outputs)
        outcome.floor_ms = plausibility.floor_ms(
            judge.instance.input_bytes, outputs, judge.facts, trusted
        )
        moved = judge.instance.input_bytes + judge.instance.parameter_bytes + outputs
        outcome.roofline = roofline.position(
            outcome.timing.median_ms, moved, judge.operations(self.checked[0]), judge.facts,
            judge.instance.dtype, judge.settings.precision,
        )
        found = accusations + plausibility.check(outcome.timing.median_ms, outcome.floor_ms)
        if found:
            outcome.status = "cheating"
            outcome.findings += found
            outcome.feedback = found[0].detail


def _random_ones(sets: Sequence[CheckedSet]) -> list[CheckedSet]:
    """The sets that calls are timed on."""
    return [made for made in sets if made.style == "random"]
