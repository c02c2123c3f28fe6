"""Seed operators: every class and function of the installed torch that works as a layer.

Signatures (Python's or ATen's schema) give the arguments, `recipes` the values, and a few calls on
tiny CPU tensors the rest: on which layouts an operator runs, which values it takes and gives,
whether it is deterministic, depends on its input and does anything at all.
"""

from __future__ import annotations

import inspect
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cuda_agent.problems import tree
from cuda_agent.synthesis.recipes import ALWAYS, LIST_DIMS, NEEDED, POOL_KERNEL, VARIED, Context

LAYOUTS = {
    "rows": (6, 16),
    "tokens": (2, 6, 16),
    "sequence": (2, 8, 16),
    "image": (2, 8, 12, 12),
    "volume": (2, 8, 6, 6, 6),
}
"""Meaning of the axes, and the shape that the crawl tries: (N, C), (N, T, C), (N, C, L),
(N, C, H, W), (N, C, D, H, W)."""
CHANNELS_FIRST = ("sequence", "image", "volume")
DOMAINS = ("any", "nonneg", "positive", "unit")
NAMESPACES = {"torch": torch, "nn": nn, "F": functional}

# Not operators of a forward pass: storage, gradients, randomness, other back-ends, aliases.
_SKIP = re.compile(
    r"_$|^_|quant|cudnn|miopen|mkldnn|fbgemm|_copy|^is_|^sym_|sparse|dropout|^fake|^native_|backward"
    r"|^slow_|thnn|^batch_norm_|unique|nonzero|^rand|_like$|^new_|resize|^set_|^empty|rnn|lstm|gru"
    r"|_cell$|^from_|^to_|^align|names|boolean_dispatch|assert_|torch_function|[rR]relu|RReLU|gumbel|Lazy"
    r"|Identity|Transformer|^detach|^alias$|^clone$|^vander|^block_diag|fft|^stft|^istft|Loss$"
    r"|^arc|^absolute$|^negative$|^fix$|^divide$|^multiply$|^subtract$|^true_divide$|^clip$|^swap"
    r"|^upsample|^adjoint$|^linear_cross|^kron$|^diag|^gradient$|^expand|^view|^real$|^positive$|_mm$|^normal$|^conv|^Softmax2d|Adaptive.*Loss"
)
_FAMILY_OF_FILE = {
    "activation": "activation", "batchnorm": "norm", "instancenorm": "norm",
    "normalization": "norm", "conv": "conv", "linear": "linear", "pooling": "pool",
    "upsampling": "resample", "pixelshuffle": "resample", "padding": "resample",
    "channelshuffle": "shape", "flatten": "shape", "fold": "resample", "rnn": "recurrent",
    "distance": "distance", "sparse": "embedding",
}  # fmt: skip
_NORMS = ("norm", "normalize", "softmax", "softmin")


def short(name: str) -> str:
    """`relu` of nn.ReLU, F.relu and torch.relu: one name for one operation."""
    return name.rpartition(".")[2].replace("_", "").lower()


@dataclass(frozen=True)
class Seed:
    """One operator with what the crawl found out about it.

    `operands` counts further tensors of the input's shape; `domain` is the range of values that it
    needs and `gives` the one it answers with (DOMAINS); `keeps` lists layouts whose shape stays.
    """

    name: str
    kind: str
    family: str
    layouts: tuple[str, ...]
    keeps: tuple[str, ...]
    operands: int
    domain: str
    gives: str
    low_precision: bool
    overload: str = ""

    @property
    def short(self) -> str:
        return short(self.name)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Seed:
        return cls(**{**data, "layouts": tuple(data["layouts"]), "keeps": tuple(data["keeps"])})


@dataclass(frozen=True)
class Parameter:
    name: str
    required: bool
    listed: bool = False


@cache
def resolve(name: str) -> Any:
    """The object behind `nn.Conv2d`, `F.gelu` or `torch.logsumexp`."""
    space, _, rest = name.partition(".")
    return getattr(NAMESPACES[space], rest)


def _aten(name: str, overload: str) -> Any:
    """The ATen operator of `torch.sum` and `dim_IntList`."""
    return getattr(getattr(torch.ops.aten, name.rpartition(".")[2]), overload)


@cache
def signature(name: str, overload: str = "") -> tuple[int, tuple[Parameter, ...]] | None:
    """(further tensor operands, other parameters) of a callable; None where it takes no tensor."""
    target = resolve(name)
    if isinstance(target, type) and issubclass(target, nn.Module):
        forward = list(inspect.signature(target.forward).parameters.values())[1:]
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = [p for p in forward if p.default is p.empty and p.kind in positional]
        made = list(inspect.signature(target).parameters.values())
        named = (*positional, inspect.Parameter.KEYWORD_ONLY)
        plain = [p for p in made if p.kind in named]
        found = tuple(Parameter(p.name, p.default is p.empty) for p in plain)
        return (len(needed) - 1, found) if needed else None
    if overload:
        return _from_schema(_aten(name, overload))
    try:
        made = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None
    if not made or any(p.kind is p.VAR_POSITIONAL for p in made):
        return None
    tensors = [p for p in made[1:] if p.default is p.empty and "Tensor" in str(p.annotation)]
    rest = [p for p in made[1:] if p not in tensors]
    return len(tensors), tuple(Parameter(p.name, p.default is p.empty) for p in rest)


def _from_schema(op: Any) -> tuple[int, tuple[Parameter, ...]] | None:
    arguments = op._schema.arguments
    if not arguments or str(arguments[0].type) != "Tensor" or op._schema.is_mutable:
        return None
    returns = op._schema.returns
    if len(returns) != 1 or str(returns[0].type) != "Tensor":
        return None
    if torch.Tag.nondeterministic_seeded in op.tags and "attention" not in str(op):
        return None
    rest = arguments[1:]
    tensors = [a for a in rest if str(a.type) == "Tensor" and not a.has_default_value()]
    others = [a for a in rest if a not in tensors and "ScalarType" not in str(a.type)]
    return len(tensors), tuple(
        Parameter(a.name, not a.has_default_value(), "List[int]" in str(a.type)) for a in others
    )


def settings(name: str, overload: str, context: Context) -> dict[str, Any] | None:
    """Keyword arguments for one use of an operator, or None: a parameter has no recipe."""
    found = signature(name, overload)
    if found is None:
        return None
    pooling = "pool" in name.lower()
    for parameter in found[1]:
        key = {"axis": "dim"}.get(parameter.name, parameter.name)
        if parameter.required:
            recipe = NEEDED.get(key)
            if recipe is None:
                return None
        elif key in VARIED and (key in ALWAYS or context.rng.random() < 0.5):
            recipe = VARIED[key]
        else:
            continue
        if pooling and key == "kernel_size":
            recipe = POOL_KERNEL
        elif pooling and key in ("padding", "dilation", "stride"):
            continue
        elif parameter.listed and key == "dim":
            recipe = LIST_DIMS
        context.args[parameter.name] = recipe(context)
    return context.args


def crawl(seed: int = 0) -> list[Seed]:
    """All usable operators of `torch`, `torch.nn` and `torch.nn.functional`, sorted by name."""
    found: list[Seed] = []
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.default_generator.manual_seed(seed)
        for name, overload in _names():
            if not any(s.name == name for s in found[-1:]):
                probed = _probe(name, overload)
                found += [probed] if probed else []
    return sorted(found, key=lambda s: s.name)


def _names() -> Iterator[tuple[str, str]]:
    """(name, ATen overload or "") in the order in which they should be tried."""
    for space, module in NAMESPACES.items():
        for attribute in sorted(dir(module)):
            value = getattr(module, attribute)
            if _SKIP.search(attribute) or not callable(value):
                continue
            name = f"{space}.{attribute}"
            if isinstance(value, type):
                if space == "nn" and issubclass(value, nn.Module):
                    yield name, ""
                continue
            packet = getattr(torch.ops.aten, attribute, None)
            if packet is None and space == "torch":  # compile, load, set_num_threads, ...
                continue
            if signature(name) is not None:
                yield name, ""
                continue
            if packet is None:
                continue
            overloads = [o for o in packet.overloads() if "out" not in o and "Dimname" not in o]
            overloads = [o for o in overloads if _from_schema(getattr(packet, o)) is not None]
            yield from ((name, o) for o in sorted(overloads, key=lambda o: "dim" not in o.lower()))


def _sample(shape: tuple[int, ...], domain: str) -> torch.Tensor:
    if domain == "any":
        return torch.randn(shape) * 2
    if domain == "nonneg":
        return torch.randn(shape).relu()
    return torch.rand(shape) * 0.8 + 0.1 + (0.0 if domain == "unit" else 1.0)


def _probe(name: str, overload: str) -> Seed | None:
    found = signature(name, overload)
    if found is None or found[0] > 2:
        return None
    layouts, keeps, domain, gives, low = [], [], "", [], True
    pointwise = bool(overload) and torch.Tag.pointwise in _aten(name, overload).tags
    for layout, shape in LAYOUTS.items():
        for trial in range(8):
            need = domain or DOMAINS[trial // 2]
            context = Context(shape, layout, random.Random(trial), wide=False)
            out = _call(name, overload, context, found[0], need)
            if out is not None:
                domain = need
                layouts.append(layout)
                keeps += [layout] if out.shape == shape else []
                gives.append(out)
                low = low and _runs_in_bfloat16(name, overload, context, found[0], need)
                break
    if not layouts:
        return None
    family = _family(name, found[0], pointwise, set(keeps) == set(layouts))
    if family == "linear" and "bilinear" not in name.lower():
        layouts = [x for x in layouts if x not in CHANNELS_FIRST]
    kind = "module" if isinstance(resolve(name), type) else "function"
    return Seed(
        name, kind, family, tuple(layouts), tuple(keeps), found[0], domain, _range(gives), low,
        overload,
    )


def apply(target: Any, operands: list[Any], values: dict[str, Any]) -> Any:
    """Calls a function, or builds a module and calls that."""
    if isinstance(target, type):
        return target(**values).eval()(*operands)
    return target(*operands, **values)


def _call(
    name: str, overload: str, context: Context, operands: int, domain: str
) -> torch.Tensor | None:
    """The output on a random input, or None where it is of no use for a problem."""
    values = settings(name, overload, context)
    if values is None:
        return None
    target, shape = resolve(name), context.shape
    first = [_sample(shape, domain) for _ in range(1 + operands)]
    other = [_sample(shape, domain), *first[1:]]
    try:
        module = target(**values).eval() if isinstance(target, type) else None
        run = module if module is not None else lambda *x: target(*x, **values)
        kept = first[0].clone()
        out, again, changed = run(*first), run(*first), run(*other)
    except Exception:
        return None
    if not isinstance(out, torch.Tensor) or out.layout != torch.strided or out.dim() == 0:
        return None
    good = (
        out.dtype == torch.float32 and 1 < out.numel() <= 64 * first[0].numel()
        and torch.equal(kept, first[0]) and bool(out.isfinite().all())
        and torch.equal(out, again) and not torch.equal(out, changed)
        and not (out.shape == kept.shape and torch.equal(out, kept))
        and float(out.std()) > 1e-6
    )
    return out if good else None


def _runs_in_bfloat16(
    name: str, overload: str, context: Context, operands: int, domain: str
) -> bool:
    target = resolve(name)
    inputs = [_sample(context.shape, domain).bfloat16() for _ in range(1 + operands)]
    try:
        if isinstance(target, type):
            out = target(**context.args).eval().bfloat16()(*inputs)
        else:
            out = target(*inputs, **context.args)
    except Exception:
        return False
    return all(t.dtype == torch.bfloat16 for t in tree.tensors(out))


def _family(name: str, operands: int, pointwise: bool, keeps: bool) -> str:
    target, short = resolve(name), name.rpartition(".")[2].lower()
    if isinstance(target, type):
        family = _FAMILY_OF_FILE.get(target.__module__.rpartition(".")[2], "other")
        return "softmax" if short in ("softmax", "logsoftmax", "softmin") else family
    if operands and short in ("matmul", "mm", "bmm", "inner"):
        return "matmul"
    if operands:
        return "binary" if keeps else "distance"
    if any(word in short for word in _NORMS[2:]):
        return "softmax"
    if "pool" in short:
        return "pool"
    if "norm" in short and keeps:
        return "norm"
    if short.startswith("cum") or "cumsum" in short:
        return "scan"
    if keeps:
        return "activation" if name.startswith("F.") else "pointwise" if pointwise else "shape"
    if any(w in short for w in ("sum", "mean", "max", "min", "prod", "norm", "std", "var")):
        return "reduction"
    return "shape"


def _range(outs: list[torch.Tensor]) -> str:
    low, high = min(float(o.min()) for o in outs), max(float(o.max()) for o in outs)
    if low < 0:
        return "any"
    if low == 0:
        return "nonneg"
    return "unit" if high < 1 else "positive"
