"""Interleaved timing of a candidate and its baselines, with its outputs checked as it is timed.

A round takes one input set. Every entrant, in random order, gets cold caches, an idle device and
one timed call. The contestant learns of a call when it starts and never which outputs will be
looked at. Two clocks run: device events (on a CPU perf_counter) beside the forward, and the
judge's own around the exchange; for short calls the slope of bursts of n and 2n calls.
"""

from __future__ import annotations

import random
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cuda_agent.errors import ContestantFailure, HarnessError
from cuda_agent.evaluation import layout, stats, verify
from cuda_agent.evaluation.entrant import Entrant, LocalClient, Sample
from cuda_agent.evaluation.reference import CheckedSet, Reference
from cuda_agent.evaluation.settings import Settings
from cuda_agent.records import ErrorReport, Finding, Interval
from cuda_agent.targets.base import Arena, Target

MAX_ROUNDS = 2000
_CHECK_SHARE = 0.25  # of the timed outputs are compared
_SHORT_MS = 1.0  # calls under this are also timed in bursts
_BURST_MS = 3.0  # fits between two turns of a busy scheduler
_TRIES = 5
_REPEATS = 4
_HIDDEN_MS = 0.2  # launch latency that the device events of a GPU do not see (session.py)
_ENERGY_S = 1.0  # counters of energy move a few times a second


class WrongOutput(Exception):
    """A checked output is wrong. `report` says where."""

    def __init__(self, message: str, report: ErrorReport | None = None) -> None:
        super().__init__(message)
        self.report = report


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
            self._round()
            self.seconds = time.monotonic() - start
            if self._done(limit):
                break
            if self.placements < wanted and self.seconds > self.placements * limit / wanted:
                self._place_anew()
        if self.candidate is not None and self.checked < 2:
            self._round(check=True)
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

    def _round(self, check: bool = False) -> None:
        choices = [i for i in range(len(self.sets)) if i != self._last] or [0]
        index = self._last = secrets.choice(choices)
        made = self.sets[index]
        tensors = made.tensors
        if self.fresh:
            _, tensors = self.reference.inputs()
            for entrant in self._distinct_writers():
                entrant.write(index, tensors)
        check = check or secrets.randbelow(1000) < 1000 * _CHECK_SHARE
        names = list(self.entrants)
        random.Random(secrets.randbits(64)).shuffle(names)
        for name in names:
            entrant = self.entrants[name]
            if name == "candidate" and check:
                entrant.poison(0)
            entrant.prepare()
            self.samples[name].append(entrant.call(index))
        self.rounds += 1
        if self.candidate is not None:
            self._look(index, tensors, check)

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
            raise WrongOutput(bad)
        if not check:
            return
        self.checked += 1
        if self.fresh:
            inputs = layout.rebuild(made.tree, tensors)
            made = self.reference.checked(inputs)
        ok, report = self.reference.judge(made, self.candidate.outputs(0))
        if not ok:
            raise WrongOutput("a timed call gave a wrong output", report)
        if not self.reference.instance.mutates and not layout.identical(
            self.candidate.inputs(index), tensors
        ):
            raise WrongOutput("F7: a timed call changed its inputs")

    # --- placement ------------------------------------------------------------------------------

    def place(self) -> None:
        """Input sets and room for outputs, for every entrant."""
        self.place_baselines()
        if self.candidate is not None:
            for i, made in enumerate(self.sets):
                self.candidate.place_inputs(i, made.tree, made.tensors)
            count = slot_count(self.sets[0])
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
            entrant.place_outputs(self.sets[0].outputs, slot_count(self.sets[0]), self._pad())

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

    # --- the second clock -----------------------------------------------------------------------

    def clocks(self) -> Finding | None:
        """Do the contestant's times agree with the judge's clock? Several tries before an
        accusation, and only the fastest calls count: a busy machine makes calls longer, never
        shorter.

        Long calls: the exchange less the copy of the outputs and the messages, which a baseline
        pays as well. Short calls, and long ones that seem to disagree: slope of bursts, less the
        copies. Raises HarnessError where a
        trusted baseline's clocks disagree as well: then the machine is too busy to tell.
        """
        assert self.candidate is not None
        found = self._disagreement("candidate")
        if found is None:
            return None
        control = next(iter(self.baselines), None)
        if control is not None and self._disagreement(control) is not None:
            raise HarnessError("the machine is too busy: a baseline's two clocks disagree as well")
        return Finding("A5", f"two clocks disagree: {found}")

    def _disagreement(self, name: str) -> str | None:
        """None as soon as one try agrees; else both readings."""
        cpu = self.target.torch_device().type == "cpu"
        fastest: dict[tuple[str, int], float] = {}
        for _ in range(_TRIES):
            event = statistics.median(self.times(name))
            outside = self._exchange_ms(name)
            if event >= _SHORT_MS and outside <= 1.1 * event + (0.4 if cpu else _HIDDEN_MS):
                return None
            best = self._burst_ms(name, max(event, outside), fastest)
            factor = 1.3 if event >= _SHORT_MS else 2.0 if cpu else 1.5
            if best <= factor * event + (0.01 if cpu else _HIDDEN_MS):
                return None
            self._round()
        return (
            f"{event:.4g} ms a call by the clock beside the forward, at least {best:.4g} ms by the "
            "judge's from outside"
        )

    def _exchange_ms(self, name: str) -> float:
        """The fastest call from outside, less what the exchange itself takes at least."""
        return max(0.0, min(s.outside_ms for s in self.samples[name]) - self._usual_gap())

    def _usual_gap(self) -> float:
        """Messages and the copy of the outputs, seen at a baseline in a process of its own."""
        gaps = [
            s.outside_ms - s.event_ms
            for name, entrant in self.baselines.items()
            if not isinstance(entrant.client, LocalClient)
            for s in self.samples[name]
        ]
        if gaps:
            return min(gaps)
        assert self.candidate is not None
        places = self.candidate.outputs(0)
        copies = [t.clone() for t in places]
        start = time.perf_counter_ns()
        for place, t in zip(places, copies):
            place.copy_(t)
        self.target.synchronize()
        return (time.perf_counter_ns() - start) / 1e6 + 0.5

    def _burst_ms(
        self, name: str, call_ms: float, fastest: dict[tuple[str, int], float]
    ) -> float:
        """Milliseconds a call from outside: slope over n and 2n calls, copies taken off.

        `fastest` keeps the shortest burst of each kind over all tries.
        """
        trusted = next(iter(self.baselines.values()), None)
        if not fastest:
            fastest["calls", 0] = max(4, min(200, int(_BURST_MS / max(call_ms, 0.005))))
        n = int(fastest["calls", 0])
        own = self._slope(self.entrants[name], n, False, fastest)
        return max(0.0, own - (self._slope(trusted, n, True, fastest) if trusted else 0.0))

    def _slope(
        self, entrant: Entrant, n: int, copy_only: bool, fastest: dict[tuple[str, int], float]
    ) -> float:
        kind = "copies" if copy_only else "forwards"
        for _ in range(_REPEATS):
            order = [secrets.randbelow(len(self.sets)) for _ in range(2 * n)]
            for count in (n, 2 * n):
                taken = entrant.burst(order[:count], copy_only)
                fastest[kind, count] = min(taken, fastest.get((kind, count), taken))
        return max(0.0, (fastest[kind, 2 * n] - fastest[kind, n]) / n)

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

    def check_burst(self) -> None:
        """The outputs of the last burst are right as well: every call must have done its work."""
        if self.candidate is None or self.fresh:
            return
        count = min(8, self.candidate.slot_count)
        order = [secrets.randbelow(len(self.sets)) for _ in range(count)]
        for slot in range(len(order)):
            self.candidate.poison(slot)
        self.candidate.burst(order)
        slot = secrets.randbelow(len(order))
        ok, report = self.reference.judge(self.sets[order[slot]], self.candidate.outputs(slot))
        if not ok:
            raise WrongOutput("A12: a call among several back to back gave a wrong output", report)


def slot_count(made: CheckedSet) -> int:
    """Room for the outputs of a burst, within 64 MiB."""
    _, nbytes = layout.plan(made.outputs)
    return max(1, min(64, (64 << 20) // max(nbytes, 1)))


def method(race: Race, trusted: bool) -> str:
    """How the samples were taken, in one line."""
    cold = f"caches flushed, {race.target.timer_note}"
    inputs = "fresh inputs each round" if race.fresh else f"{len(race.sets)} input sets in turn"
    where = "reused process" if trusted else "fresh process"
    return (
        f"{cold}; {inputs}; {race.placements} placements; baselines interleaved in random order; "
        f"{race.rounds} rounds, {race.checked} outputs checked; {where}"
    )


def failed_baseline(error: Exception) -> str:
    """Why a baseline is missing, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    kind = error.status if isinstance(error, ContestantFailure) else type(error).__name__
    return f"{kind}: {lines[0][:300]}"
