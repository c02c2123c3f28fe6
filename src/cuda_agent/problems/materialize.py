"""Problem -> Instance: the reference model on a device, and fresh inputs for it.

Inputs are made on the device, under torch's default-device context, so that GPU problems never
copy gigabytes from the CPU. Only floating tensors are cast: labels and masks stay as they are.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from cuda_agent.errors import ProblemError
from cuda_agent.problems import memory, styles, tree
from cuda_agent.problems.execute import call, execute
from cuda_agent.records import Problem


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Random numbers of torch, numpy and `random` from `seed`; the caller's state comes back."""
    devices = [device] if device.type == "cuda" else []
    python, array = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        if devices:
            torch.manual_seed(seed % 2**63)
        else:  # torch.manual_seed would also reset a GPU's generator
            torch.default_generator.manual_seed(seed % 2**63)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(array)


class Instance:
    """One problem on one device, ready to be run.

    Attributes:
        model: the reference, in eval mode, floating parameters and buffers cast to `dtype`.
        init_inputs: positional constructor arguments; `init_kwargs` keyword-only ones.
        input_bytes: bytes of one set of inputs. `parameter_bytes`: of parameters and buffers.
    """

    def __init__(
        self,
        problem: Problem,
        model: torch.nn.Module,
        device: torch.device,
        make_inputs: Callable[[int], tuple[Any, ...]],
        init_inputs: tuple[Any, ...] = (),
        init_kwargs: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.problem = problem
        self.model = model
        self.device = device
        self.dtype: torch.dtype = getattr(torch, problem.dtype)
        self.seed = seed
        self.init_inputs = init_inputs
        self.init_kwargs = dict(init_kwargs or {})
        self._make_inputs = make_inputs
        self._mutates: bool | None = None
        self._bounded: bool | None = None
        self._input_bytes: int | None = None

    def inputs(self, generator_seed: int, style: str = "random") -> tuple[Any, ...]:
        """A fresh set of forward arguments on the device.

        The same seed gives the same values. A structured `style` (styles.STYLES) changes floating
        tensors only. It may leave the domain of the reference (log of negatives): skip a style
        whose reference output is not finite, or that the reference refuses.
        """
        made = self._make_inputs(generator_seed)
        if self._input_bytes is None:
            self._input_bytes = tree.nbytes(made)
        if style in ("random", "noncontiguous"):
            return styles.restyle(made, style, bounded=False)
        return styles.restyle(made, style, bounded=self.bounded, seed=generator_seed)

    def reference(self, inputs: tuple[Any, ...], dtype: torch.dtype | None = None) -> Any:
        """Output of the model on `inputs`, without gradients; `inputs` are left untouched.

        Args:
            dtype: run in this precision instead (torch.float64 for expected values): parameters,
                buffers and floating inputs are cast for this call and come back unchanged.
        Returns: tensor or nested tuple, list or dict of tensors (None allowed beside tensors).
        Raises: ProblemError with the line that raised (a model that casts by itself may not run in
            another dtype), or an output that holds something else; torch.OutOfMemoryError.
        Global flags such as TF32 stay the caller's choice.
        """
        want = dtype or self.dtype
        keep = self._mutates is False

        def prepare(x: torch.Tensor) -> torch.Tensor:
            if x.is_floating_point() and x.dtype != want and dtype is not None:
                return x.to(want)
            return x if keep else x.clone()

        args = tree.map_tensors(prepare, inputs)
        versions = [t._version for t in tree.tensors(args)]
        swap = nullcontext() if want == self.dtype else precision(self.model, want)
        with torch.no_grad(), swap:
            name = f"forward of `{type(self.model).__name__}`"
            expected = (
                f"it must run on its own inputs in {str(want).removeprefix('torch.')} "
                f"on {self.device}"
            )
            out = call(self.problem, self.model, name, expected, *args)
        if self._mutates is None:
            self._mutates = versions != [t._version for t in tree.tensors(args)]
        self._check_output(out)
        return out

    def _check_output(self, out: Any) -> None:
        found = list(tree.leaves(out))
        for path, leaf in found:
            if leaf is None:
                continue
            if not isinstance(leaf, torch.Tensor):
                kind = f"`{type(leaf).__name__}`{f' at output{path}' if path else ''}"
            elif leaf.layout != torch.strided:
                kind = f"a {leaf.layout} tensor"
            else:
                continue
            raise self._bad_output(kind)
        if not tree.tensors(out):
            raise self._bad_output("no tensor")

    def _bad_output(self, kind: str) -> ProblemError:
        return ProblemError(
            f"{self.problem.origin}: forward returned {kind}; it must return a tensor or a nested "
            "tuple, list or dict of tensors."
        )

    @property
    def bounded(self) -> bool:
        """Whether floating inputs must stay in the range that the random ones have."""
        if self._bounded is None:
            recorder = styles.DomainRecorder()
            made = self._make_inputs(self.seed)
            with recorder:
                self.reference(made)
            self._bounded = recorder.bounded
        return self._bounded

    @property
    def mutates(self) -> bool:
        """Whether forward was seen to change its inputs in place (False before the first run)."""
        return self._mutates is True

    @property
    def input_bytes(self) -> int:
        if self._input_bytes is None:
            self._input_bytes = tree.nbytes(self._make_inputs(self.seed))
        return self._input_bytes

    @property
    def parameter_bytes(self) -> int:
        return tree.nbytes([*self.model.parameters(), *self.model.buffers()])


@contextmanager
def precision(model: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """`model` with all floating tensors in `dtype`; on leaving, the old storages are back.

    The tensor objects stay the same and only their `.data` is swapped, so closures, tied weights
    and the weight lists of RNN modules see the change, and addresses held elsewhere stay valid.
    Tensors that a module keeps as plain attributes are swapped too.
    """
    held: dict[int, torch.Tensor] = {}
    for module in model.modules():
        plain = [v for v in vars(module).values() if isinstance(v, (torch.Tensor, list, tuple))]
        own = [*module._parameters.values(), *module._buffers.values()]
        for t in (*(t for t in own if t is not None), *tree.tensors(plain)):
            if t.is_floating_point() and t.dtype != dtype:
                held[id(t)] = t
    saved = [(t, t.data) for t in held.values()]
    try:
        for t, data in saved:
            t.data = data.to(dtype)
        yield
    finally:
        for t, data in saved:
            t.data = data


def materialize(problem: Problem, device: str | torch.device, *, seed: int = 0) -> Instance:
    """Builds the reference of a file problem on `device`.

    Args:
        seed: of the parameters' initialisation.
    Raises: ProblemError where the text, constructor or get_inputs() fails, or where parameters,
        inputs and outputs do not fit the device's free memory (with both sizes).
    """
    if problem.kind == "live":
        raise ProblemError(
            f"{problem.name} is a live module without source to build it from; use live_instance."
        )
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    module = execute(problem)
    source = _Source(problem, module, device, getattr(torch, problem.dtype))
    free = memory.free_bytes(device)
    needed = None
    if free is not None:
        needed = source.needed_bytes(seed, free)
        if needed is not None and needed > free:
            raise memory.refuse(problem.origin, needed, free, device)
    try:
        model = source.model(seed)
        instance = Instance(
            problem, model, device, source.inputs, source.init_args, source.init_kwargs, seed
        )
        _ = instance.input_bytes
    except torch.OutOfMemoryError as error:
        raise memory.refuse(problem.origin, needed, free, device) from error
    return instance


class _Source:
    """Builds the model and the inputs of a problem's text on a device."""

    def __init__(
        self, problem: Problem, module: Any, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.problem, self.module, self.device, self.dtype = problem, module, device, dtype
        self.init_args: tuple[Any, ...] = ()
        self.init_kwargs: dict[str, Any] = {}
        self._forward = inspect.signature(module.Model.forward)
        self._on_cpu = False

    def model(self, seed: int) -> torch.nn.Module:
        cpu = torch.device("cpu")
        for where_built in dict.fromkeys((self.device, cpu)):
            try:
                with seeded(seed, where_built), where_built:
                    model = self._construct()
                break
            except ProblemError:
                if where_built == cpu:  # initialisers that only run there had their chance
                    raise
        model = model.to(self.device)
        # Not model.to(dtype): that would also cast complex buffers to real ones.
        model._apply(lambda t: t.to(self.dtype) if t.is_floating_point() else t)
        return model.eval()

    def _construct(self) -> torch.nn.Module:
        made: Any = []
        if hasattr(self.module, "get_init_inputs"):
            made = call(
                self.problem,
                self.module.get_init_inputs,
                "get_init_inputs()",
                "it must return the list of constructor arguments",
            )
        self.init_args, self.init_kwargs = _init_arguments(self.module.Model, made)
        return call(
            self.problem,
            self.module.Model,
            "Model(*get_init_inputs())",
            "get_init_inputs() must return the constructor's arguments",
            *self.init_args,
            **self.init_kwargs,
        )

    def inputs(self, seed: int) -> tuple[Any, ...]:
        if not self._on_cpu:
            try:
                return self._inputs_on(self.device, seed)
            except ProblemError:
                if self.device.type == "cpu":
                    raise
            self._on_cpu = True  # numpy, CPU generators: made there and copied
        return self._inputs_on(torch.device("cpu"), seed)

    def _inputs_on(self, device: torch.device, seed: int) -> tuple[Any, ...]:
        with seeded(seed, device), device, torch.no_grad():
            made = self._positional(self._get_inputs())

        def settle(x: torch.Tensor) -> torch.Tensor:
            dtype = self.dtype if x.is_floating_point() else x.dtype
            return x.detach().to(device=self.device, dtype=dtype)

        return tuple(tree.map_tensors(settle, made))

    def _get_inputs(self) -> Any:
        return call(
            self.problem,
            self.module.get_inputs,
            "get_inputs()",
            "it must return the list of forward arguments",
        )

    def _positional(self, made: Any) -> tuple[Any, ...]:
        """Forward arguments in order; a dict is matched to the names of `forward`."""
        if isinstance(made, torch.Tensor):
            return (made,)
        if isinstance(made, (list, tuple)):
            return tuple(made)
        if not isinstance(made, Mapping):
            raise ProblemError(
                f"{self.problem.origin}: get_inputs() returned `{type(made).__name__}`; it must "
                "return the list of forward arguments."
            )
        try:
            bound = self._forward.bind(None, **made)
        except TypeError as error:
            raise ProblemError(
                f"{self.problem.origin}: the dict of get_inputs() does not fit forward ({error}); "
                "its keys must be forward's argument names."
            ) from error
        bound.apply_defaults()
        if bound.kwargs:
            raise ProblemError(
                f"{self.problem.origin}: forward takes {', '.join(bound.kwargs)} by keyword only; "
                "let it take them by position."
            )
        return tuple(bound.args[1:])

    def needed_bytes(self, seed: int, free: int) -> int | None:
        cpu = torch.device("cpu")
        with seeded(seed, cpu):
            return memory.needed_bytes(
                self._construct,
                lambda _: self._positional(self._get_inputs()),
                self.dtype.itemsize,
                free,
            )


def _init_arguments(model: type, made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Constructor arguments from what get_init_inputs() returned.

    Besides the plain list, `[[args], {kwargs}]` and `{kwargs}` are in use; they are taken as such
    where the constructor's signature accepts them. Keyword arguments become positional ones where
    they can, because contestants are built by position.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(made, Mapping):
        kwargs = dict(made)
    else:
        args = tuple(made if isinstance(made, (list, tuple)) else [made])
    signature = inspect.signature(model)
    pair = len(args) == 2 and isinstance(args[0], (list, tuple)) and isinstance(args[1], dict)
    if pair and _binds(signature, args[0], args[1]):
        args, kwargs = tuple(args[0]), dict(args[1])
    if not kwargs or not _binds(signature, args, kwargs):
        return args, kwargs
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return tuple(bound.args), dict(bound.kwargs)


def _binds(signature: inspect.Signature, args: Any, kwargs: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True
