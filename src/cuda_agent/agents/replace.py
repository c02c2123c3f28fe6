"""A solution inside a larger model: replace what is like the optimized module, check the whole."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cuda_agent.agents.binding import bind
from cuda_agent.errors import CandidateError, SettingsError
from cuda_agent.problems import Instance, tree
from cuda_agent.problems.probes import relative_error
from cuda_agent.records import Candidate, Verdict

# Relative error of a whole model's output against what it was. Each layer adds rounding, so these
# are an order of magnitude above what the judge lets a single module pass.
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2, "float16": 1e-2}
REDUCED_FLOAT32 = 1e-2
"""For float32 where the precision policy allows TF32 products."""

_Form = tuple[Any, ...]


@dataclass
class Applied:
    """`replaced` paths; `skipped` path -> reason; `error` is the relative error of the whole
    model's output, None until it was checked, and `tolerance` what it may be."""

    replaced: list[str]
    skipped: dict[str, str]
    tolerance: float
    error: float | None = None


@dataclass
class Replacement:
    """One `apply`: the pairs of old and new submodules, and the check."""

    model: nn.Module
    candidate: Candidate
    instance: Instance
    verdict: Verdict
    tolerance: float | None
    _pairs: dict[str, tuple[nn.Module, nn.Module]] = field(default_factory=dict)

    def apply(self, example_inputs: Sequence[Any] | None) -> Applied:
        """See api.Solution.apply."""
        if self.model.training:
            raise SettingsError("the model is in training mode; call model.eval() first.")
        report = Applied([], {}, self._bound())
        self._match(report)
        if not self._pairs:
            raise SettingsError(self._nothing(report))
        if example_inputs is not None:
            self._settle(tuple(example_inputs), {}, report)
            return report
        self._swap(new=True)
        report.replaced = list(self._pairs)

        def first_call(module: nn.Module, args: Any, kwargs: Any) -> None:
            hook.remove()
            self._settle(args, kwargs, report)

        hook = self.model.register_forward_pre_hook(first_call, with_kwargs=True)
        return report

    def _bound(self) -> float:
        if self.tolerance is not None:
            return self.tolerance
        dtype = self.instance.problem.dtype
        if dtype == "float32" and self.verdict.precision != "strict":
            return REDUCED_FLOAT32
        return TOLERANCE[dtype]

    def _match(self, report: Applied) -> None:
        wanted = self.instance.model
        for path, part in self.model.named_modules(remove_duplicate=False):
            if type(part) is not type(wanted) or not path:
                continue
            if _tensors(part) != _tensors(wanted):
                report.skipped[path] = "its parameters have other shapes, dtypes or devices"
            elif _settings(part) != _settings(wanted):
                report.skipped[path] = "it has other settings"
            else:
                self._pairs[path] = (part, bind(self.candidate, part, self.instance))

    def _nothing(self, report: Applied) -> str:
        name = type(self.instance.model).__name__
        if type(self.model) is type(self.instance.model):
            return f"the model is itself a {name}; use solution.module in its place."
        if not report.skipped:
            return f"the model holds no {name}."
        reasons = "; ".join(f"{path}: {why}" for path, why in report.skipped.items())
        return f"no {name} in the model is like the optimized one ({reasons})."

    def _settle(self, args: Any, kwargs: Any, report: Applied) -> None:
        """Run the model as it was and as it will be, on the same inputs; keep what passes."""
        self._swap(new=False)
        with torch.no_grad(), self._calls() as calls:
            expected = self._run(args, kwargs)
        own = _form(_bound_call(self.instance.model, self.instance.inputs(self.instance.seed), {}))
        for path in list(self._pairs):
            seen = calls[path]
            if seen != {own}:
                report.skipped[path] = (
                    "the model does not call it" if not seen
                    else "it is called with inputs of other shapes, dtypes or values"
                )
                del self._pairs[path]
        report.replaced = list(self._pairs)
        if not self._pairs:
            message = self._nothing(report)
            raise SettingsError(message)
        self._swap(new=True)
        try:
            with torch.no_grad():
                got = self._run(args, kwargs)
            report.error = _difference(got, expected)
        except BaseException:
            self._swap(new=False)
            raise
        if not report.error <= report.tolerance:
            self._swap(new=False)
            raise CandidateError(
                f"with {len(report.replaced)} submodules replaced the model's output differs by "
                f"{report.error:.2e} (relative), and {report.tolerance:.0e} is allowed; the model "
                "is as it was."
            )
        if report.skipped:
            skipped = "; ".join(f"{path}: {why}" for path, why in report.skipped.items())
            warnings.warn(f"not replaced: {skipped}", stacklevel=3)

    def _run(self, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """On copies: a forward may write to its inputs."""
        return self.model.forward(
            *tree.map_tensors(torch.Tensor.clone, tuple(args)),
            **{k: tree.map_tensors(torch.Tensor.clone, v) for k, v in kwargs.items()},
        )

    def _swap(self, *, new: bool) -> None:
        for path, pair in self._pairs.items():
            parent, _, leaf = path.rpartition(".")
            self.model.get_submodule(parent)._modules[leaf] = pair[new]

    @contextlib.contextmanager
    def _calls(self) -> Iterator[dict[str, set[_Form]]]:
        """The forms of all calls of the old submodules, by path."""
        calls: dict[str, set[_Form]] = {path: set() for path in self._pairs}
        hooks = []
        for path, (old, _) in self._pairs.items():

            def note(part: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
                calls[path].add(_form(_bound_call(part, args, kwargs)))

            hooks.append(old.register_forward_pre_hook(note, with_kwargs=True))
        try:
            yield calls
        finally:
            for hook in hooks:
                hook.remove()


def _bound_call(part: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(part.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _form(arguments: Mapping[str, Any]) -> _Form:
    """What a kernel was built for: shapes and dtypes of tensors, values of everything else."""
    form: list[Any] = []
    for name, value in arguments.items():
        for path, leaf in tree.leaves(value):
            if isinstance(leaf, torch.Tensor):
                form.append((name, path, tuple(leaf.shape), leaf.dtype, leaf.device.type))
            else:
                form.append((name, path, repr(leaf)))
    return tuple(form)


def _tensors(module: nn.Module) -> list[tuple[Any, ...]]:
    held = (*module.named_parameters(), *module.named_buffers())
    return [(name, tuple(t.shape), t.dtype, t.device) for name, t in held]


def _settings(module: nn.Module) -> list[tuple[Any, ...]]:
    """Classes of all parts and their plain attributes: eps, number of heads, ..."""
    rows: list[tuple[Any, ...]] = [(repr(module),)]
    for path, part in module.named_modules():
        plain = {
            name: value
            for name, value in vars(part).items()
            if isinstance(value, (bool, int, float, str, tuple, type(None)))
            and not name.startswith("_") and name != "training"
        }
        rows.append((path, type(part), repr(sorted(plain.items()))))
    return rows


def _difference(got: Any, expected: Any) -> float:
    """The largest relative error over all output tensors. inf where their forms differ."""
    ours, theirs = tree.tensors(got), tree.tensors(expected)
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        return float("inf")
    return max((relative_error(a, b) for a, b in zip(ours, theirs)), default=0.0)
