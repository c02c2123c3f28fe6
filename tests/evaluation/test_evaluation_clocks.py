"""What the judge's own clock says of clocks that are slow, fast or skip calls."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch
from evaluation_simulated import Simulated, race, right

from cuda_agent.errors import HarnessError
from cuda_agent.evaluation import clocks, idle, profile
from cuda_agent.evaluation.clocks import Clocks
from cuda_agent.evaluation.profile import WrongOutput
from cuda_agent.evaluation.reference import CheckedSet, Reference


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are made up here: the real machine's load must not matter."""
    monkeypatch.setattr(idle, "waited_s", lambda _: 0.0)


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
    found = Clocks(made).accusation()
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
            assert Clocks(made).accusation() is None
        except HarnessError:
            assert jitter_ms > 100 * true_ms  # too busy to tell: said, and nobody charged


@pytest.mark.parametrize(("busy", "true_ms", "accused"), [
    (True, 0.05, False), (False, 0.05, True),  # disturbed for 40 bursts: it waits, or it is slow
    (True, 2.0, True),  # a bent clock, on a busy machine too
])
def test_a_busy_machine_is_given_more_tries(
    reference: Reference, sets: list[CheckedSet], monkeypatch: pytest.MonkeyPatch, busy: bool,
    true_ms: float, accused: bool,
) -> None:
    monkeypatch.setattr(idle, "waited_s", lambda _: time.monotonic() if busy else 0.0)
    monkeypatch.setattr(clocks, "_PATIENCE_S", 1.0)
    candidate = Simulated(sets, true_ms, 0.05)
    plain = candidate.burst

    def disturbed(indices: Sequence[int], copy_only: bool = False) -> float:
        return plain(indices, copy_only) + (3.0 if candidate.bursts <= 40 else 0.0)

    candidate.burst = disturbed  # type: ignore[method-assign]
    made = race(reference, sets, candidate)
    made.run()
    assert (Clocks(made).accusation() is not None) is accused


def test_where_a_baselines_clocks_disagree_too_nobody_is_accused(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    made = race(reference, sets, Simulated(sets, 4.0, 1.0), eager=Simulated(sets, 4.0, 1.0))
    made.run()
    with pytest.raises(HarnessError, match="too busy"):
        Clocks(made).accusation()


def test_a_clock_that_runs_right_in_bursts_only_is_accused(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    """It keeps results of a burst for calls that come alone; those take longer than they say."""
    candidate = Simulated(sets, 8.0, 4.0)
    plain = candidate.burst

    def fast(indices: Sequence[int], copy_only: bool = False) -> float:
        return plain(indices, copy_only) - 4.0 * len(indices)

    candidate.burst = fast  # type: ignore[method-assign]
    made = race(reference, sets, candidate)
    made.run()
    found = Clocks(made).accusation()
    assert found is not None and found.id == "A5"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_call_that_is_skipped_in_a_burst_is_wrong(
    reference: Reference, sets: list[CheckedSet], fresh: bool
) -> None:
    candidate = Simulated(sets, 2.0)
    made = race(reference, sets, candidate, fresh=fresh)
    made.run()
    Clocks(made).check_burst()
    plain, seen = candidate.burst, []

    def skips_one(indices: Sequence[int], copy_only: bool = False) -> float:
        taken = plain(indices, copy_only)
        seen.append(len(seen))
        candidate.places[seen[-1] % len(indices)][0].zero_()
        return taken

    candidate.burst = skips_one  # type: ignore[method-assign]
    with pytest.raises(WrongOutput, match="A12") as caught:
        for _ in range(100):  # which output is looked at is a draw
            Clocks(made).check_burst()
    assert caught.value.rule == "A12" and caught.value.report is not None


def test_every_burst_of_a_fresh_race_holds_unseen_contents(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    candidate = Simulated(sets, 2.0)
    memory: dict[bytes, torch.Tensor] = {}
    repeated = []

    def compute(_: int, x: torch.Tensor) -> torch.Tensor:
        key = x[0, :8].numpy().tobytes()
        repeated.append(key in memory)
        memory[key] = x
        return right(x)

    candidate.compute = compute
    made = race(reference, sets, candidate, fresh=True)
    made.run()
    repeated.clear()
    assert Clocks(made).accusation() is None
    assert len(repeated) >= 4 * len(sets) and not any(repeated)


def test_the_method_names_the_second_clock(
    reference: Reference, sets: list[CheckedSet]
) -> None:
    made = race(reference, sets, Simulated(sets, 2.0))
    made.run()
    second = Clocks(made)
    assert "one clock" in profile.method(made, False, second.outside_ms)
    assert second.accusation() is None
    assert "second clock 2 ms" in profile.method(made, False, second.outside_ms)
