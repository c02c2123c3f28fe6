"""Index -> Draw: compose, drop what was there before or is too like a benchmark, write the text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

from cuda_agent.records import content_hash
from cuda_agent.synthesis.compose import Composition, Rejected, compose
from cuda_agent.synthesis.filters import SIMILARITY
from cuda_agent.synthesis.journal import Draw
from cuda_agent.synthesis.render import render
from cuda_agent.synthesis.seeds import Seed, short
from cuda_agent.synthesis.similarity import Suite


class Drawer:
    """Draws of one run, made in the order of their index.

    Of several draws with one structure the first counts, whatever became of it later: what an
    index gives must not depend on measured times.
    """

    def __init__(
        self, seeds: Sequence[Seed], suite: Suite, *, seed: int, max_ops: int, target: str,
        earlier: Iterable[Draw] = (),
    ) -> None:
        self._seeds, self._suite = seeds, suite
        self._seed, self._max_ops, self._target = seed, max_ops, target
        self._first: dict[str, int] = {}
        for draw in earlier:
            self._is_first(draw.key, draw.index)

    def draw(self, index: int) -> Draw:
        """Draw `index`: rejected by one of the filters that run nothing, or with code to be run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = compose(
                    self._seeds, self._seed, index, max_ops=self._max_ops, target=self._target
                )
            except Rejected as error:
                return Draw(index, "draw", str(error))
            code = render(made)
        key = structure_key(made)
        rejected, detail, similarity = "", "", 0.0
        if not self._is_first(key, index):
            rejected, detail = "duplicate", f"of {self._first[key]}"
        else:
            similarity, name = self._suite.nearest(code)
            if similarity > SIMILARITY:
                rejected, detail = "similar", f"{similarity:.3f} to {name}"
        return Draw(
            index, rejected, detail, "torch", made.ops, combination(made.ops), key,
            made.structure, made.layout, made.dtype, "" if rejected else code,
            round(similarity, 4),
        )

    def _is_first(self, key: str, index: int) -> bool:
        if not key:
            return True
        self._first[key] = min(index, self._first.get(key, index))
        return self._first[key] == index


def structure_key(made: Composition) -> str:
    """The graph of operators without spellings, sizes and settings, with layout and dtype."""
    nodes = [(short(n.op), n.inputs, n.index, n.like is None) for n in made.nodes]
    return content_hash(nodes, made.output, made.layout, made.dtype)


def combination(ops: Iterable[str]) -> str:
    """Which operators meet, in any order and number: what the split keeps apart."""
    return " + ".join(sorted({short(op) for op in ops}))
