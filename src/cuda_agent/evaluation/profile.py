"""Interleaved timing of a candidate and its baselines, with its outputs checked as it is timed.

A round takes one input set. Every entrant, in random order, gets cold caches, an idle device and
one timed call. The contestant learns of a call when it starts and never which outputs will be
looked at. The clock is device events (on a CPU perf_counter) beside the forward; clocks.py holds
the judge's own against it.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cuda_agent.errors import ContestantFailure
from cuda_agent.evaluation import layout, stats, verify
from cuda_agent.evaluation.entrant import Entrant, Sample
from cuda_agent.evaluation.reference import CheckedSet, Reference
from cuda_agent.evaluation.settings import Settings
from cuda_agent.records import ErrorReport, Finding, Interval
from cuda_agent.targets.base import Arena, Target

MAX_ROUNDS = 2000
CHECK_SHARE = 0.25  # of the timed outputs are compared
_ENERGY_S = 1.0  # counters of energy move a few times a second


class WrongOutput(Exception):
    """A checked output is wrong. `report` says where, `rule` is the id of the finding: "output",
    "timed-output", "form" (structure, shape, dtype, device), or an exploit's."""

    def __init__(
        self, message: str, report: ErrorReport | None = None, rule: str = "output"
    ) -> None:
        super().__init__(message)
        self.report = report
        self.rule = rule


@dataclass
class Race:
    """Entrants by name, and the samples of each round. `candidate` may be missing, when only the
    baselines are measured.

    sets: checked sets, placed as sets 0, 1, ... of every entrant.
    fresh: draw new contents before each round, so that nothing remembered from an earlier call
        is of use.
    """

    target: Target
    reference: Reference
    settings: Settings
    baselines: Mapping[str, Entrant]
    sets: Sequence[CheckedSet]
    candidate: Entrant | None = None
    fresh: bool = False
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    rounds: int = 0
    checked: int = 0
    placements: int = 1
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    _shared: list[Arena] = field(default_factory=list)
    _last: int = -1

    @property
    def entrants(self) -> dict[str, Entrant]:
        own = {} if self.candidate is None else {"candidate": self.candidate}
        return {**own, **self.baselines}

    # --- the race -------------------------------------------------------------------------------

    def run(self) -> None:
        """Sample until the intervals are narrow or the time is over.

        Raises WrongOutput, or ContestantFailure of the candidate.
        """
        self.samples = {name: [] for name in self.entrants}
        start = time.monotonic()
        limit = float(self.settings.time_limit_s or 0.3)
        wanted = int(self.settings.placements or 1)
        for i in range(len(self.sets)):
            self._warm_up(i if i < 2 else 0)
        while True:
            self.add_round()
            self.seconds = time.monotonic() - start
            if self._done(limit):
                break
            if self.placements < wanted and self.seconds > self.placements * limit / wanted:
                self._place_anew()
        if self.candidate is not None and self.checked < 2:
            self.add_round(check=True)
        self.seconds = time.monotonic() - start

    def _done(self, limit: float) -> bool:
        least = int(self.settings.min_rounds or 6)
        over = self.seconds > limit
        if self.rounds >= MAX_ROUNDS or (self.seconds > 10 * limit and self.rounds >= 3):
            return True
        if self.rounds < least:
            return False
        if over:
            return True
        enough_places = self.placements >= int(self.settings.placements or 1)
        ratios = self.ratios()
        limit = float(self.settings.interval or 0.05)
        narrow = all(stats.width(r) < limit for r in ratios.values())
        if narrow and ratios and not enough_places:
            self._place_anew()  # the interval must hold over all placements
            return False
        return narrow and bool(ratios)

    def ratios(self) -> dict[str, Interval]:
        """Time of each baseline over the candidate's (over eager's where there is none)."""
        base = self.times("candidate" if self.candidate is not None else "eager")
        return {
            name: stats.ratio(self.times(name), base)
            for name in self.baselines
            if name != "eager" or self.candidate is not None
        }

    def times(self, name: str) -> list[float]:
        return [s.event_ms for s in self.samples[name]]

    def _warm_up(self, index: int) -> None:
        for entrant in self.entrants.values():
            entrant.call(index)

    def add_round(self, check: bool = False) -> None:
        """One more sample of every entrant. `check`: look at the candidate's output for certain."""
        choices = [i for i in range(len(self.sets)) if i != self._last] or [0]
        index = self._last = secrets.choice(choices)
        tensors = self.renew(index)
        check = check or secrets.randbelow(1000) < 1000 * CHECK_SHARE
        names = list(self.entrants)
        random.Random(secrets.randbits(64)).shuffle(names)
        for name in names:
            entrant = self.entrants[name]
            if name == "candidate":  # each time: poison must not tell which calls are checked
                entrant.poison(0)
            entrant.prepare()
            self.samples[name].append(entrant.call(index))
        if self.candidate is not None and self.samples["candidate"][-1].event_ms <= 0:
            raise ContestantFailure("cheating", "A5: the clock beside the forward does not run")
        self.rounds += 1
        if self.candidate is not None:
            self._look(index, tensors, check)

    def renew(self, index: int) -> Sequence[torch.Tensor]:
        """What set `index` now holds: new contents where the race has fresh ones."""
        if not self.fresh:
            return self.sets[index].tensors
        _, tensors = self.reference.inputs()
        for entrant in self._distinct_writers():
            entrant.write(index, tensors)
        return tensors

    def renew_all(self) -> None:
        for index in range(len(self.sets)):
            self.renew(index)

    def judged(
        self, index: int, tensors: Sequence[torch.Tensor], slot: int
    ) -> tuple[bool, ErrorReport]:
        """Whether `slot` holds what the candidate owes for `tensors` as contents of set `index`."""
        assert self.candidate is not None
        made = self.sets[index]
        if self.fresh:
            made = self.reference.checked(layout.rebuild(made.tree, tensors))
        return self.reference.judge(made, self.candidate.outputs(slot))

    def _distinct_writers(self) -> list[Entrant]:
        """One entrant for each group that shares arenas."""
        first = next(iter(self.baselines.values()), None)
        shared = [first] if first is not None else []
        return shared + ([self.candidate] if self.candidate is not None else [])

    def _look(self, index: int, tensors: Sequence[torch.Tensor], check: bool) -> None:
        """The form of every timed output, the values of some."""
        assert self.candidate is not None
        made = self.sets[index]
        answer = self.samples["candidate"][-1].answer
        device = self.target.torch_device().type
        if bad := verify.structure_error(answer, made.out_tree, made.outputs, device):
            raise WrongOutput(bad, rule="form")
        if not check:
            return
        self.checked += 1
        ok, report = self.judged(index, tensors, 0)
        if not ok:
            raise WrongOutput("a timed call gave a wrong output", report, "timed-output")
        if not self.reference.instance.mutates and not layout.identical(
            self.candidate.inputs(index), tensors
        ):
            raise WrongOutput("F7: a timed call changed its inputs", rule="F7")

    # --- placement ------------------------------------------------------------------------------

    def place(self) -> None:
        """Input sets and room for outputs, for every entrant."""
        self.place_baselines()
        if self.candidate is not None:
            for i, made in enumerate(self.sets):
                self.candidate.place_inputs(i, made.tree, made.tensors)
            count = slot_count(self.sets)
            self.candidate.place_outputs(self.sets[0].outputs, count, self._pad())

    def place_baselines(self) -> None:
        """Baselines share arenas; the candidate maps none of theirs, so it can't reach what they
        read."""
        for i, made in enumerate(self.sets):
            arena: Arena | None = None
            for entrant in self.baselines.values():
                placed = entrant.place_inputs(i, made.tree, made.tensors, arena)
                arena = arena or placed
        for entrant in self.baselines.values():
            entrant.place_outputs(self.sets[0].outputs, slot_count(self.sets[:1]), self._pad())

    def _place_anew(self) -> None:
        """Other addresses: everything is given up, and a ballast of random size shifts what comes
        next to other pages."""
        for entrant in self.entrants.values():
            entrant.drop()
        ballast = self.target.arena((1 + secrets.randbelow(16)) << 20)
        self._shared.append(ballast)
        self.place()
        self.placements += 1
        self._warm_up(0)

    def _pad(self) -> int:
        """Bytes of a random allocation before the outputs; none where placement isn't varied."""
        if int(self.settings.placements or 1) == 1:
            return 0
        return secrets.randbelow(64) << 16

    def close(self) -> None:
        for arena in self._shared:
            arena.close()
        self._shared.clear()

    def energy_mj(self) -> float | None:
        """Millijoules of one forward and the copy of its outputs, over a second of bursts."""
        start = self.target.energy_mj()
        if start is None or self.candidate is None:
            return None
        begin, calls = time.monotonic(), 0
        while time.monotonic() - begin < _ENERGY_S:
            order = [secrets.randbelow(len(self.sets)) for _ in range(16)]
            self.candidate.burst(order)
            calls += len(order)
        end = self.target.energy_mj()
        return None if end is None or end < start else (end - start) / calls


def slot_count(sets: Sequence[CheckedSet]) -> int:
    """Room for outputs: up to 64 of them within 64 MiB, and one for each set within 4 GiB, so that
    any call of a burst may be looked at."""
    _, nbytes = layout.plan(sets[0].outputs)
    each = max(nbytes, 1)
    return max(1, min(64, (64 << 20) // each), min(len(sets), (4 << 30) // each))


def method(race: Race, trusted: bool, outside_ms: float | None = None) -> str:
    """How the samples were taken, in one line. `outside_ms`: a call by the judge's own clock."""
    cold = f"caches flushed, {race.target.timer_note}"
    inputs = "fresh inputs each round" if race.fresh else f"{len(race.sets)} input sets in turn"
    where = "reused process" if trusted else "fresh process"
    second = "one clock" if outside_ms is None else f"second clock {outside_ms:.4g} ms"
    return (
        f"{cold}; {inputs}; {race.placements} placements; baselines interleaved in random order; "
        f"{race.rounds} rounds, {race.checked} outputs checked; {where}; {second}"
    )


def failed_baseline(error: Exception) -> str:
    """Why a baseline is missing, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    kind = error.status if isinstance(error, ContestantFailure) else type(error).__name__
    return f"{kind}: {lines[0][:300]}"
