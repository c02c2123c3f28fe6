"""What the judge hands to a contestant: files, constructor arguments, weights."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import ProblemError
from cuda_agent.evaluation import layout
from cuda_agent.evaluation.entrant import Client
from cuda_agent.evaluation.settings import Settings
from cuda_agent.problems import Instance, import_roots
from cuda_agent.targets.base import Target

State = tuple[Sequence[str], Sequence[str], Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Staged:
    """Files of one entrant on disk. `cache` is the only build cache that it sees."""

    folder: Path
    entry: str
    class_name: str
    form: str
    cache: Path
    problem_file: Path


class Handover:
    """Loads entrants' files into their processes, with the reference's constructor arguments."""

    def __init__(
        self, instance: Instance, settings: Settings, target: Target, threads: int
    ) -> None:
        self.instance = instance
        self.settings = settings
        self.target = target
        self.threads = threads

    def load(
        self, client: Client, staged: Staged, state: State, seconds: float,
        seed: int | None = None, compile_mode: str | None = None,
    ) -> Mapping[str, Any]:
        """Build the model and copy `state` (see Reference.state) into it.

        Returns {"missing": ..., "unexpected": ...}, names of the state_dict that differ; then the
        weights are those that `seed` gave.
        """
        fields, fds, arena = self._state_fields(state)
        problem, roots = self.instance.problem, self._roots()
        if staged.form == "pickled":  # its classes come from wherever the caller has them
            roots = tuple(path for path in sys.path if path)
        try:
            return client.request(
                "load", seconds, fds,
                folder=str(staged.folder), entry=staged.entry, class_name=staged.class_name,
                form=staged.form, cache=str(staged.cache), compile_mode=compile_mode,
                seed=self.instance.seed if seed is None else seed, dtype=problem.dtype,
                precision=self.settings.precision, threads=self.threads,
                import_roots=list(roots),
                init=self._init(), init_from=str(staged.problem_file), state=fields,
            )
        finally:
            if arena is not None:
                arena.close()

    def confine(self, client: Client, staged: Staged, seconds: float) -> None:
        """Leave the client's process the files of `staged` and what any program needs, no more."""
        readable = [*self._roots(), str(staged.problem_file)]
        writable = [str(staged.folder), str(staged.cache)]
        client.request("confine", seconds, readable=readable, writable=writable)

    def _roots(self) -> Sequence[str]:
        problem = self.instance.problem
        return import_roots(problem) if problem.kind == "file" else ()

    def set_state(self, client: Client, state: State, seconds: float) -> Mapping[str, Any]:
        """Other weights for the loaded model, through load_state_dict."""
        fields, fds, arena = self._state_fields(state)
        if fields is None:
            return {"missing": [], "unexpected": []}
        try:
            return client.request("state", seconds, fds, **fields)
        finally:
            if arena is not None:
                arena.close()

    def _state_fields(self, state: State) -> tuple[dict[str, Any] | None, list[int], Any]:
        """Weights in an arena of their own, made anew each time: no process keeps a way to the
        weights that another one will get."""
        names, extra, tensors = state
        if not tensors:
            return None, [], None
        slots, nbytes = layout.plan(tensors)
        arena = self.target.arena(nbytes)
        for view, t in zip(layout.views(arena, slots), tensors):
            view.copy_(t)
        self.target.synchronize()
        fields = {
            "names": list(names), "extra": list(extra), "slots": slots, "arena": arena.handle(),
            "assign": self.instance.problem.kind == "live",
        }
        return fields, [] if arena.fd is None else [arena.fd], arena

    def _init(self) -> layout.Tree | None:
        """Constructor arguments as literals; None where they hold more (the contestant then asks
        the problem's own text)."""
        if self.instance.problem.kind == "live":
            return layout.describe(([], {}), [])
        tensors: list[torch.Tensor] = []
        try:
            made = layout.describe(
                (list(self.instance.init_inputs), dict(self.instance.init_kwargs)), tensors
            )
        except ProblemError:
            return None
        return None if tensors else made


def frozen_state(state: State) -> State:
    """Copies that no later change of the model reaches."""
    names, extra, tensors = state
    return names, extra, [t.clone() for t in tensors]
