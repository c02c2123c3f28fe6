"""What each core ATen op is to region forming: elementwise, a reduction, a view, ...

Names are without namespace and overload. An op in none of these sets stays a torch call.
"""

from __future__ import annotations

# ruff: noqa: SIM905
from cuda_agent.graph.ir import Arg, Op, Ref, Tensor

# Elementwise over the broadcast shape of their operands. `clone` is a copy that changes layout;
# `_native_batch_norm_legit_no_training` reads its (C,) operands along dim 1.
POINTWISE = frozenset(
    """
    abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor
    ceil celu clamp clamp_max clamp_min clone copysign cos cosh deg2rad digamma div elu eq erf erfc
    erfinv exp exp2 expm1 fill floor floor_divide fmax fmin fmod frac ge gelu gt hardsigmoid
    hardswish hardtanh heaviside hypot isfinite isinf isnan le leaky_relu lerp lgamma log log10
    log1p log2 log_sigmoid logaddexp logaddexp2 logical_and logical_not logical_or logical_xor
    logit lt masked_fill maximum minimum mish mul ne neg nextafter pow reciprocal relu relu6
    remainder round rsqrt rsub sgn sigmoid sign signbit silu sin sinh softplus sqrt square sub tan
    tanh threshold trunc where xlogy addcmul addcdiv _to_copy prelu
    _native_batch_norm_legit_no_training
    """.split()
)
REDUCTIONS = frozenset(
    "sum mean amax amin argmax argmin max min prod any all linalg_vector_norm var std".split()
)
# Composite ops along rows: their first output has the shape of their input.
NORMALIZERS = frozenset(
    """
    _softmax _log_softmax native_layer_norm native_group_norm _native_batch_norm_legit
    _fused_rms_norm
    """.split()
)
# Read one element of each row of a matrix of scores by the row's label.
LABEL_LOSSES = frozenset("nll_loss_forward nll_loss2d_forward".split())
SCANS = frozenset("cumsum cumprod".split())
GEMMS = frozenset("mm bmm".split())
VIEWS = frozenset(
    """
    alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t
    transpose unbind unfold unsqueeze view
    """.split()
)
# No tensor input: cheap enough to be written again in every region that reads them.
NULLARY = frozenset("full scalar_tensor zeros ones".split())
FACTORIES = NULLARY | frozenset("arange empty empty_permuted empty_strided eye linspace".split())
# Keep an element or write zero, by its position in the last two dims: only behind a product.
TRIANGLES = frozenset("tril triu".split())
RANDOM = frozenset(
    """
    bernoulli multinomial native_dropout normal poisson rand rand_like randint randint_like randn
    randn_like randperm rrelu_with_noise
    """.split()
)


def is_pointwise(op: Op) -> bool:
    return op.name in POINTWISE and (op.name != "where" or op.target == "aten.where.self")


def first_input(op: Op, values: dict[str, Tensor]) -> Tensor:
    """The tensor that a reduction, norm, scan or view reads first."""
    arg = op.args[0]
    if not isinstance(arg, Ref):
        raise TypeError(f"{op.target}: the first argument is no tensor")
    return values[arg.name]


def dims_of(arg: Arg, rank: int) -> tuple[int, ...]:
    """Ascending non-negative dims; None or () mean all of them."""
    if arg is None or arg == ():
        return tuple(range(rank))
    dims = arg if isinstance(arg, tuple) else (arg,)
    return tuple(sorted(int(d) % max(rank, 1) for d in dims if isinstance(d, int)))[: max(rank, 0)]


def reduction_dims(op: Op, values: dict[str, Tensor]) -> tuple[int, ...]:
    """Dims of the op's first input that a reduction runs over."""
    rank = len(first_input(op, values).shape)
    position = 2 if op.name == "linalg_vector_norm" else 1
    arg = op.args[position] if len(op.args) > position else op.kwarg("dim")
    return dims_of(arg, rank)


def anchor(op: Op, values: dict[str, Tensor]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """(space, reduce_dims) of an op that works along rows or scans, None for any other."""
    name = op.name
    if name not in REDUCTIONS | NORMALIZERS | SCANS | LABEL_LOSSES:
        return None
    if not isinstance(op.args[0], Ref) or (len(op.args) > 1 and isinstance(op.args[1], Ref)
                                           and name in {"max", "min"}):
        return None
    shape = values[op.args[0].name].shape
    rank = len(shape)
    if name in REDUCTIONS:
        return (shape, reduction_dims(op, values)) if rank else None
    if name in SCANS:
        return (shape, dims_of(op.args[1], rank)) if rank else None
    if name in {"_softmax", "_log_softmax"}:
        return (shape, dims_of(op.args[1], rank)) if rank else None
    if name in {"native_layer_norm", "_fused_rms_norm"}:
        width = len(op.args[1]) if isinstance(op.args[1], tuple) else 1
        return shape, tuple(range(rank - width, rank))
    if name == "native_group_norm":
        batch, channels, inner, groups = (int(a) for a in op.args[3:7] if isinstance(a, int))
        return (batch, groups, channels // groups, inner), (2, 3)
    if name in LABEL_LOSSES:
        return (shape, (1,)) if rank > 1 else None
    return shape, tuple(d for d in range(rank) if d != 1)


MAX_TAPS = 49  # of a stencil: its weights stay in registers


def is_stencil(op: Op, values: dict[str, Tensor]) -> bool:
    """A depthwise convolution along one or two dims, small, of contiguous half or single floats:
    bound by memory, so that what follows it elementwise belongs in its kernel."""
    if op.name != "convolution" or not isinstance(op.args[0], Ref):
        return False
    x, weight, out = (values[n] for n in (*[*op.refs()][:2], op.outputs[0]))
    transposed, groups = op.args[6], op.args[8]
    taps = 1
    for size in weight.shape[2:]:
        taps *= size
    return (
        len(x.shape) in (3, 4) and not transposed and taps <= MAX_TAPS
        and groups == x.shape[1] and weight.shape[1] == 1
        and x.dtype in ("float32", "bfloat16", "float16")
        and all(t.is_contiguous and 0 < t.numel < 2**31 for t in (x, weight, out))
    )
