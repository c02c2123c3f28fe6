"""The second clock: the judge's own, against the times that a candidate took beside its forward.

A hostile candidate can bend the clock in its own process, not the one here, and nothing that it
does makes a call shorter from outside than its work. Two measurements:

- bursts: every input set once, back to back, with contents that nobody has seen; the same copies of
  outputs without the forwards, in a baseline's process, are taken off. (The slope over bursts of
  two lengths, the usual way to be rid of the fixed part, could be bent: by lengthening the shorter
  ones.) All outputs of the first burst must be right, and one of some later ones, it does not know
  which: else N calls could be served by one launch;
- on a CPU also each timed exchange, where caches are cold: what it takes beyond the forward is
  compared with the same of a baseline. On a GPU the candidate's process keeps the device busy
  before a timed call, and one that does not could hide as much.

benchmarks/judge/README.md has the measurements that the margins come from.
"""

from __future__ import annotations

import os
import secrets
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from cuda_agent.errors import HarnessError
from cuda_agent.evaluation import idle
from cuda_agent.evaluation.entrant import LocalClient
from cuda_agent.evaluation.profile import CHECK_SHARE, Race, WrongOutput
from cuda_agent.records import Finding

_TRIES = 5
_REPEATS = 4
# Where others want the cores, whoever wakes waits for one, often longer than a burst takes. More
# tries then find one that was not disturbed; they excuse nobody.
_BUSY, _PATIENCE_S = 0.02, 4.0  # share of the time spent waiting


@dataclass(frozen=True)
class Margins:
    """A call may look `factor` times as long from outside as beside the forward, and `slack_ms`
    longer."""

    factor: float
    slack_ms: float

    def allow(self, inside_ms: float, outside_ms: float) -> bool:
        return outside_ms <= self.factor * inside_ms + self.slack_ms


# A GPU's events do not see the host: up to 0.2 ms of Python and launches for each call.
BURSTS: Mapping[str, Margins] = {"cpu": Margins(1.3, 0.02), "cuda": Margins(1.3, 0.2)}
EXCHANGE = Margins(1.1, 0.4)


@dataclass
class Clocks:
    """Both clocks of one race. `outside_ms`: what the judge's said of the candidate's calls, at
    the least; None before it was asked."""

    race: Race
    outside_ms: float | None = None
    _fastest: dict[tuple[str, bool], float] = field(default_factory=dict)

    def accusation(self) -> Finding | None:
        """A finding where the judge's clock says that calls take longer than the candidate's does.

        Only the fastest bursts count, over several tries, more of them on a busy machine: it makes
        a call longer, never shorter. Raises HarnessError where a baseline's clocks disagree as
        well, for then the machine is too busy to tell, and WrongOutput (A12).
        """
        found = self._disagreement("candidate")
        if found is None:
            return None
        control = next(iter(self.race.baselines), None)
        if control is not None and self._disagreement(control) is not None:
            raise HarnessError("the machine is too busy: a baseline's two clocks disagree as well")
        return Finding("A5", f"two clocks disagree: {found}")

    def check_burst(self) -> None:
        """One burst of the candidate, its outputs checked. Raises WrongOutput (A12)."""
        self._burst("candidate", check=True)

    def _disagreement(self, name: str) -> str | None:
        """None as soon as one try agrees; else both readings."""
        device = self.race.target.torch_device().type
        begin, waited, attempt = time.monotonic(), _waited_s(), 0
        bursts_agree = False
        while attempt < _TRIES or _disturbed(begin, waited):
            if attempt:
                self.race.add_round()
            for i in range(0 if bursts_agree else _REPEATS):
                self._burst(name, check=attempt == i == 0)
                self._burst(name, copy_only=True)
            inside = statistics.median(self.race.times(name))
            outside = self._outside(name)
            if name == "candidate":
                self.outside_ms = outside
            agreed = bursts_agree = BURSTS[device].allow(inside, outside)
            if device == "cpu" and agreed:
                outside = inside + self._beyond_baselines(name)
                agreed = EXCHANGE.allow(inside, outside)
            if agreed:
                return None
            attempt += 1
        return (
            f"{inside:.4g} ms a call by the clock beside the forward, at least {outside:.4g} ms by "
            "the judge's from outside"
        )

    def _outside(self, name: str) -> float:
        """Milliseconds a call: the fastest burst less the fastest copies."""
        copies = self._fastest.get((name, True), 0.0)
        return max(0.0, self._fastest[name, False] - copies) / len(self.race.sets)

    def _beyond_baselines(self, name: str) -> float:
        """Milliseconds of the shortest exchange beyond its forward, less those of a baseline."""
        samples, baselines = self.race.samples, self.race.baselines
        own = min(s.outside_ms - s.event_ms for s in samples[name])
        # A live module's baselines have no process of their own, and exchange nothing.
        usual = [
            min(s.outside_ms - s.event_ms for s in samples[baseline])
            for baseline, entrant in baselines.items()
            if not isinstance(entrant.client, LocalClient)
        ]
        return max(0.0, own - min(usual)) if usual else 0.0

    def _burst(self, name: str, copy_only: bool = False, check: bool = False) -> None:
        """Every set once. `copy_only`: the copies of outputs alone, in a baseline's process."""
        race = self.race
        order = list(range(len(race.sets)))
        secrets.SystemRandom().shuffle(order)
        who = race.entrants[name]
        if copy_only:
            if not race.baselines:
                return
            who = next(iter(race.baselines.values()))
        watched = name == "candidate" and not copy_only
        if watched:
            contents = {index: race.renew(index) for index in order}
            for slot in range(who.slot_count):
                who.poison(slot)
        taken = who.burst(order, copy_only)
        self._fastest[name, copy_only] = min(taken, self._fastest.get((name, copy_only), taken))
        if not watched:
            return
        held = range(len(order) - min(len(order), who.slot_count), len(order))
        looked = list(held) if check else []
        if not check and secrets.randbelow(1000) < 1000 * CHECK_SHARE:
            looked = [secrets.choice(held)]
        for at in looked:
            ok, report = race.judged(order[at], contents[order[at]], at % who.slot_count)
            if not ok:
                message = "a call among several back to back gave a wrong output"
                raise WrongOutput(f"A12: {message}", report, "A12")


def _waited_s() -> float:
    """Of the judge and the contestants, which are below it: both ends of an exchange wait."""
    return idle.waited_s(os.getpid()) or 0.0


def _disturbed(begin: float, waited_s: float) -> bool:
    """Whether the machine was busy since `begin`, and there is patience left."""
    passed = time.monotonic() - begin
    return passed < _PATIENCE_S and _waited_s() - waited_s > _BUSY * passed
