"""Runs one model over shared inputs: the contestant's body, and the judge's for live baselines.

Both sides of a comparison are timed by this very code. Nothing here knows an expected value, a
tolerance or a seed of the inputs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cuda_agent.evaluation import activity, layout
from cuda_agent.evaluation.recorder import recorded
from cuda_agent.targets.base import Arena, Target

Forward = Callable[..., Any]


_RUN_AHEAD_CYCLES = 2_000_000  # 1 ms at 2 GHz
_LOOKED_AT = 4096  # elements of each output, right behind the forward
_THREADS_TURN_S = 5e-5  # for a CPU's other threads to run, where some still do


class BadOutput(TypeError):
    """The forward returned something else than plain, strided tensors."""


class UnjoinedWork(RuntimeError):
    """Outputs were still being written when the caller's stream was past the forward."""



class Session:
    """Arenas attached so far, and the forward to run over them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.forward: Forward | None = None
        self.before_call: Callable[[], None] | None = None
        self._sets: dict[int, tuple[Any, ...]] = {}
        self._outputs: list[list[torch.Tensor]] = []
        self._spares: list[torch.Tensor] = []
        self._positions: list[torch.Tensor] = []
        self._arenas: list[Arena] = []
        self._pad: torch.Tensor | None = None
        self._events: tuple[Any, Any] | None = None

    # --- arenas ---------------------------------------------------------------------------------

    def attach_inputs(
        self, index: int, arena: Arena, tree: Any, slots: Sequence[Any], private: bool
    ) -> None:
        """`private`: each tensor in an allocation of its own, as a sanitizer watches them."""
        self._arenas.append(arena)
        views = layout.views(arena, slots)
        args = layout.rebuild(tree, [t.clone() for t in views] if private else views)
        self._sets[index] = args if isinstance(args, tuple) else tuple(args)

    def attach_outputs(
        self, arena: Arena, slots: Sequence[Any], count: int, step: int, pad: int
    ) -> None:
        """`count` places for one forward's outputs, `step` bytes apart. `pad` bytes are allocated
        before the forward's own outputs are, so that these come to lie elsewhere than before."""
        self._arenas.append(arena)
        self._outputs = [layout.views(arena, slots, i * step) for i in range(count)]
        self._spares = []
        if self.target.torch_device().type == "cuda":
            torch.cuda.empty_cache()
        self._positions = [
            torch.randint(t.numel(), (min(_LOOKED_AT, t.numel()),), device=t.device)
            for t in self._outputs[0]
        ]
        self._pad = torch.empty(pad, dtype=torch.uint8, device=self.target.torch_device())

    def drop(self) -> None:
        """Let go of every arena."""
        self._sets.clear()
        self._outputs = []
        self._spares = []
        self._positions = []
        self.target.synchronize()
        for arena in self._arenas:
            arena.close()
        self._arenas.clear()

    # --- running --------------------------------------------------------------------------------

    def run(self, index: int, slot: int, record: bool) -> dict[str, Any]:
        """One forward over set `index`, its outputs copied to `slot`.

        `record`: list the ATen operators that were called (views and allocations left out).
        """
        ops: set[str] = set()
        with contextlib.ExitStack() as watching:
            if record:
                ops = watching.enter_context(recorded())
            out = self._call(self._sets[index])
        self._wait(out)
        return {**self._deliver(out, slot), "ops": sorted(ops)}

    def prepare(self) -> None:
        """Evict the caches, and wait."""
        self.target.flush_cache()
        self.target.synchronize()

    def call(self, index: int, slot: int) -> dict[str, Any]:
        """One timed forward. `ms` runs from an idle device to an idle device."""
        args = self._sets[index]
        if self.target.torch_device().type == "cuda":
            out, ms = self._timed_cuda(args)
        else:
            start = time.perf_counter_ns()
            out = self._call(args)
            ms = (time.perf_counter_ns() - start) / 1e6
            self._wait(out)
        return {**self._deliver(out, slot), "ms": ms}

    def burst(
        self, indices: Sequence[int], slots: Sequence[int], copy_only: bool
    ) -> dict[str, Any]:
        """Forwards back to back, each one's outputs copied to its slot. `copy_only`: the copies
        alone, of something else, so that their cost can be taken off."""
        copied = True
        out: Any = self._spare_outputs() if copy_only else None
        for index, slot in zip(indices, slots, strict=True):
            result = out if copy_only else self._call(self._sets[index])
            copied = self._copy(result, slot) and copied
        self.target.synchronize()
        return {"copied": copied}

    def _spare_outputs(self) -> Any:
        """Tensors like the outputs, in their structure's order; made once."""
        if not self._spares:
            self._spares = [t.clone() for t in self._outputs[0]]
        return self._spares

    def trace(self, index: int) -> dict[str, Any]:
        """One forward with cold caches under the device's tracer; its outputs go nowhere."""
        self.prepare()
        return {"activity": activity.trace(lambda: self._call(self._sets[index]))}

    def _call(self, args: tuple[Any, ...]) -> Any:
        if self.forward is None:
            raise RuntimeError("no model is loaded")
        if self.before_call is not None:
            self.before_call()
        with torch.no_grad():
            return self.forward(*args)

    def _timed_cuda(self, args: tuple[Any, ...]) -> tuple[Any, float]:
        if self._events is None:
            self._events = (
                torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            )
        start, end = self._events
        torch.cuda.synchronize()
        # The device is kept busy while the host enqueues the forward, as in a stream of work: up
        # to a millisecond of launch latency hides, for candidates and baselines alike. Without
        # it, torch.compile's guards and launches alone made it look 0.15 ms slower than eager.
        torch.cuda._sleep(_RUN_AHEAD_CYCLES)
        self.target.flush_cache()
        start.record()
        out = self._call(args)
        end.record()
        self._wait(out)
        return out, start.elapsed_time(end)

    def _wait(self, out: Any) -> None:
        """For the device. Some elements are read right behind the forward (on a GPU in stream
        order), and again when every stream is idle: they differ where work went to a stream or a
        thread that the caller's does not wait for, which no clock beside the forward would time."""
        early = self._look(out)
        if self.target.torch_device().type == "cpu":
            time.sleep(_THREADS_TURN_S)
        self.target.synchronize()
        if early and not layout.identical(early, self._look(out)):
            cuda = self.target.torch_device().type == "cuda"
            raise UnjoinedWork(
                "A1: outputs were still being written when the current stream was past forward: "
                "it must wait for every stream that forward uses" if cuda else
                "A2: outputs were still being written when forward had returned: it must join "
                "every thread that it starts"
            )

    def _look(self, out: Any) -> list[torch.Tensor]:
        """Elements at positions that no forward knows; outputs of a wrong form are left out."""
        tensors: list[torch.Tensor] = []
        if self._positions:
            layout.describe(out, tensors)
        return [
            torch.take(t.detach(), at)
            for t, at, place in zip(tensors, self._positions, self._outputs[0])
            if t.layout == torch.strided and (t.shape, t.device) == (place.shape, place.device)
        ] if self._positions else []

    def _deliver(self, out: Any, slot: int) -> dict[str, Any]:
        tensors: list[torch.Tensor] = []
        tree = layout.describe(out, tensors)
        for t in tensors:
            if type(t) not in (torch.Tensor, torch.nn.Parameter):
                kind = f"{type(t).__module__}.{type(t).__qualname__}"
                raise BadOutput(f"A3: forward returned a {kind}; plain torch.Tensor is required")
            if vars(t):
                raise BadOutput(
                    f"A4: forward returned a tensor with attributes of its own {sorted(vars(t))}; "
                    "plain torch.Tensor is required"
                )
            if t.layout != torch.strided:
                raise BadOutput(f"form: forward returned a {t.layout} tensor; it must be strided")
        specs = [
            {
                "shape": list(t.shape), "dtype": layout.dtype_name(t.dtype),
                "type": "Tensor", "device": t.device.type,
            }
            for t in tensors
        ]
        copied = self._copy(tensors, slot)
        self.target.synchronize()
        return {"tree": tree, "specs": specs, "copied": copied}

    def _copy(self, out: Any, slot: int) -> bool:
        """Copy outputs whose form is as expected; the judge refuses the others by their specs."""
        tensors: list[torch.Tensor] = []
        layout.describe(out, tensors)
        places = self._outputs[slot]
        fits = len(tensors) == len(places) and all(
            a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
            for a, b in zip(tensors, places)
        )
        if fits:
            for place, t in zip(places, tensors):
                place.copy_(t.detach())
        return fits
