"""Entrants of a race whose times are made up, and the race that they run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import cases
from cuda_agent import targets
from cuda_agent.evaluation import Settings, layout
from cuda_agent.evaluation.entrant import Sample
from cuda_agent.evaluation.profile import Race
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


INSTANCE = materialize(cases.problem(), "cpu")


def right(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + INSTANCE.model.bias.detach()) + 0.5 * x


def race(
    reference: Reference, sets: list[CheckedSet], candidate: Simulated, eager_ms: float = 4.0,
    fresh: bool = False, eager: Simulated | None = None, **changes: Any,
) -> Race:
    fields = {"time_limit_s": 5.0, "interval": 0.01, "min_rounds": 6, **changes}
    settings = Settings(target="cpu", **fields).complete()
    baselines: Mapping[str, Any] = {"eager": eager or Simulated(sets, eager_ms)}
    made: Any = candidate
    return Race(TARGET, reference, settings, baselines, sets, made, fresh)
