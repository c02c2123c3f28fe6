"""The race on simulated entrants: when it stops and what it checks."""

from __future__ import annotations

import itertools

import pytest
import torch
from evaluation_simulated import Simulated, race, right

from cuda_agent.errors import ContestantFailure
from cuda_agent.evaluation import profile
from cuda_agent.evaluation.profile import WrongOutput
from cuda_agent.evaluation.reference import CheckedSet, Reference


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


def test_why_a_baseline_is_missing_fits_a_line() -> None:
    assert profile.failed_baseline(ValueError("first\nsecond")) == "ValueError: first"
    assert profile.failed_baseline(ContestantFailure("timeout", "slow")) == "timeout: slow"
    assert profile.failed_baseline(RuntimeError()) == "RuntimeError: RuntimeError"
