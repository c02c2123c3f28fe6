"""What a composition must pass to become a problem, cheapest first.

Execution filters run in worker processes (`crew.py`): eager and compiled, on the device, in the
problem's dtype, with TF32 off. Thresholds are relative errors against the spread of the output
(`problems.probes.relative_error`), so that small or shifted outputs are judged like others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from cuda_agent.errors import ProblemError, ProblemTooLarge
from cuda_agent.problems import Instance, materialize, tree
from cuda_agent.problems.probes import TOLERANCE, close, examine, relative_error
from cuda_agent.records import Problem
from cuda_agent.synthesis.turns import Turns

FILTERS = {
    "draw": "the grammar found no valid composition (shapes, sizes or memory)",
    "duplicate": "an earlier draw has the same operators, joined alike, same layout and dtype",
    "similar": "AST similarity of Model to a problem to be avoided is above 0.9",
    "memory": "does not fit the device",
    "eager": "raises in eager mode",
    "random": "two runs on the same inputs are not equal bit for bit",
    "constant": "the elements of an output are all the same",
    "indistinguishable": "outputs for different inputs agree within 1% of their spread",
    "probes": "a probe of the judge refuses it: NaN or infinities, zeros, an input handed back",
    "time": "eager time is outside the window",
    "compile": "torch.compile fails, or answers otherwise than eager",
    "crash": "the process died",
    "hang": "the process overran its deadline",
}
"""Name -> why it rejects, in the order in which they run (a crash or hang may come any time)."""

SIMILARITY = 0.9
_SAME = 1e-2  # of the spread
_FLAT = 1e-4  # standard deviation over root mean square
_COMPILED = {torch.float32: 1e-2, torch.bfloat16: 1e-1, torch.float16: 3e-2}
_SEEDS = (10_007, 30_011)
_TIMED_S = 0.03  # about as much of running in the time filter
_CALLS = (3, 10)


@dataclass(frozen=True)
class Outcome:
    """`rejected` is a key of FILTERS, or "" for a candidate that passed; `seconds` by filter."""

    rejected: str = ""
    detail: str = ""
    eager_ms: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Rejected(Exception):
    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(name, detail)
        self.name, self.detail = name, detail


def execute_filters(
    problem: Problem, device: str, window_ms: tuple[float, float], turns: Turns
) -> Outcome:
    """Runs a problem's reference through all filters from `memory` to `compile`."""
    watch = _Watch()
    eager_ms = None
    try:
        with turns.shared():
            with watch("eager"):
                instance = _instance(problem, device)
                inputs, outs = _outputs(instance, watch)
            with watch("probes"):
                _check(instance, inputs, *outs)
            first = outs[0]
            del outs
        with turns.alone(), watch("time"):
            eager_ms = time_ms(lambda: instance.model(*inputs), instance.device)
        if not window_ms[0] <= eager_ms <= window_ms[1]:
            raise _Rejected("time", f"{eager_ms:.3g} ms")
        with watch("compile"):
            _compiles(instance, inputs, first)
    except _Rejected as no:
        return Outcome(no.name, no.detail, eager_ms, watch.seconds)
    except torch.OutOfMemoryError as error:
        return Outcome("memory", str(error).split("\n")[0], eager_ms, watch.seconds)
    return Outcome("", "", eager_ms, watch.seconds)


class _Watch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[name] = round(self.seconds.get(name, 0.0) + spent, 4)


def _instance(problem: Problem, device: str) -> Instance:
    try:
        return materialize(problem, device)
    except ProblemTooLarge as error:
        raise _Rejected("memory", str(error)) from error
    except ProblemError as error:
        raise _Rejected("eager", str(error)) from error


def _outputs(instance: Instance, watch: _Watch) -> tuple[tuple[Any, ...], tuple[Any, Any, Any]]:
    """One set of inputs; the outputs of it twice, and those of another."""
    try:
        inputs = instance.inputs(_SEEDS[0])
        first = instance.reference(inputs)
        with watch("random"):
            again = instance.reference(inputs)
            pairs = zip(tree.tensors(first), tree.tensors(again))
            if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs):
                raise _Rejected("random")
        other = instance.reference(instance.inputs(_SEEDS[1]))
    except ProblemError as error:
        raise _Rejected("eager", str(error)) from error
    return inputs, (first, again, other)


def _check(instance: Instance, inputs: Any, first: Any, again: Any, other: Any) -> None:
    outs, others = tree.tensors(first), tree.tensors(other)
    if not all(t.is_floating_point() for t in outs):
        raise _Rejected("constant", "an output is not of floating type")
    finite = all(bool(t.isfinite().all()) for t in (*outs, *others))
    if finite and (flat := [i for i, t in enumerate(outs) if _flat(t)]):
        raise _Rejected("constant", f"output {flat[0]}")
    if finite and close(others, outs, _SAME):
        raise _Rejected("indistinguishable")
    if found := examine(inputs, first, again, other, TOLERANCE[instance.dtype]):
        raise _Rejected("probes", "; ".join(f"{f.id}: {f.detail}" for f in found))


def _flat(t: torch.Tensor) -> bool:
    values = t.float()
    return t.numel() > 1 and float(values.std()) <= _FLAT * float(values.square().mean().sqrt())


def time_ms(call: Callable[[], Any], device: torch.device) -> float:
    """Least time of 3 to 10 eager calls, after one to warm up.

    The least, because processes that compile meanwhile also run their kernels.
    """

    def once() -> float:
        start = time.perf_counter()
        with torch.no_grad():
            call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    once()
    times = [once()]
    low, high = _CALLS
    count = min(max(low, int(_TIMED_S / max(times[0], 1e-9))), high)
    times += [once() for _ in range(count - 1)]
    return 1e3 * min(times)


def _compiles(instance: Instance, inputs: tuple[Any, ...], expected: Any) -> None:
    torch._dynamo.reset()
    try:
        with torch.no_grad():
            got = torch.compile(instance.model)(*inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise _Rejected("compile", f"{type(error).__name__}: {error}".split("\n")[0]) from error
    limit = _COMPILED[instance.dtype]
    pairs = list(zip(tree.tensors(got), tree.tensors(expected)))
    if not close([a for a, _ in pairs], [b for _, b in pairs], limit):
        worst = max(relative_error(a, b) for a, b in pairs if a.shape == b.shape)
        raise _Rejected("compile", f"differs from eager by {worst:.1e} of the spread")
