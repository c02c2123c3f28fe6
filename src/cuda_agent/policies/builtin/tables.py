"""Automata as tensors, so that a batch of streams steps through them without the host.

Between two choices all tokens are forced. An entry is one option of a node: its token, the forced
ones behind it (together one block of at most WIDTH tokens) and the node after them. A longer run
goes on in a node with a single option, which costs a step but no choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cuda_agent.policies.builtin.automaton import DONE, Automaton

WIDTH = 8
"""Tokens of one decoding step: most runs between choices are shorter (median 4)."""


@dataclass
class Blocks:
    """One automaton as lists. Node n has the entries first[n] to first[n + 1]; node 0 is DONE.

    `prefix` are the forced tokens before the first choice, `start` the node of that choice; from
    there a call takes at most `steps` entries and `tokens` tokens.
    """

    first: list[int]
    block: list[list[int]]
    next: list[int]
    prefix: list[int]
    start: int
    steps: int
    tokens: int


def blocks(automaton: Automaton) -> Blocks:
    """Folds forced runs into the choices before them."""
    if automaton.folded is None:
        automaton.folded = _Folder(automaton).fold()
    return automaton.folded


class _Folder:
    def __init__(self, automaton: Automaton) -> None:
        self.edges = automaton.edges
        self.start = automaton.start
        self.nodes: list[list[tuple[list[int], int]]] = [[]]  # entries of each node made
        self.known: dict[int, int] = {DONE: 0}  # node of the automaton -> node made
        self.depth = [(0, 0)]  # most (entries, tokens) from each node made

    def fold(self) -> Blocks:
        prefix, node = self._run(self.start)
        start = self._node(node)
        first = [0]
        for entries in self.nodes:
            first.append(first[-1] + len(entries))
        flat = [entry for entries in self.nodes for entry in entries]
        return Blocks(
            first, [b for b, _ in flat], [n for _, n in flat], prefix, start, *self.depth[start]
        )

    def _run(self, node: int) -> tuple[list[int], int]:
        """Forced tokens from `node`, and the choice (or DONE) that they lead to."""
        ids: list[int] = []
        while len(self.edges[node]) == 1:
            [(token, node)] = self.edges[node].items()
            ids.append(token)
        return ids, node

    def _node(self, choice: int) -> int:
        if choice not in self.known:
            entries = []
            for token, node in self.edges[choice].items():
                run, after = self._run(node)
                entries.append(self._entry([token, *run], self._node(after)))
            self.known[choice] = self._add(entries)
        return self.known[choice]

    def _entry(self, ids: list[int], after: int) -> tuple[list[int], int]:
        if len(ids) <= WIDTH:
            return ids, after
        return ids[:WIDTH], self._add([self._entry(ids[WIDTH:], after)])

    def _add(self, entries: list[tuple[list[int], int]]) -> int:
        self.nodes.append(entries)
        steps = 1 + max(self.depth[after][0] for _, after in entries)
        self.depth.append((steps, max(len(b) + self.depth[after][1] for b, after in entries)))
        return len(self.nodes) - 1


@dataclass
class Tables:
    """The automata of a batch, one behind the other, on the device.

    first_N and options_N: where a node's entries begin and how many there are; ids_E_W (padded
    with 0), counts_E, next_E: the entries. `most` is the largest number of options of any node.
    """

    first_N: Tensor
    options_N: Tensor
    ids_E_W: Tensor
    counts_E: Tensor
    next_E: Tensor
    most: int

    @classmethod
    def make(cls, parts: Sequence[Blocks], device: torch.device) -> tuple[Tables, list[int]]:
        """Also returns where each part's nodes begin. DONE of every part stays a node without
        entries."""
        first: list[int] = []
        options: list[int] = []
        ids: list[list[int]] = []
        counts: list[int] = []
        following: list[int] = []
        offsets: list[int] = []
        for part in parts:
            offset = len(first)
            offsets.append(offset)
            first += [len(ids) + begin for begin in part.first[:-1]]
            options += [end - begin for begin, end in zip(part.first, part.first[1:])]
            counts += [len(block) for block in part.block]
            following += [offset + node for node in part.next]
            ids += [block + [0] * (WIDTH - len(block)) for block in part.block]

        def tensor(values: object) -> Tensor:
            return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=True)

        made = cls(
            tensor(first), tensor(options), tensor(ids), tensor(counts), tensor(following),
            max(options, default=1),
        )
        return made, offsets
