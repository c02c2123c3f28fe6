"""One side of a comparison: a contestant (or the judge's own baseline) and the arenas it maps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from cuda_agent.errors import ContestantFailure, HarnessError
from cuda_agent.evaluation import activity, layout
from cuda_agent.evaluation.session import Session
from cuda_agent.records import Activity
from cuda_agent.targets.base import Arena, Target


class Client(Protocol):
    """Who runs the forward: process.Contestant, or LocalClient in the judge's own process."""

    alive: bool

    @property
    def pid(self) -> int | None:
        """Of its process; None in the judge's own."""

    def answers(self) -> bool:
        """Whether it is still there."""

    def request(
        self, op: str, seconds: float, fds: Iterable[int] = (), **fields: Any
    ) -> Mapping[str, Any]: ...

    def kill(self) -> None: ...


class LocalClient:
    """The same requests answered in this process: for live modules, which no file can rebuild."""

    def __init__(self, target: Target, threads: int) -> None:
        self.session = Session(target)
        self.alive = True
        self.pid = None
        self._threads = threads
        self._cpu = target.torch_device().type == "cpu"

    def request(
        self, op: str, seconds: float, fds: Iterable[int] = (), **fields: Any
    ) -> Mapping[str, Any]:
        if op == "inputs":
            self.session.attach_inputs(
                fields["set"], fields["arena"], fields["tree"], fields["slots"], fields["private"]
            )
        elif op == "outputs":
            self.session.attach_outputs(
                fields["arena"], fields["slots"], fields["count"], fields["step"], fields["pad"]
            )
        elif op == "drop":
            self.session.drop()
        elif op == "prepare":
            self.session.prepare()
        else:
            return self._run(op, fields)
        return {}

    def answers(self) -> bool:
        return self.alive

    def _run(self, op: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The judge keeps its own thread count at one while it times others; here all count."""
        before = torch.get_num_threads()
        if self._cpu:
            torch.set_num_threads(self._threads)
        try:
            if op == "run":
                return self.session.run(fields["set"], fields["slot"], fields["record"])
            if op == "call":
                return self.session.call(fields["set"], fields["slot"])
            if op == "trace":
                return self.session.trace(fields["set"])
            if op == "burst":
                return self.session.burst(fields["sets"], fields["slots"], fields["copy_only"])
        finally:
            if self._cpu:
                torch.set_num_threads(before)
                time.sleep(0.025)  # idle OpenMP threads spin for a while before they sleep
        raise HarnessError(f"no local request {op}")

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.session.drop()


@dataclass
class Sample:
    """One timed call: by the clock beside the forward, and by the judge's from outside, which
    also counts the copy of the outputs and the exchange of messages."""

    event_ms: float
    outside_ms: float
    answer: Mapping[str, Any] = field(repr=False)


class Entrant:
    """Inputs go in, one timed call or a burst is run, outputs come back.

    The judge owns every arena. `deadline_s` bounds each exchange.
    """

    def __init__(
        self, client: Client, target: Target, deadline_s: float, trusted: bool = False
    ) -> None:
        self.client = client
        self.trusted = trusted
        self.target = target
        self.deadline_s = deadline_s
        self._inputs: dict[int, list[torch.Tensor]] = {}
        self._owned: list[Arena] = []
        self._places: list[list[torch.Tensor]] = []

    def _ask(
        self, op: str, fds: Iterable[int] = (), within_s: float | None = None, **fields: Any
    ) -> Mapping[str, Any]:
        """A request. What goes wrong in a baseline is no candidate's fault."""
        try:
            return self.client.request(op, within_s or self.deadline_s, fds, **fields)
        except ContestantFailure as error:
            if not self.trusted:
                raise
            self.client.kill()
            raise HarnessError(f"a baseline failed ({error.status}): {error}") from error

    # --- arenas ---------------------------------------------------------------------------------

    def _share(self, arena: Arena) -> tuple[Any, list[int]]:
        if isinstance(self.client, LocalClient):
            return arena, []
        return arena.handle(), [] if arena.fd is None else [arena.fd]

    def place_inputs(
        self, index: int, tree: layout.Tree, tensors: Sequence[torch.Tensor],
        arena: Arena | None = None, private: bool = False,
    ) -> Arena:
        """Attach set `index` in an arena of its own, or in one shared with other entrants."""
        slots, nbytes = layout.plan(tensors)
        made = arena or self.target.arena(nbytes)
        views = layout.views(made, slots)
        if arena is None:
            self._owned.append(made)
            for view, t in zip(views, tensors):
                view.copy_(t)
        self.target.synchronize()
        handle, fds = self._share(made)
        self._ask(
            "inputs", fds, set=index, arena=handle, tree=tree, slots=slots, private=private
        )
        self._inputs[index] = views
        return made

    def write(self, index: int, tensors: Sequence[torch.Tensor]) -> None:
        """New contents at the same addresses."""
        for view, t in zip(self._inputs[index], tensors, strict=True):
            view.copy_(t)
        self.target.synchronize()

    def inputs(self, index: int) -> list[torch.Tensor]:
        """What lies in the arena now: the forward may have changed it."""
        return self._inputs[index]

    def place_outputs(self, forms: Sequence[torch.Tensor], count: int, pad: int = 0) -> None:
        """Room for `count` sets of outputs like `forms` (meta tensors)."""
        slots, nbytes = layout.plan(forms)
        step = max(nbytes, layout.ALIGNMENT)
        arena = self.target.arena(count * step)
        handle, fds = self._share(arena)
        self._ask("outputs", fds, arena=handle, slots=slots, count=count, step=step, pad=pad)
        self._owned.append(arena)
        self._places = [layout.views(arena, slots, i * step) for i in range(count)]

    @property
    def slot_count(self) -> int:
        return len(self._places)

    def outputs(self, slot: int) -> list[torch.Tensor]:
        return self._places[slot]

    def poison(self, slot: int) -> None:
        layout.poison(self._places[slot])
        self.target.synchronize()

    # --- running --------------------------------------------------------------------------------

    def run(
        self, index: int, slot: int = 0, record: bool = False, seconds: float | None = None
    ) -> Mapping[str, Any]:
        """One forward that is not timed. `seconds`: instead of the deadline, for a first one."""
        self.poison(slot)
        return self._ask("run", within_s=seconds, set=index, slot=slot, record=record)

    def prepare(self) -> None:
        """Cold caches. A CPU's are flushed by the judge, with one thread: nothing of OpenMP may
        be left spinning when the call is timed. A GPU's L2 by the process that runs, so that
        its context is the one on the device."""
        if self.target.torch_device().type == "cpu":
            self.target.flush_cache()
        else:
            self._ask("prepare")

    def call(self, index: int, slot: int = 0) -> Sample:
        start = time.perf_counter_ns()
        answer = self._ask("call", set=index, slot=slot)
        outside = (time.perf_counter_ns() - start) / 1e6
        return Sample(float(answer["ms"]), outside, answer)

    def burst(self, indices: Sequence[int], copy_only: bool = False) -> float:
        """Milliseconds of the judge's clock for forwards back to back, outputs to slots 0, 1..."""
        slots = [i % self.slot_count for i in range(len(indices))]
        start = time.perf_counter_ns()
        self._ask("burst", sets=list(indices), slots=slots, copy_only=copy_only)
        return (time.perf_counter_ns() - start) / 1e6

    def trace(self, index: int) -> Activity | None:
        """What one forward does on the device. None where nothing can be traced."""
        return activity.record(self._ask("trace", set=index))

    def drop(self) -> None:
        """Detach everything and free what this entrant owns."""
        if self.client.alive:
            with contextlib.suppress(Exception):
                self._ask("drop")
        self.forget()

    def forget(self) -> None:
        """Free the arenas on the judge's side; the process that mapped them is gone or has
        dropped them."""
        self._places = []
        self._inputs.clear()
        for arena in self._owned:
            arena.close()
        self._owned.clear()
