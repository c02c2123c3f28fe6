"""Cut a program into regions: as large as the rules allow, and convex.

A region is convex when no path leaves it and comes back: only then can it run as one unit. Merging
is greedy along edges in a fixed order, so the same program always gives the same regions.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from cuda_agent.graph.ir import Op, Region, Tensor
from cuda_agent.graph.ops import NULLARY
from cuda_agent.graph.typing_rules import Fit, classify


def form_regions(
    ops: Sequence[Op], values: dict[str, Tensor], outputs: Sequence[str]
) -> tuple[Region, ...]:
    """The regions of a program in an order in which they can run, named r0, r1, ...

    Rows come first: a pointwise op that could be the prologue of a reduction, norm or scan, or the
    epilogue of something else, becomes the prologue, which saves a pass over memory. Then
    neighbours merge, and each product or stencil takes the elementwise group that follows it.
    """
    clusters = _Clusters(ops, values, outputs)
    clusters.merge_prologues()
    clusters.merge_neighbours({"pointwise", "rowwise", "scan", "torch"})
    clusters.merge_neighbours({"pointwise", "rowwise", "view"})
    clusters.merge_siblings()
    clusters.merge_neighbours({"pointwise", "gemm", "stencil"})
    clusters.merge_neighbours({"view"})
    clusters.merge_neighbours({"pointwise", "rowwise", "scan", "gemm", "stencil", "torch"})
    return tuple(
        clusters.region(f"r{position}", cluster)
        for position, cluster in enumerate(clusters.ordered())
    )


class _Clusters:
    """Groups of op indices. A cluster is named by its smallest member."""

    def __init__(
        self, ops: Sequence[Op], values: dict[str, Tensor], outputs: Sequence[str]
    ) -> None:
        self.ops, self.values, self.final = ops, values, set(outputs)
        made = {name: i for i, op in enumerate(ops) for name in op.outputs if name}
        self.reads = [sorted({made[n] for n in op.refs() if n in made}) for op in ops]
        self.users: list[list[int]] = [[] for _ in ops]
        for i, sources in enumerate(self.reads):
            for source in sources:
                self.users[source].append(i)
        self.of = list(range(len(ops)))
        self.members: dict[int, list[int]] = {i: [i] for i in range(len(ops))}
        self.fit: dict[int, Fit] = {}
        for i, op in enumerate(ops):
            fit = classify([op], values, set())
            assert fit is not None
            self.fit[i] = fit
        self._refused: set[tuple[int, int, int]] = set()

    # --- merging ------------------------------------------------------------------------------

    def merge_prologues(self) -> None:
        """Merge pointwise ops into the reduction, norm or scan that reads them."""
        changed = True
        while changed:
            changed = False
            for i in reversed(range(len(self.ops))):
                for source in self.reads[i]:
                    a, b = self.of[source], self.of[i]
                    pointwise = self.fit[a].kind == "pointwise" or self._constant(a)
                    if a != b and pointwise and self.fit[b].kind in ("rowwise", "scan"):
                        changed |= self._merge(a, b)

    def merge_neighbours(self, kinds: set[str]) -> None:
        """Merge along producer-consumer edges until nothing of these kinds merges any more."""
        changed = True
        while changed:
            changed = False
            for i in range(len(self.ops)):
                for source in self.reads[i]:
                    a, b = self.of[source], self.of[i]
                    if a != b and self._eligible(a, kinds) and self._eligible(b, kinds):
                        changed |= self._merge(a, b)

    def _eligible(self, cluster: int, kinds: set[str]) -> bool:
        return self.fit[cluster].kind in kinds or self._constant(cluster)

    def _constant(self, cluster: int) -> bool:
        return all(self.ops[i].name in NULLARY for i in self.members[cluster])

    def merge_siblings(self) -> None:
        """Merge groups that read the same tensor in the same space: it is then read once."""
        readers: dict[str, list[int]] = {}
        for i, op in enumerate(self.ops):
            for name in op.refs():
                readers.setdefault(name, []).append(i)
        for name, indices in readers.items():
            for i, j in pairwise(indices):
                a, b = self.of[i], self.of[j]
                if a == b or self._path(a, b) or self._path(b, a):
                    continue
                one, two = self.fit[a], self.fit[b]
                same = one == two and one.kind in ("pointwise", "rowwise")
                if same and self.values[name].numel >= _numel(one.space):
                    self._merge(a, b)

    def _merge(self, a: int, b: int) -> bool:
        members = sorted(self.members[a] + self.members[b])
        key = (a, b, len(members))
        if key in self._refused:
            return False
        group = [self.ops[i] for i in members]
        fit = classify(group, self.values, self.leaving(members))
        if fit is None or self._path(a, b, direct=False) or self._path(b, a, direct=False):
            self._refused.add(key)
            return False
        first, second = min(a, b), max(a, b)
        for i in self.members[second]:
            self.of[i] = first
        self.members[first] = members
        self.fit[first] = fit
        del self.members[second], self.fit[second]
        self._refused.clear()
        return True

    def _path(self, a: int, b: int, *, direct: bool = True) -> bool:
        """A path from cluster a to cluster b; with direct=False only one through a third."""
        last = self.members[b][-1]
        stack = [c for c in self._next(a) if c != b or direct]
        seen: set[int] = set(stack)
        while stack:
            cluster = stack.pop()
            if cluster == b:
                return True
            if self.members[cluster][0] > last:
                continue
            for c in self._next(cluster) - seen - {a}:
                seen.add(c)
                stack.append(c)
        return False

    def _next(self, cluster: int) -> set[int]:
        return {self.of[u] for i in self.members[cluster] for u in self.users[i]} - {cluster}

    # --- results ------------------------------------------------------------------------------

    def leaving(self, members: Sequence[int]) -> set[str]:
        """Values made by these ops that are read outside."""
        inside = set(members)
        names: set[str] = set()
        for i in members:
            readers = [self.ops[user] for user in self.users[i] if user not in inside]
            wanted = self.final | {name for op in readers for name in op.refs()}
            names |= {name for name in self.ops[i].outputs if name and name in wanted}
        return names

    def ordered(self) -> list[int]:
        """Clusters in topological order, ties by position in the program."""
        waiting = {c: len(self._before(c)) for c in self.members}
        ready = [c for c, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            cluster = heapq.heappop(ready)
            order.append(cluster)
            for c in self._next(cluster):
                waiting[c] -= 1
                if waiting[c] == 0:
                    heapq.heappush(ready, c)
        return order

    def _before(self, cluster: int) -> set[int]:
        return {self.of[s] for i in self.members[cluster] for s in self.reads[i]} - {cluster}

    def region(self, name: str, cluster: int) -> Region:
        members = self.members[cluster]
        ops = tuple(self.ops[i] for i in members)
        made = {n for op in ops for n in op.outputs if n}
        leaving = self.leaving(members)
        inputs = list(dict.fromkeys(n for op in ops for n in op.refs() if n not in made))
        outputs = [n for op in ops for n in op.outputs if n in leaving]
        fit = self.fit[cluster]
        return Region(
            id=name,
            kind=fit.kind,
            ops=ops,
            inputs=tuple(self.values[n] for n in inputs),
            outputs=tuple(self.values[n] for n in outputs),
            values={n: self.values[n] for n in [*inputs, *(n for op in ops for n in op.outputs)]
                    if n},
            space=fit.space,
            reduce_dims=fit.reduce_dims,
        )


def _numel(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
