"""Rowwise regions for the tests: torch functions traced to core ATen, with inputs that hurt.

A `Case` gives a function, its inputs and the space and reduce dims that region forming would find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from cuda_agent.graph.decompositions import table
from cuda_agent.graph.ir import Op, Ref, Region, Tensor

Make = Callable[[], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    make: Make
    space: tuple[int, ...]
    reduce_dims: tuple[int, ...]

    def inputs(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        torch.manual_seed(seed)
        return self.make()


def randn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Make:
    return lambda: tuple((torch.randn(s) * scale).to(dtype) for s in shapes)


def region_of(case: Case, name: str = "r0") -> Region:
    """Trace a case to one region, as `graph.form_regions` would hand it to a skill."""
    inputs = case.inputs()
    traced = make_fx(case.function, decomposition_table=table())(*inputs)
    traced.graph.eliminate_dead_code()
    values: dict[str, Tensor] = {}
    names: dict[Any, str] = {}
    ops: list[Op] = []
    region_inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    tuples: dict[Any, list[str]] = {}

    def tensor(name: str, value: torch.Tensor) -> Tensor:
        dtype = str(value.dtype).removeprefix("torch.")
        values[name] = Tensor(name, tuple(value.shape), tuple(value.stride()), dtype)
        return values[name]

    def argument(arg: Any) -> Any:
        if isinstance(arg, torch.fx.Node):
            return Ref(names[arg])
        if isinstance(arg, (list, tuple)):
            return tuple(argument(a) for a in arg)
        return arg if isinstance(arg, (int, float, bool, str)) or arg is None else str(arg)

    for node in traced.graph.nodes:
        if node.op == "placeholder":
            names[node] = node.name
            region_inputs.append(tensor(node.name, node.meta["val"]))
        elif node.op == "get_attr":
            names[node] = node.name
            constant = getattr(traced, node.target)
            target, fill = "aten.full.default", constant.item()
            tensor(node.name, constant)
            ops.append(Op(target, ((), fill), (node.name,)))
        elif node.op == "output":
            result = node.args[0]
            result = result if isinstance(result, (list, tuple)) else (result,)
            outputs = [values[names[n]] for n in result]
        elif "getitem" in str(node.target):
            source, index = node.args
            names[node] = node.name
            tensor(node.name, node.meta["val"])
            tuples[source][index] = node.name
        else:
            several = isinstance(node.meta["val"], (tuple, list))
            produced = [""] * len(node.meta["val"]) if several else [node.name]
            if several:
                tuples[node] = produced
            else:
                names[node] = node.name
                tensor(node.name, node.meta["val"])
            kwargs = tuple((k, argument(v)) for k, v in node.kwargs.items())
            ops.append(Op(str(node.target), argument(node.args), produced, kwargs))  # type: ignore
    ops = [Op(o.target, o.args, tuple(o.outputs), o.kwargs) for o in ops]
    return Region(name, "rowwise", tuple(ops), tuple(region_inputs), tuple(outputs), values,
                  case.space, case.reduce_dims)


def _layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _block(x: Any, bias: Any, residual: Any, w: Any, b: Any) -> Any:
    h = F.gelu(x + bias) + residual
    return h, F.layer_norm(h, h.shape[-1:], w, b)


def _rms(x: Any, w: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def _manual_softmax(x: Any) -> Any:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


SMALL = [
    Case("softmax", lambda x: torch.softmax(x, -1), randn((37, 256)), (37, 256), (1,)),
    Case("softmax_hand", _manual_softmax, randn((33, 1000)), (33, 1000), (1,)),
    Case("layer_norm", _layer_norm, randn((21, 512), (512,), (512,)), (21, 512), (1,)),
    Case("rms_norm", _rms, randn((2, 9, 384), (384,)), (2, 9, 384), (2,)),
    Case("sum", lambda x: x.sum(-1), randn((19, 300)), (19, 300), (1,)),
    Case("gelu_norm", _block, randn((5, 7, 256), (256,), (5, 7, 256), (256,), (256,)),
         (5, 7, 256), (2,)),
]


def _masked(*shape: int) -> Make:
    """Large magnitudes, -inf masks, and one row that is masked wholly."""

    def make() -> tuple[torch.Tensor, ...]:
        x = torch.randn(shape) * 300
        x[torch.rand(shape) < 0.3] = float("-inf")
        x.view(-1, shape[-1])[0] = float("-inf")
        return (x,)

    return make


def _ties(*shape: int) -> Make:
    return lambda: (torch.randint(-3, 3, shape).float(),)


def _nans(*shape: int) -> Make:
    def make() -> tuple[torch.Tensor, ...]:
        x = torch.randn(shape)
        x[torch.rand(shape) < 0.02] = float("nan")
        return (x,)

    return make


def _classes(rows: tuple[int, ...], count: int, extra: tuple[int, ...] = (), ignore: int = -100,
             share: float = 0.0, weight: bool = False) -> Make:  # fmt: skip
    """Logits (rows, count, extra), targets and optionally class weights."""

    def make() -> tuple[torch.Tensor, ...]:
        target = torch.randint(0, count, (*rows, *extra))
        target[torch.rand(target.shape) < share] = ignore
        logits = torch.randn(*rows, count, *extra) * 5
        return (logits, target, torch.rand(count) + 0.1) if weight else (logits, target)

    return make


def _permuted(shape: tuple[int, ...], order: tuple[int, ...]) -> Make:
    return lambda: (torch.randn(shape).permute(order),)


def _dim(op: Callable[..., Any], dim: Any, keepdim: bool = False) -> Callable[..., Any]:
    return lambda x: op(x, dim=dim, keepdim=keepdim)


def _rms_dim1(x: Any) -> Any:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


def _cosine(a: Any, b: Any) -> Any:
    norms = (a * a).sum(1).clamp_min(1e-16) * (b * b).sum(1).clamp_min(1e-16)
    return 1 - (a * b).sum(1) / norms.sqrt()


def _triplet(a: Any, p: Any, n: Any) -> Any:
    near = (a - p + 1e-6).norm(dim=1)
    far = (a - n + 1e-6).norm(dim=1)
    return torch.relu(near - far + 1.0)


def _hinge(p: Any, t: Any) -> Any:
    return torch.mean(torch.clamp(1 - p * t, min=0))


def _kl(p: Any, q: Any) -> Any:
    return F.kl_div(torch.log(p), q, reduction="sum")


def _probabilities(*shape: int) -> Make:
    return lambda: (torch.rand(shape).softmax(-1) + 1e-3, torch.rand(shape).softmax(-1) + 1e-3)


def _group_norm(groups: int) -> Callable[..., Any]:
    return lambda x, w, b: F.group_norm(x, groups, w, b)


def _instance_norm(x: Any) -> Any:
    mean = x.mean((2, 3), keepdim=True)
    return (x - mean) / torch.sqrt(x.var((2, 3), keepdim=True, correction=0) + 1e-5)


def _batch_norm(x: Any, w: Any, b: Any) -> Any:
    return torch.ops.aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5)[0]


def _eval_batch_norm_softmax(x: Any, w: Any, b: Any, mean: Any, var: Any) -> Any:
    norm = torch.ops.aten._native_batch_norm_legit_no_training
    return torch.softmax(norm(x, w, b, mean, var, 0.1, 1e-5)[0], -1)


def _gather(x: Any, index: Any) -> Any:
    return torch.log_softmax(x, -1).gather(-1, index).squeeze(-1) * -1.0


def _extremes(x: Any) -> Any:
    value, index = x.max(-1)
    return value, index, x.argmin(-1)


def _bf16(*shapes: tuple[int, ...]) -> Make:
    return randn(*shapes, dtype=torch.bfloat16)


def _reductions() -> list[Case]:
    """Every reduction over the last, first, middle and all dims, with and without keepdim."""
    ops: dict[str, Callable[..., Any]] = {
        "sum": torch.sum, "mean": torch.mean, "amax": torch.amax, "amin": torch.amin,
        "norm2": torch.linalg.vector_norm,
        "norm1": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 1, dim, keepdim),
        "norm_inf": lambda x, dim, keepdim: torch.linalg.vector_norm(x, float("inf"), dim, keepdim),
        "norm3": lambda x, dim, keepdim: torch.linalg.vector_norm(x, 3, dim, keepdim),
        "var": lambda x, dim, keepdim: torch.var(x, dim, correction=1, keepdim=keepdim),
        "logsumexp": torch.logsumexp,
        "any": lambda x, dim, keepdim: torch.any(x > 2.5, dim, keepdim),
        "all": lambda x, dim, keepdim: torch.all(x > -2.0, dim, keepdim),
    }  # fmt: skip
    places: dict[str, tuple[int, ...]] = {"last": (2,), "first": (0,), "middle": (1,),
                                          "outer": (0, 2), "every": (0, 1, 2)}
    shape = (6, 35, 44)
    cases = []
    for number, (name, op) in enumerate(ops.items()):
        for place, dims in places.items():
            keep = (number + len(place)) % 2 == 0
            if name in ("any", "all") and len(dims) > 1:
                continue
            dim = dims[0] if name in ("any", "all") else dims
            cases.append(Case(f"{name}_{place}", _dim(op, dim, keep), randn(shape), shape, dims))
    for name in ("argmax", "argmin", "prod"):
        op = getattr(torch, name)
        for dim in range(3):
            cases.append(Case(f"{name}_{dim}", _dim(op, dim), _ties(*shape), shape, (dim,)))
    return cases


ODD = [
    Case("one_column", lambda x: torch.softmax(x, -1), randn((9, 1)), (9, 1), (1,)),
    Case("one_row", lambda x: torch.softmax(x, -1), randn((1, 777)), (1, 777), (1,)),
    Case("flat_sum", lambda x: x.sum(), randn((1, 10007)), (1, 10007), (0, 1)),
    Case("flat_max", lambda x: x.max(), randn((3, 1003)), (3, 1003), (0, 1)),
    Case("odd_softmax", lambda x: torch.softmax(x, -1), randn((13, 1021)), (13, 1021), (1,)),
    Case("permuted_sum", lambda x: x.sum(-1), _permuted((8, 24, 36), (0, 2, 1)), (8, 36, 24), (2,)),
    Case("permuted_norm", lambda x: torch.softmax(x, 1), _permuted((8, 24, 36), (0, 2, 1)),
         (8, 36, 24), (1,)),
    Case("tall_sum", lambda x: x.sum(0), randn((900, 24)), (900, 24), (0,)),
    Case("tall_var", lambda x: x.var(1), randn((3, 300, 12)), (3, 300, 12), (1,)),
    Case("tall_argmin", lambda x: x.argmin(0), _ties(500, 11), (500, 11), (0,)),
    Case("slices", lambda x: torch.softmax(x, -1), lambda: (torch.randn(12, 96)[:, 16:80],),
         (12, 64), (1,)),
    Case("misaligned", lambda x: torch.softmax(x, -1),
         lambda: (torch.randn(9 * 64 + 1)[1:].view(9, 64),), (9, 64), (1,)),
    Case("expanded", lambda x, y: (x * y).sum(-1),
         lambda: (torch.randn(5, 1, 40).expand(5, 6, 40), torch.randn(6, 1)), (5, 6, 40), (2,)),
    Case("int_sum", lambda x: x.sum(-1), lambda: (torch.randint(-9, 9, (7, 130)),), (7, 130), (1,)),
    Case("bool_sum", lambda x: (x > 0).sum(-1), randn((7, 130)), (7, 130), (1,)),
    Case("int_max", lambda x: x.amax(0), lambda: (torch.randint(-9, 9, (70, 13)),), (70, 13), (0,)),
    Case("double_sum", lambda x: x.sum(-1), randn((7, 130), dtype=torch.float64), (7, 130), (1,)),
]
SOFTMAXES = [
    Case("softmax_dim1", lambda x: torch.softmax(x, 1), randn((4, 20, 6, 16)),
         (4, 20, 6, 16), (1,)),
    Case("softmax_dim0", lambda x: torch.softmax(x, 0), randn((50, 33)), (50, 33), (0,)),
    Case("softmax_masked", lambda x: torch.softmax(x, -1), _masked(9, 130), (9, 130), (1,)),
    Case("log_softmax_masked", lambda x: torch.log_softmax(x, -1), _masked(9, 130), (9, 130), (1,)),
    Case("logsumexp_masked", lambda x: torch.logsumexp(x, -1), _masked(9, 132), (9, 132), (1,)),
    Case("log_softmax", lambda x: torch.log_softmax(x, -1), randn((17, 2050), scale=30),
         (17, 2050), (1,)),
    Case("scaled_masked_softmax",
         lambda x, m: torch.softmax(x * 0.125 + torch.where(m, 0.0, float("-inf")), -1),
         lambda: (torch.randn(2, 3, 10, 64), torch.rand(10, 64) < 0.8), (2, 3, 10, 64), (3,)),
    Case("softmax_bf16", lambda x: torch.softmax(x, -1), _bf16((12, 520)), (12, 520), (1,)),
    Case("softmax_f16", lambda x: torch.softmax(x, 1), randn((3, 40, 24), dtype=torch.float16),
         (3, 40, 24), (1,)),
    Case("long_softmax", lambda x: torch.softmax(x, -1), randn((2, 12000), scale=4),
         (2, 12000), (1,)),
    Case("softmax_tall", lambda x: torch.softmax(x, 0), randn((700, 20), scale=4), (700, 20), (0,)),
]
NORMS = [
    Case("layer_norm_bf16", _layer_norm, _bf16((6, 768), (768,), (768,)), (6, 768), (1,)),
    Case("layer_norm_mixed", lambda x, w, b: F.layer_norm(x.to(w.dtype), x.shape[-1:], w, b),
         lambda: (torch.randn(6, 96).bfloat16(), torch.randn(96), torch.randn(96)), (6, 96), (1,)),
    Case("layer_norm_2d", lambda x, w, b: F.layer_norm(x, (12, 10), w, b),
         randn((5, 12, 10), (12, 10), (12, 10)), (5, 12, 10), (1, 2)),
    Case("layer_norm_offset", _layer_norm,
         lambda: (torch.randn(7, 500) + 1000, torch.ones(500), torch.zeros(500)), (7, 500), (1,)),
    Case("rms_norm_dim1", _rms_dim1, randn((3, 24, 5, 8)), (3, 24, 5, 8), (1,)),
    Case("group_norm", _group_norm(3), randn((4, 12, 5, 8), (12,), (12,)), (4, 3, 4, 40), (2, 3)),
    Case("group_norm_odd", _group_norm(2), randn((3, 6, 7, 3), (6,), (6,)), (3, 2, 3, 21), (2, 3)),
    Case("instance_norm", _instance_norm, randn((3, 5, 9, 12)), (3, 5, 9, 12), (2, 3)),
    Case("batch_norm", _batch_norm, randn((6, 5, 4, 8), (5,), (5,)), (6, 5, 4, 8), (0, 2, 3)),
    Case("batch_norm_eval_softmax", _eval_batch_norm_softmax,
         lambda: (torch.randn(3, 6, 4, 8), torch.randn(6), torch.randn(6), torch.randn(6),
                  torch.rand(6) + 0.5), (3, 6, 4, 8), (3,)),
    Case("l1_norm", lambda x: x / x.abs().mean(1, keepdim=True), randn((9, 300)), (9, 300), (1,)),
    Case("l2_norm", lambda x: x / x.norm(p=2, dim=1, keepdim=True), randn((9, 300)),
         (9, 300), (1,)),
    Case("frobenius", lambda x: x / x.norm(p="fro"), randn((6, 30, 20)), (6, 30, 20), (0, 1, 2)),
    Case("norm_epilogue", lambda x, w, b, r: torch.relu(_layer_norm(x, w, b) * 2) + r,
         randn((8, 260), (260,), (260,), (8, 260)), (8, 260), (1,)),
    Case("standardize", lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
         randn((8, 260)), (8, 260), (1,)),
    Case("long_norm", _layer_norm, randn((3, 20000), (20000,), (20000,)), (3, 20000), (1,)),
]
LOSSES = [
    Case("cross_entropy", lambda x, t: F.cross_entropy(x, t), _classes((21,), 50), (21, 50), (1,)),
    Case("cross_entropy_ignore", lambda x, t: F.cross_entropy(x, t, ignore_index=-1),
         _classes((21,), 50, ignore=-1, share=0.4), (21, 50), (1,)),
    Case("cross_entropy_weight", lambda x, t, w: F.cross_entropy(x, t, weight=w),
         _classes((21,), 50, weight=True), (21, 50), (1,)),
    Case("cross_entropy_sum", lambda x, t: F.cross_entropy(x, t, reduction="sum"),
         _classes((21,), 50), (21, 50), (1,)),
    Case("cross_entropy_none", lambda x, t: F.cross_entropy(x, t, reduction="none"),
         _classes((21,), 50), (21, 50), (1,)),
    Case("log_softmax_gather", _gather,
         lambda: (torch.randn(4, 7, 40), torch.randint(0, 40, (4, 7, 1))), (4, 7, 40), (2,)),
    Case("mse", lambda a, b: ((a - b) ** 2).mean(), randn((33, 130), (33, 130)), (33, 130), (0, 1)),
    Case("mse_op", lambda a, b: F.mse_loss(a, b), randn((33, 130), (33, 130)), (33, 130), (0, 1)),
    Case("huber", lambda a, b: F.smooth_l1_loss(a, b), randn((33, 130), (33, 130)),
         (33, 130), (0, 1)),
    Case("hinge", _hinge, lambda: (torch.randn(44, 30), torch.randint(0, 2, (44, 30)) * 2.0 - 1),
         (44, 30), (0, 1)),
    Case("hinge_row", _hinge, lambda: (torch.randn(44, 1), torch.randint(0, 2, (44,)) * 2.0 - 1),
         (44, 44), (0, 1)),
    Case("kl", _kl, _probabilities(20, 50), (20, 50), (0, 1)),
    Case("triplet", _triplet, randn((20, 64), (20, 64), (20, 64)), (20, 64), (1,)),
    Case("cosine", _cosine, randn((20, 64), (20, 64)),
         (20, 64), (1,)),
]
EXTREMES = [
    Case("extremes_ties", _extremes, _ties(11, 203), (11, 203), (1,)),
    Case("extremes_nan", _extremes, _nans(40, 57), (40, 57), (1,)),
    Case("argmax_nan_dim0", lambda x: x.argmax(0), _nans(57, 40), (57, 40), (0,)),
    Case("amax_nan", lambda x: x.amax(-1), _nans(40, 57), (40, 57), (1,)),
    Case("argmax_all", lambda x: x.argmax(), _ties(9, 31), (9, 31), (0, 1)),
    Case("argmax_masked", lambda x: x.argmax(-1), lambda: (torch.full((3, 70), -torch.inf),),
         (3, 70), (1,)),
]
CASES = [*SMALL, *_reductions(), *ODD, *SOFTMAXES, *NORMS, *LOSSES, *EXTREMES]
