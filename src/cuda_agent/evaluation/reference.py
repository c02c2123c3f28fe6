"""The judge's secrets: input sets nobody else has seen, and what must come out of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from cuda_agent.errors import ProblemError
from cuda_agent.evaluation import layout, verify
from cuda_agent.evaluation.precision import Tolerance, flags, tolerance
from cuda_agent.problems import Instance
from cuda_agent.records import ErrorReport, Mismatch, Precision

_SMALL = 1e-3  # a weight: a layer's scale begins at 1e-5 or less where it is to begin as nothing
_NOTHING = 0.5  # eager's own relative error, from where on the bound lets zeros pass


@dataclass
class CheckedSet:
    """One set of forward arguments and its expected outputs. `tensors` are the inputs' tensors,
    pristine copies that no other process can reach."""

    style: str
    tree: layout.Tree
    tensors: list[torch.Tensor]
    out_tree: layout.Tree
    outputs: list[torch.Tensor]  # eager's, on the meta device: shapes, strides and dtypes only
    expected: list[verify.Expected]

    @property
    def nbytes(self) -> int:
        held = sum(t.numel() * t.element_size() for t in self.tensors)
        return held + sum(e.nbytes for e in self.expected)


class Reference:
    """Makes input sets with fresh entropy and judges outputs against them."""

    def __init__(self, instance: Instance, precision: Precision) -> None:
        self.instance = instance
        self.precision = precision
        self.against = "float64 eager"
        self.forms: list[torch.Tensor] = []  # of the outputs, on the meta device
        self._double = True
        self._eager_relative: dict[int, float] = {}

    # --- making sets ----------------------------------------------------------------------------

    def draw(self, style: str = "random") -> CheckedSet | None:
        """A new set in `style`. None where a structured style leaves the reference's domain.

        Raises ProblemError when the reference fails on its own random inputs.
        """
        inputs = self.instance.inputs(secrets.randbits(62), style)
        if style == "random":
            return self.checked(inputs, style)
        try:
            made = self.checked(inputs, style)
        except ProblemError:
            return None
        if not all(e.finite for e in made.expected):
            return None
        ties = style in ("zeros", "ones")
        if ties and any(not e.floating and e.dtype != torch.bool for e in made.expected):
            return None  # every index of equal values is a right answer to argmax
        return made

    def inputs(self) -> tuple[layout.Tree, list[torch.Tensor]]:
        """New random inputs without what comes out of them."""
        tensors: list[torch.Tensor] = []
        tree = layout.describe(self.instance.inputs(secrets.randbits(62)), tensors)
        return tree, tensors

    def checked(self, inputs: tuple[Any, ...], style: str = "random") -> CheckedSet:
        """`inputs` with the outputs of eager and of the high-precision reference."""
        tensors: list[torch.Tensor] = []
        tree = layout.describe(inputs, tensors)
        with flags(self.precision):
            out = self.instance.reference(inputs)
        eager: list[torch.Tensor] = []
        out_tree = layout.describe(out, eager)
        precise = self._precise(inputs, eager)
        expected = []
        for i, (e, p) in enumerate(zip(eager, precise)):
            made = verify.expect(p, e, self._tolerance(e.dtype))
            if style == "random":
                known = self._eager_relative.get(i, 0.0)
                self._eager_relative[i] = max(known, made.eager_relative)
            expected.append(made)
        self.forms = [torch.empty_like(t, device="meta") for t in eager]
        return CheckedSet(style, tree, tensors, out_tree, self.forms, expected)

    def noise(self) -> str:
        """Why an output can't be judged, or "": rounding errors are all that it holds."""
        made = self.draw()
        assert made is not None
        for i, e in enumerate(made.expected):
            if e.floating and e.eager_relative >= _NOTHING:
                return (
                    f"Output {i} is rounding noise: eager's error against {self.against} is "
                    f"{e.eager_relative:.1g} of its size, so anything would pass."
                )
        return ""

    def again(self, made: CheckedSet) -> CheckedSet:
        """The same inputs under the weights that the model has now."""
        return self.checked(layout.rebuild(made.tree, made.tensors), "random")

    def _precise(
        self, inputs: tuple[Any, ...], eager: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Outputs in float64; in the problem's dtype with TF32 off where that is not possible."""
        with flags("strict"):
            if self._double and self._fits(eager):
                try:
                    out: list[torch.Tensor] = []
                    layout.describe(self.instance.reference(inputs, dtype=torch.float64), out)
                    if [t.shape for t in out] == [t.shape for t in eager]:
                        return out
                except (ProblemError, torch.OutOfMemoryError):
                    pass
            self._double = False
            name = layout.dtype_name(self.instance.dtype)
            self.against = "float32 eager"
            try:
                out = []
                layout.describe(self.instance.reference(inputs, dtype=torch.float32), out)
                return out
            except ProblemError:  # it names its own dtype, and is then its own measure
                self.against = f"{name} eager"
                return list(eager)

    def _fits(self, eager: Sequence[torch.Tensor]) -> bool:
        """A float64 run needs inputs, parameters and outputs eight bytes an element, and room for
        intermediate results of about the same size."""
        elements = self.instance.input_bytes + self.instance.parameter_bytes
        elements += sum(t.numel() * t.element_size() for t in eager)
        needed = 3 * elements * 8 // self.instance.dtype.itemsize
        if self.instance.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.instance.device)
            reserved = torch.cuda.memory_reserved(self.instance.device)
            return needed < free + reserved - torch.cuda.memory_allocated(self.instance.device)
        from cuda_agent.targets.cpu import machine

        return needed < machine.free_memory_bytes()

    def _tolerance(self, dtype: torch.dtype) -> Tolerance | None:
        floating = dtype.is_floating_point or dtype.is_complex
        return tolerance(self.precision, dtype) if floating else None

    # --- judging outputs ------------------------------------------------------------------------

    def judge(
        self, made: CheckedSet, got: Sequence[torch.Tensor], report: ErrorReport | None = None
    ) -> tuple[bool, ErrorReport]:
        """(passed, report so far with this set added). Shapes and dtypes are known to be right."""
        worst = report or ErrorReport(0.0, 0.0, self.against, inputs_checked=0)
        relative, absolute, bound = worst.relative, worst.absolute, worst.bound
        passed, wrong = True, None
        for i, (g, e) in enumerate(zip(got, made.expected)):
            limit = self._tolerance(e.dtype)
            found = verify.compare(g, e, limit, self._eager_relative.get(i, 0.0))
            if found.relative >= relative or bound is None:
                relative, bound = found.relative, found.bound
            absolute = max(absolute, found.absolute)
            if not found.ok and passed:
                passed = False
                wrong = _mismatch(f"output {i} on {made.style} inputs", g, e, limit)
                relative, bound = found.relative, found.bound
        eager = max(self._eager_relative.values(), default=0.0)
        return passed, ErrorReport(
            relative=_finite(relative), absolute=_finite(absolute), against=self.against,
            eager=eager, bound=bound, inputs_checked=worst.inputs_checked + 1, mismatch=wrong,
        )

    # --- other weights --------------------------------------------------------------------------

    def state(self) -> tuple[list[str], list[str], list[torch.Tensor]]:
        """(names of the state_dict, names of other tensors, their values in that order)."""
        model = self.instance.model
        state = dict(model.state_dict(keep_vars=True))
        extra = {n: b for n, b in model.named_buffers() if n not in state}
        for path, module in model.named_modules():
            for name, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    extra[f"{path}.{name}".lstrip(".")] = value
        tensors = [t.detach() for t in (*state.values(), *extra.values())]
        return list(state), list(extra), tensors

    @contextmanager
    def other_weights(self) -> Iterator[None]:
        """The reference with perturbed parameters and running statistics; the old storages come
        back. Other buffers stay: a mask is a constant of the architecture, and kernels may rely on
        it."""
        model = self.instance.model
        statistics = [
            t for module in model.modules() for name in ("running_mean", "running_var")
            if isinstance(t := getattr(module, name, None), torch.Tensor)
        ]
        moved = [t for t in (*model.parameters(), *statistics) if t.is_floating_point()]
        saved = [(t, t.data) for t in moved]
        try:
            for t, data in saved:
                t.data = perturbed(data)
            yield
        finally:
            for t, data in saved:
                t.data = data


def _mismatch(
    name: str, got: torch.Tensor, expected: verify.Expected, limit: Tolerance | None
) -> Mismatch | None:
    """None where there is no memory to look for it: the verdict does not hang on it."""
    try:
        return verify.mismatch(name, got, expected, limit)
    except (torch.OutOfMemoryError, MemoryError):
        return None


def perturbed(data: torch.Tensor) -> torch.Tensor:
    """Values moved by about a tenth; those so small that an output may not show them, zeros among
    them, by up to a hundredth, away from zero."""
    noise = torch.rand_like(data.float()) - 0.5
    away = torch.where(data == 0, noise, noise.abs() * data.sign())
    moved = data * (1 + 0.2 * noise) + 0.02 * away * (data.abs() < _SMALL)
    return moved.to(data.dtype)


def _finite(value: float) -> float:
    """JSON has no infinity: the largest double stands for it."""
    return min(value, 1.7e308)
