"""The race on simulated entrants: when it stops, what it checks, and what the two clocks say."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import evaluation_cases as cases
import pytest
import torch

from cuda_agent import targets
from cuda_agent.errors import ContestantFailure, HarnessError
from cuda_agent.evaluation import Settings, layout, profile
from cuda_agent.evaluation.entrant import Sample
from cuda_agent.evaluation.profile import Race, WrongOutput
from cuda_agent.evaluation.reference import CheckedSet, Reference
from cuda_agent.problems import materialize

TARGET = targets.get("cpu")


class Simulated:
    """An entrant whose calls take `true_ms`, and which says that they took `claimed_ms`."""

    def __init__(
        self, sets: Sequence[CheckedSet], true_ms: float, claimed_ms: float | None = None,
        noise: float = 0.0, jitter_ms: float = 0.0,
    ) -> None:
        self.sets = list(sets)
        self.true_ms, self.noise, self.jitter_ms = true_ms, noise, jitter_ms
        self.claimed_ms = true_ms if claimed_ms is None else claimed_ms
        self.client: Any = self
        self.calls = self.bursts = self.dropped = self.flushed = 0
        self.slot_count = 8
        self.contents = {i: [t.clone() for t in s.tensors] for i, s in enumerate(sets)}
        self.places = [[torch.zeros(64, 512)] for _ in range(8)]
        self.compute: Callable[[int, torch.Tensor], torch.Tensor] = lambda _, x: right(x)
        self._draw = random.Random(4)

    def _out(self, index: int, slot: int) -> None:
        self.calls += 1
        self.places[slot][0].copy_(self.compute(self.calls, self.contents[index][0]))

    def call(self, index: int, slot: int = 0) -> Sample:
        self._out(index, slot)
        factor = 1 + self.noise * self._draw.random()
        spec = {"shape": [64, 512], "dtype": "float32", "type": "Tensor", "device": "cpu"}
        answer = {"tree": {"tensor": 0}, "specs": [spec], "copied": True}
        outside = self.true_ms * factor + 0.3 + self.jitter_ms * self._draw.random()
        return Sample(self.claimed_ms * factor, outside, answer)

    def burst(self, indices: Sequence[int], copy_only: bool = False) -> float:
        self.bursts += 1
        for slot, index in enumerate(indices[: self.slot_count]):
            if not copy_only:
                self._out(index, slot)
        each = 0.01 + (0 if copy_only else self.true_ms)
        return 0.3 + each * len(indices) + self.jitter_ms * self._draw.random()

    def prepare(self) -> None:
        self.flushed += 1

    def poison(self, slot: int) -> None:
        layout.poison(self.places[slot])

    def outputs(self, slot: int) -> list[torch.Tensor]:
        return self.places[slot]

    def inputs(self, index: int) -> list[torch.Tensor]:
        return self.contents[index]

    def write(self, index: int, tensors: Sequence[torch.Tensor]) -> None:
        self.contents[index] = [t.clone() for t in tensors]

    def drop(self) -> None:
        self.dropped += 1

    def place_inputs(self, index: int, tree: Any, tensors: Any, arena: Any = None) -> Any:
        self.write(index, tensors)
        return object()

    def place_outputs(self, forms: Any, count: int, pad: int = 0) -> None:
        pass


BIAS: torch.Tensor


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + BIAS) + 0.5 * x


@pytest.fixture(scope="module")
def reference() -> Reference:
    global BIAS
    instance = materialize(cases.problem(), "cpu")
    BIAS = instance.model.bias.detach()
    return Reference(instance, "strict")


@pytest.fixture(scope="module")
def sets(reference: Reference) -> list[CheckedSet]:
    made = [reference.draw() for _ in range(3)]
    return [m for m in made if m is not None]


def race(
    reference: Reference, sets: list[CheckedSet], candidate: Simulated, eager_ms: float = 4.0,
    fresh: bool = False, eager: Simulated | None = None, **changes: Any,
) -> Race:
    fields = {"time_limit_s": 5.0, "interval": 0.01, "min_rounds": 6, **changes}
    settings = Settings(target="cpu", **fields).complete()
    baselines: Mapping[str, Any] = {"eager": eager or Simulated(sets, eager_ms)}
    made: Any = candidate
    return Race(TARGET, reference, settings, baselines, sets, made, fresh)


def test_exact_times_end_at_the_fewest_rounds(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    made = race(reference, sets, Simulated(sets, 2.0))
    made.run()
    assert 6 <= made.rounds <= 7
    assert made.ratios()["eager"].value == pytest.approx(2.0)
    assert made.checked >= 1


def test_noise_asks_for_more_rounds(reference: Reference, sets: list[CheckedSet]) -> None:
    made = race(reference, sets, Simulated(sets, 2.0, noise=0.2), interval=0.05)
    made.run()
    interval = made.ratios()["eager"]
    assert made.rounds > 10
    assert (interval.high - interval.low) / interval.value < 0.05


def test_the_time_limit_ends_it(reference: Reference, sets: list[CheckedSet]) -> None:
    made = race(reference, sets, Simulated(sets, 2.0, noise=5.0), interval=1e-9, time_limit_s=0.1)
    made.run()
    assert made.seconds < 3 and made.rounds >= 6


def test_every_placement_is_used_before_it_ends(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    candidate = Simulated(sets, 2.0)
    made = race(reference, sets, candidate, placements=4)
    made.run()
    assert made.placements == 4 and candidate.dropped == 3
    assert "4 placements" in profile.method(made, trusted=False)
    made.close()


def test_every_timed_call_starts_cold_and_no_set_comes_twice_in_a_row(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    seen: list[int] = []
    candidate = Simulated(sets, 2.0)
    plain = candidate.call
    candidate.call = lambda i, slot=0: seen.append(i) or plain(i, slot)  # type: ignore[assignment, func-returns-value]
    made = race(reference, sets, candidate)
    made.run()
    timed = seen[len(sets):]  # what came before is warm-up
    assert candidate.flushed == made.rounds == len(timed)
    assert all(a != b for a, b in itertools.pairwise(timed))


def test_fresh_contents_are_written_before_each_round(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    candidate = Simulated(sets, 2.0)
    made = race(reference, sets, candidate, fresh=True)
    made.run()
    assert made.checked >= 1
    assert any(
        not torch.equal(candidate.contents[i][0], s.tensors[0]) for i, s in enumerate(sets)
    )
    assert "fresh inputs" in profile.method(made, trusted=False)


@pytest.mark.parametrize("fresh", [False, True])
def test_wrong_timed_outputs_are_found(
    reference: Reference, sets: list[CheckedSet], fresh: bool
) -> None:
    candidate = Simulated(sets, 2.0)
    candidate.compute = lambda n, x: right(x) if n <= 3 else torch.zeros_like(x)
    with pytest.raises(WrongOutput, match="timed call") as caught:
        race(reference, sets, candidate, fresh=fresh, min_rounds=20).run()
    assert caught.value.report is not None and caught.value.report.mismatch is not None


def test_a_remembered_output_is_wrong_when_contents_are_fresh(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    candidate = Simulated(sets, 2.0)
    memory: dict[int, torch.Tensor] = {}

    def remembered(index: int, slot: int) -> None:
        x = candidate.contents[index][0]
        candidate.places[slot][0].copy_(memory.setdefault(index, right(x)))

    candidate._out = remembered  # type: ignore[method-assign]
    race(reference, sets, candidate).run()  # the same sets again and again: not seen
    with pytest.raises(WrongOutput, match="timed call"):
        race(reference, sets, candidate, fresh=True, min_rounds=20).run()


def test_changed_inputs_are_found(reference: Reference, sets: list[CheckedSet]) -> None:
    candidate = Simulated(sets, 2.0)

    def spoil(_: int, x: torch.Tensor) -> torch.Tensor:
        out = right(x)
        x[0, 0] += 1e-30
        x[1, 1] = -x[1, 1]
        return out

    candidate.compute = spoil
    with pytest.raises(WrongOutput):
        race(reference, sets, candidate, min_rounds=20).run()


# --- two clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("true_ms", "claimed_ms", "accused"),
    [
        (4.0, 4.0, False), (4.0, 3.8, False), (4.0, 2.0, True), (4.0, 0.001, True),
        (0.05, 0.05, False), (0.05, 0.0001, True), (0.05, 0.01, True), (0.6, 0.6, False),
        (0.6, 0.1, True), (0.002, 0.002, False), (40.0, 20.0, True), (40.0, 40.0, False),
        (4.0, 8.0, False),  # a clock that is slow harms its owner only
    ],
)
def test_a_clock_that_is_fast_is_accused(
    reference: Reference, sets: list[CheckedSet], true_ms: float, claimed_ms: float, accused: bool
) -> None:
    made = race(reference, sets, Simulated(sets, true_ms, claimed_ms))
    made.run()
    found = made.clocks()
    assert (found is not None) is accused
    if found is not None:
        assert found.id == "A5" and "two clocks" in found.detail


@pytest.mark.parametrize("true_ms", [0.01, 0.2, 3.0, 30.0])
@pytest.mark.parametrize("jitter_ms", [0.5, 3.0])
def test_an_honest_clock_on_a_busy_machine_is_not_accused(
    reference: Reference, sets: list[CheckedSet], true_ms: float, jitter_ms: float
) -> None:
    for _ in range(5):
        made = race(
            reference, sets, Simulated(sets, true_ms, noise=0.5, jitter_ms=jitter_ms),
            eager=Simulated(sets, 4.0, noise=0.5, jitter_ms=jitter_ms), time_limit_s=0.05,
        )
        made.run()
        try:
            assert made.clocks() is None
        except HarnessError:
            assert jitter_ms > 100 * true_ms  # too busy to tell: said, and nobody charged


def test_where_a_baselines_clocks_disagree_too_nobody_is_accused(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    made = race(
        reference, sets, Simulated(sets, 4.0, 1.0), eager=Simulated(sets, 4.0, 1.0)
    )
    made.run()
    # the usual gap is a baseline's: it hides the same lie in a long exchange, not in bursts
    with pytest.raises(HarnessError, match="too busy"):
        made.samples["eager"] = made.samples["candidate"] = [
            Sample(0.5, 4.3, s.answer) for s in made.samples["candidate"]
        ]
        made.candidate.claimed_ms = made.baselines["eager"].claimed_ms = 0.5  # type: ignore[union-attr, attr-defined]
        made.clocks()


def test_a_burst_that_skips_calls_is_wrong(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    candidate = Simulated(sets, 2.0)
    made = race(reference, sets, candidate)
    made.run()
    made.check_burst()
    candidate.burst = lambda indices, copy_only=False: 0.1  # type: ignore[assignment]
    with pytest.raises(WrongOutput, match="A12"):
        made.check_burst()


def test_why_a_baseline_is_missing_fits_a_line() -> None:
    assert profile.failed_baseline(ValueError("first\nsecond")) == "ValueError: first"
    assert profile.failed_baseline(ContestantFailure("timeout", "slow")) == "timeout: slow"
    assert profile.failed_baseline(RuntimeError()) == "RuntimeError: RuntimeError"
