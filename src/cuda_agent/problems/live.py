"""A module object and example inputs -> (Problem, Instance): for notebooks and real models."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from cuda_agent.errors import ProblemError
from cuda_agent.problems import tree
from cuda_agent.problems.materialize import Instance, seeded
from cuda_agent.records import DTYPES, Problem, content_hash

_SAMPLE = 64


def live_instance(
    module: torch.nn.Module, example_inputs: Sequence[Any], dtype: str | None = None
) -> tuple[Problem, Instance]:
    """The module itself becomes the reference; inputs are drawn like the examples.

    Args:
        module: put into eval mode and used as it is, on the device where it lies.
        example_inputs: forward's positional arguments.
        dtype: "float32", "bfloat16" or "float16"; default is the module's own. Another dtype than
            the module's makes a converted copy the reference.
    Raises: ProblemError if the inputs are not usable or module and inputs lie on several devices.
    """
    if not isinstance(module, torch.nn.Module):
        raise ProblemError(f"A live problem needs a torch.nn.Module, not {type(module).__name__}.")
    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    examples = tuple(tree.map_tensors(torch.Tensor.detach, tuple(example_inputs)))
    held = [*module.parameters(), *module.buffers()]
    device = _device(module, held, examples)
    own = _dtype(module, held, examples)
    wanted = own if dtype is None else dtype
    if wanted not in DTYPES:
        raise ProblemError(f"There is no problem dtype `{wanted}`; use one of {', '.join(DTYPES)}.")
    target: torch.dtype = getattr(torch, wanted)
    if any(t.is_floating_point() and t.dtype != target for t in held):
        module = copy.deepcopy(module)
        module._apply(lambda t: t.to(target) if t.is_floating_point() else t)
    module.eval()
    name = type(module).__name__
    problem = Problem(
        name=name,
        source=_description(module, examples),
        origin=f"live {type(module).__module__}.{type(module).__qualname__}",
        dtype=wanted,
        kind="live",
        fingerprint=_fingerprint(module, examples),
    )

    def make_inputs(seed: int) -> tuple[Any, ...]:
        with seeded(seed, device):
            return tuple(tree.map_tensors(lambda x: _like(x, target), examples))

    return problem, Instance(problem, module, device, make_inputs)


def _device(module: torch.nn.Module, held: list[torch.Tensor], examples: Any) -> torch.device:
    devices = {t.device for t in (*held, *tree.tensors(examples)) if t.dim() or t.is_cuda}
    if len(devices) > 1:
        raise ProblemError(
            f"{type(module).__name__} and its example inputs lie on several devices "
            f"({', '.join(sorted(map(str, devices)))}); move them to one."
        )
    if not tree.tensors(examples):
        raise ProblemError(
            f"The example inputs for {type(module).__name__} hold no tensor; pass the positional "
            "arguments of one forward call."
        )
    return next(iter(devices), torch.device("cpu"))


def _dtype(module: torch.nn.Module, held: list[torch.Tensor], examples: Any) -> str:
    floating = [t for t in (*held, *tree.tensors(examples)) if t.is_floating_point()]
    return str(floating[0].dtype).removeprefix("torch.") if floating else "float32"


def _like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A random tensor with the shape, strides, device and kind of values of `x`.

    Floats: normal with x's mean and deviation, clamped to its range, so that probabilities stay
    probabilities. Integers: x's own values in another order. What carries structure is kept as it
    is: constants, masks with infinities, booleans, sorted indices.
    """
    if x.is_floating_point():
        values = x.float()
        if x.numel() < 2 or not bool(torch.isfinite(values).all()):
            return x.to(dtype)
        deviation, mean = torch.std_mean(values)
        if float(deviation) == 0:
            return x.to(dtype)
        out = _empty_like(x, dtype)
        fresh = torch.randn(x.shape, device=x.device).mul_(deviation).add_(mean)
        return out.copy_(fresh.clamp_(values.min(), values.max()))
    if x.dtype == torch.bool or x.is_complex() or x.numel() < 2 or _sorted(x):
        return x.clone()
    order = torch.randperm(x.numel(), device=x.device)
    return _empty_like(x, x.dtype).copy_(x.reshape(-1)[order].view(x.shape))


def _sorted(x: torch.Tensor) -> bool:
    """Positions or offsets: strictly growing along the last dimension."""
    return x.shape[-1] > 1 and bool((x[..., 1:] > x[..., :-1]).all())


def _empty_like(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride())):  # expanded: no room of its own
        return torch.empty(x.shape, dtype=dtype, device=x.device)
    return torch.empty_strided(x.shape, x.stride(), dtype=dtype, device=x.device)


def _signature(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}{list(tensor.shape)} strides {list(tensor.stride())}"


def _description(module: torch.nn.Module, examples: tuple[Any, ...]) -> str:
    rows = [
        f"#   input{path}: {_signature(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)}"
        for path, leaf in tree.leaves(examples)
    ]
    shown = "\n".join(f"# {line}" for line in repr(module).splitlines())
    head = "# A live module: the object itself is the reference, this text only describes it."
    return "\n".join([head, shown, "# called with", *rows]) + "\n"


def _fingerprint(module: torch.nn.Module, examples: tuple[Any, ...]) -> str:
    """Hash of the code, the structure, the inputs' form and a sample of the parameters' values."""
    codes = []
    for kind in sorted({type(m) for m in module.modules()}, key=lambda k: k.__qualname__):
        try:
            codes.append(inspect.getsource(kind))
        except (OSError, TypeError):  # defined in a notebook cell or by exec
            codes.append(kind.__qualname__)
    values = hashlib.sha256()
    for name, t in sorted((*module.named_parameters(), *module.named_buffers())):
        values.update(f"{name} {_signature(t)}".encode())
        flat = t.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLE)
        values.update(repr(flat[::step].float().cpu().tolist()).encode())
    forms = [_signature(t) for t in tree.tensors(examples)]
    return content_hash(codes, repr(module), forms, values.hexdigest())
