"""Eager and torch.compile in its modes, each in a trusted process of its own.

They run the code that times candidates, in the same kind of process, with the same threads and
environment. A live module goes there by pickle (this way only: nothing pickled ever comes back);
one that can't, e.g. of a notebook's class, is timed in the judge's process. A baseline that fails
is missing, and the reason is kept; it is never 1.0.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import CudaAgentError
from cuda_agent.evaluation import profile
from cuda_agent.evaluation.entrant import Entrant, LocalClient
from cuda_agent.evaluation.handover import Handover, Staged
from cuda_agent.evaluation.lock import device_lock
from cuda_agent.evaluation.process import Pool
from cuda_agent.evaluation.reference import Reference
from cuda_agent.evaluation.settings import Settings
from cuda_agent.problems import Instance
from cuda_agent.records import BASELINES, Interval, Timing, content_hash
from cuda_agent.targets.base import Target

MODES: Mapping[str, str | None] = {
    "eager": None,
    "compile_default": "default",
    "compile_reduce_overhead": "reduce-overhead",
    "compile_max_autotune": "max-autotune",
}


class Baselines:
    """Entrants by baseline name, started when first asked for and kept."""

    def __init__(
        self, instance: Instance, reference: Reference, settings: Settings, target: Target,
        handover: Handover, pool: Pool, work: Path, cache: Path, device: str,
    ) -> None:
        self._instance = instance
        self._reference = reference
        self._settings = settings
        self._target = target
        self._handover = handover
        self._pool = pool
        self._work = work
        self._cache = cache
        self._device = device
        self._entrants: dict[str, Entrant] = {}
        self.missing: dict[str, str] = {}
        self._unpicklable = False

    def entrants(self, names: Sequence[str]) -> dict[str, Entrant]:
        """Those of `names` that work, eager always first. `missing` says why others do not.

        The longest compilations come last and share one time limit: what is not done when it is
        over is missing.
        """
        end: float | None = None
        wanted = ["eager", *(n for n in BASELINES if n in names and n != "eager")]
        for name in wanted:
            held = self._entrants.get(name)
            if held is not None and not held.client.answers():
                held.forget()
                del self._entrants[name]
            if name in self._entrants or name in self.missing:
                continue
            if end is None and MODES[name] is not None:
                end = time.monotonic() + self._settings.compile_deadline_s
            left = 0.0 if end is None else end - time.monotonic()
            if MODES[name] is not None and left <= 0:
                self.missing[name] = "no time was left to compile it"
                continue
            # Compiling may take minutes and uses the device little: others may have it meanwhile.
            # Only where kernels compete by their times must nobody disturb.
            alone = name == "compile_max_autotune"
            with device_lock(self._device) if alone else contextlib.nullcontext():
                self._start(name, left)
        return {n: self._entrants[n] for n in wanted if n in self._entrants}

    def _start(self, name: str, seconds: float) -> None:
        deadline = float(self._settings.deadline_s or 10.0)
        if MODES[name] is None:  # nothing to compile
            seconds = max(seconds, deadline)
        entrant: Entrant | None = None
        try:
            client = self._client(name, seconds)
            entrant = Entrant(client, self._target, seconds, trusted=True)
            entrant.place_inputs(0, *self._reference.inputs())
            entrant.place_outputs(self._reference.forms, 1)
            entrant.run(0)  # compiles
            entrant.drop()
            entrant.deadline_s = 10 * deadline
            self._entrants[name] = entrant
        except (CudaAgentError, RuntimeError, MemoryError) as error:
            if entrant is not None:
                entrant.client.kill()
                entrant.forget()
            self.missing[name] = profile.failed_baseline(error)

    def _client(self, name: str, seconds: float) -> Any:
        problem = self._instance.problem
        staged = self._stage()
        if staged is not None:
            contestant = self._pool.fresh()
            try:
                state = self._reference.state() if problem.kind == "file" else ([], [], [])
                self._handover.load(contestant, staged, state, seconds, compile_mode=MODES[name])
                return contestant
            except BaseException:
                contestant.kill()
                if problem.kind == "file" or MODES[name] is not None:
                    raise
                self._unpicklable = True  # its class cannot be imported elsewhere
        client = LocalClient(self._target, self._handover.threads)
        client.session.forward = self._live(MODES[name])
        if MODES[name] and self._target.torch_device().type == "cuda":
            client.session.before_call = torch.compiler.cudagraph_mark_step_begin
        return client

    def _stage(self) -> Staged | None:
        """The reference on disk; None for a live module that cannot be pickled."""
        problem, folder = self._instance.problem, self._work / "reference"
        builds, file = self._cache / "baseline-builds", folder / "problem.py"
        folder.mkdir(exist_ok=True)
        if problem.kind == "file":
            file.write_text(problem.source)
            return Staged(folder, "problem.py", "Model", "single", builds, file)
        if not self._unpicklable and not (folder / "module.pt").exists():
            try:
                torch.save(self._instance.model, folder / "module.pt")
            except Exception:  # pickle raises whatever a __reduce__ raises
                self._unpicklable = True
        if self._unpicklable:
            return None
        return Staged(folder, "module.pt", "", "pickled", builds, file)

    def _live(self, mode: str | None) -> Any:
        if mode is None:
            return self._instance.model
        return torch.compile(self._instance.model, mode=None if mode == "default" else mode)

    def release(self, names: Sequence[str]) -> None:
        """Ends their processes; asked for again, they start again."""
        for name in names:
            if name in self._entrants:
                entrant = self._entrants.pop(name)
                entrant.client.kill()
                entrant.forget()

    def close(self) -> None:
        self.release(list(self._entrants))


class BaselineStore:
    """Measured baselines on disk, keyed by problem, device, driver, torch and precision."""

    def __init__(
        self, folder: Path, instance: Instance, settings: Settings, target: Target
    ) -> None:
        facts = target.environment()
        volatile = {"sm_clock_mhz", "python", "system"}
        self.key = content_hash(
            instance.problem.hash, settings.precision, settings.threads,
            {k: v for k, v in facts.items() if k not in volatile},
        )
        self._path = folder / f"{self.key}.json"

    def load(self) -> tuple[dict[str, Timing], dict[str, Interval], dict[str, str]] | None:
        """(times, ratios of each compiled baseline's time to eager's, reasons of missing ones)."""
        try:
            data = json.loads(self._path.read_text())
            timings = {k: Timing.from_json(v) for k, v in data["timings"].items()}
            ratios = {k: Interval.from_json(v) for k, v in data["ratios"].items()}
            return timings, ratios, dict(data["missing"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(
        self,
        timings: Mapping[str, Timing],
        ratios: Mapping[str, Interval],
        missing: Mapping[str, str],
    ) -> None:
        """Atomically, added to what is there. A full disk only means measuring again."""
        held = self.load() or ({}, {}, {})
        data = {
            "timings": {k: v.to_json() for k, v in {**held[0], **timings}.items()},
            "ratios": {k: v.to_json() for k, v in {**held[1], **ratios}.items()},
            "missing": {**held[2], **missing},
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, partial = tempfile.mkstemp(dir=self._path.parent, suffix=".tmp")
            with os.fdopen(handle, "w") as file:
                json.dump(data, file)
            os.replace(partial, self._path)
        except OSError:
            return
