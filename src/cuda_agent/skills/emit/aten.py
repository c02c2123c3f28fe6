"""How each core ATen pointwise op is written in C. Formulas are those of ATen's own kernels."""

from __future__ import annotations

import math
from typing import Any

from cuda_agent.skills.emit import types
from cuda_agent.skills.emit.context import HANDLERS, Context, Handler, Operand, register

# Overloads that share the name of a pointwise op but reduce, or read no tensor of the space.
_EXCLUDED = frozenset({
    "max.default", "max.dim", "min.default", "min.dim", "where.default", "any.default",
})  # fmt: skip


def handler(target: str) -> Handler | None:
    """The writer of `target` ("aten.add.Tensor"), or None if it is not a pointwise op."""
    namespace, _, rest = target.partition(".")
    if namespace not in ("aten", "prims") or rest in _EXCLUDED:
        return None
    return HANDLERS.get(rest.partition(".")[0])


# --- arithmetic -----------------------------------------------------------------------------


def _scaled(c: Context, b: Any, alpha: Any) -> str:
    return c(b) if alpha == 1 else f"{c(alpha)} * {c(b)}"


@register("add")
def _add(c: Context, a: Any, b: Any, alpha: Any = 1) -> str:
    if c.ctype == "bool":
        return f"({c(a)} || {c(b)})"
    return f"({c(a)} + {_scaled(c, b, alpha)})"


@register("sub", "subtract")
def _sub(c: Context, a: Any, b: Any, alpha: Any = 1) -> str:
    return f"({c(a)} - {_scaled(c, b, alpha)})"


@register("rsub")
def _rsub(c: Context, a: Any, b: Any, alpha: Any = 1) -> str:
    return f"({c(b)} - {_scaled(c, a, alpha)})"


@register("mul")
def _mul(c: Context, a: Any, b: Any) -> str:
    return f"({c(a)} {'&&' if c.ctype == 'bool' else '*'} {c(b)})"


@register("div", "true_divide")
def _div(c: Context, a: Any, b: Any, rounding_mode: str | None = None) -> str:
    if rounding_mode is None:
        return f"({c(a)} / {c(b)})"
    if c.ctype == "long long":
        return f"({c(a)} / {c(b)})" if rounding_mode == "trunc" else c.call("div_floor", a, b)
    if rounding_mode == "trunc":
        return c.call("trunc", f"{c(a)} / {c(b)}")
    return c.call("div_floor", a, b)


@register("floor_divide")
def _floor_divide(c: Context, a: Any, b: Any) -> str:
    return _div(c, a, b, rounding_mode="floor")


@register("fmod")
def _fmod(c: Context, a: Any, b: Any) -> str:
    return f"({c(a)} % {c(b)})" if c.ctype == "long long" else c.call("fmod", a, b)


@register("remainder")
def _remainder(c: Context, a: Any, b: Any) -> str:
    return c.call("remainder", a, b)


@register("pow")
def _pow(c: Context, base: Any, exponent: Any) -> str:
    if isinstance(exponent, Operand) or c.ctype == "bool":
        return c.call("pow", base, exponent)
    x, e = c(base), float(exponent)
    if e == 0.0:
        return c(1)
    if e in (1.0, 2.0, 3.0):
        return x if e == 1.0 else f"({' * '.join([x] * int(e))})"
    if c.ctype == "long long":
        return c.call("pow", base, int(exponent))
    if e == 0.5:
        return c.call("sqrt", x)
    if e == -0.5:
        return c.call("rsqrt", x)
    if e == -1.0:
        return f"({c(1)} / {x})"
    if e == -2.0:
        return f"({c(1)} / ({x} * {x}))"
    if e == 4.0:
        return f"(({x} * {x}) * ({x} * {x}))"
    return c.call("pow", base, exponent)


@register("square")
def _square(c: Context, x: Any) -> str:
    return f"({c(x)} * {c(x)})"


@register("reciprocal")
def _reciprocal(c: Context, x: Any) -> str:
    return f"({c(1)} / {c(x)})"


@register("neg")
def _neg(c: Context, x: Any) -> str:
    return f"(-{c(x)})"


@register("abs")
def _abs(c: Context, x: Any) -> str:
    if c.ctype == "bool":
        return c(x)
    return f"({c(x)} < 0 ? -{c(x)} : {c(x)})" if c.ctype == "long long" else c.call("abs", x)


@register("sign", "sgn")
def _sign(c: Context, x: Any) -> str:
    if c.ctype == "bool":
        return c(x)
    return f"({c.ctype})(({c(x)} > {c(0)}) - ({c(x)} < {c(0)}))"


@register("lerp")
def _lerp(c: Context, start: Any, end: Any, weight: Any) -> str:
    a, b, w = c(start), c(end), c(weight)
    low, high = f"({a} + {w} * ({b} - {a}))", f"({b} - ({b} - {a}) * ({c(1)} - {w}))"
    if not isinstance(weight, Operand):
        return low if abs(weight) < 0.5 else high
    return f"({c.call('abs', w)} < {c(0.5)} ? {low} : {high})"


@register("addcmul")
def _addcmul(c: Context, a: Any, x: Any, y: Any, value: Any = 1) -> str:
    scale = "" if value == 1 else f"{c(value)} * "
    return f"({c(a)} + {scale}{c(x)} * {c(y)})"


@register("addcdiv")
def _addcdiv(c: Context, a: Any, x: Any, y: Any, value: Any = 1) -> str:
    scale = "" if value == 1 else f"{c(value)} * "
    return f"({c(a)} + {scale}({c(x)} / {c(y)}))"


# --- elementary functions -------------------------------------------------------------------

for _name in (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan",
    "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
    "sigmoid", "lgamma",
):  # fmt: skip

    @register(_name)
    def _function(c: Context, x: Any, *, _called: str = _name) -> str:
        return c.call(_called, x)


for _name in ("floor", "ceil", "trunc"):

    @register(_name)
    def _rounding(c: Context, x: Any, *, _called: str = _name) -> str:
        return c.call(_called, x) if c.ctype in ("float", "double") else c(x)


@register("round")
def _round(c: Context, x: Any, decimals: int = 0) -> str:
    if c.ctype not in ("float", "double"):
        return c(x)
    if decimals == 0:
        return c.call("rint", x)
    scale = c(10.0 ** abs(decimals))
    inner, outer = ("*", "/") if decimals > 0 else ("/", "*")
    rounded = c.call("rint", f"{c(x)} {inner} {scale}")
    return f"({rounded} {outer} {scale})"


@register("frac")
def _frac(c: Context, x: Any) -> str:
    return f"({c(x)} - {c.call('trunc', x)})"


@register("deg2rad")
def _deg2rad(c: Context, x: Any) -> str:
    return f"({c(x)} * {c(math.pi / 180)})"


@register("xlogy")
def _xlogy(c: Context, x: Any, y: Any) -> str:
    zero = f"({c(x)} == {c(0)} ? {c(0)} : {c(x)} * {c.call('log', y)})"
    return f"({c(y)} != {c(y)} ? {c(y)} : {zero})"


@register("logaddexp")
def _logaddexp(c: Context, a: Any, b: Any) -> str:
    high = c.call("maximum", a, b)
    tail = c.call("log1p", c.call("exp", f"-{c.call('abs', f'{c(a)} - {c(b)}')}"))
    return f"({c(a)} == {c(b)} && {c.call('abs', a)} == {c(math.inf)} ? {c(a)} : {high} + {tail})"


for _name in ("atan2", "hypot", "copysign", "fmin", "fmax"):

    @register(_name)
    def _binary(c: Context, x: Any, y: Any, *, _called: str = _name) -> str:
        return c.call(_called, x, y)


# --- activations ----------------------------------------------------------------------------


@register("relu")
def _relu(c: Context, x: Any) -> str:
    return f"({c(x)} < {c(0)} ? {c(0)} : {c(x)})"  # written so that NaN stays NaN


@register("relu6")
def _relu6(c: Context, x: Any) -> str:
    return _clamp(c, x, 0, 6)


@register("leaky_relu")
def _leaky_relu(c: Context, x: Any, negative_slope: float = 0.01) -> str:
    return f"({c(x)} > {c(0)} ? {c(x)} : {c(x)} * {c(negative_slope)})"


@register("prelu", "_prelu_kernel")
def _prelu(c: Context, x: Any, weight: Any) -> str:
    return f"({c(x)} > {c(0)} ? {c(x)} : {c(weight)} * {c(x)})"


@register("gelu")
def _gelu(c: Context, x: Any, approximate: str = "none") -> str:
    v = c(x)
    if approximate == "tanh":
        beta = math.sqrt(2.0) * (2.0 / math.sqrt(math.pi)) * 0.5
        inner = c.call("tanh", f"{c(beta)} * ({v} + {c(0.044715)} * {v} * {v} * {v})")
    else:
        inner = c.call("erf", f"{v} * {c(math.sqrt(0.5))}")
    return f"({c(0.5)} * {v} * ({c(1)} + {inner}))"


@register("silu")
def _silu(c: Context, x: Any) -> str:
    return f"({c(x)} / ({c(1)} + {c.call('exp', f'-{c(x)}')}))"


@register("elu")
def _elu(
    c: Context, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> str:
    negative = c.call("expm1", x if input_scale == 1 else f"{c(x)} * {c(input_scale)}")
    if alpha * scale != 1:
        negative = f"{negative} * {c(alpha * scale)}"
    positive = c(x) if scale == 1 else f"{c(x)} * {c(scale)}"
    return f"({c(x)} <= {c(0)} ? {negative} : {positive})"


@register("selu")
def _selu(c: Context, x: Any) -> str:
    return _elu(c, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@register("celu")
def _celu(c: Context, x: Any, alpha: float = 1.0) -> str:
    return _elu(c, x, alpha, 1, 1 / alpha)


@register("hardtanh")
def _hardtanh(c: Context, x: Any, min_val: float = -1, max_val: float = 1) -> str:
    return _clamp(c, x, min_val, max_val)


@register("hardsigmoid")
def _hardsigmoid(c: Context, x: Any) -> str:
    return f"({_bounded(f'({c(x)} + {c(3)})', c(0), c(6))} / {c(6)})"


@register("hardswish")
def _hardswish(c: Context, x: Any) -> str:
    return f"({c(x)} * {_bounded(f'({c(x)} + {c(3)})', c(0), c(6))} / {c(6)})"


@register("softplus")
def _softplus(c: Context, x: Any, beta: float = 1, threshold: float = 20) -> str:
    scaled = c(x) if beta == 1 else f"({c(x)} * {c(beta)})"
    soft = c.call("log1p", c.call("exp", scaled))
    if beta != 1:
        soft = f"{soft} / {c(beta)}"
    return f"({scaled} > {c(threshold)} ? {c(x)} : {soft})"


@register("mish")
def _mish(c: Context, x: Any) -> str:
    return f"({c(x)} * {c.call('tanh', _softplus(c, x, 1, 1e30))})"


@register("log_sigmoid_forward")
def _log_sigmoid(c: Context, x: Any) -> str:
    low = f"({c(x)} > {c(0)} ? {c(0)} : {c(x)})"
    tail = c.call("log1p", c.call("exp", f"-{c.call('abs', x)}"))
    return f"({low} - {tail})"


@register("hardshrink")
def _hardshrink(c: Context, x: Any, lambd: float = 0.5) -> str:
    return f"({c(x)} >= {c(-lambd)} && {c(x)} <= {c(lambd)} ? {c(0)} : {c(x)})"


@register("softshrink")
def _softshrink(c: Context, x: Any, lambd: float = 0.5) -> str:
    v, bound = c(x), c(lambd)
    return f"({v} > {bound} ? {v} - {bound} : ({v} < -{bound} ? {v} + {bound} : {v} * {c(0)}))"


@register("threshold")
def _threshold(c: Context, x: Any, threshold: float, value: float) -> str:
    return f"({c(x)} <= {c(threshold)} ? {c(value)} : {c(x)})"


@register("log_sigmoid")
def _log_sigmoid_plain(c: Context, x: Any) -> str:
    return _log_sigmoid(c, x)


@register("logit")
def _logit(c: Context, x: Any, eps: float | None = None) -> str:
    v = c(x) if eps is None else _bounded(c(x), c(eps), c(1 - eps))
    return c.call("log", f"{v} / ({c(1)} - {v})")


# --- bounds and choices ---------------------------------------------------------------------


def _bounded(value: str, low: str | None, high: str | None) -> str:
    """min(max(value, low), high), written so that NaN stays NaN."""
    if low is not None:
        value = f"({value} < {low} ? {low} : {value})"
    if high is not None:
        value = f"({value} > {high} ? {high} : {value})"
    return value


@register("clamp", "clip")
def _clamp(c: Context, x: Any, min: Any = None, max: Any = None) -> str:
    if isinstance(min, Operand) or isinstance(max, Operand):
        value = c(x) if min is None else _maximum(c, x, min)
        return value if max is None else _choose(c, value, c(max), "<")
    low = None if min is None else c(min)
    high = None if max is None else c(max)
    if low is not None and high is not None and min > max:
        return f"({c(x)} != {c(x)} ? {c(x)} : {high})"
    return _bounded(c(x), low, high)


@register("clamp_min")
def _clamp_min(c: Context, x: Any, min: Any) -> str:
    return _clamp(c, x, min, None)


@register("clamp_max")
def _clamp_max(c: Context, x: Any, max: Any) -> str:
    return _clamp(c, x, None, max)


def _choose(c: Context, a: str, b: str, comparison: str) -> str:
    """The smaller or larger of `a` and `b`; NaN if either is."""
    if c.ctype in ("float", "double"):
        return c.call("minimum" if comparison == "<" else "maximum", a, b)
    if c.ctype == "bool":
        return f"({a} {'&&' if comparison == '<' else '||'} {b})"
    return f"({a} {comparison} {b} ? {a} : {b})"


@register("maximum", "max")
def _maximum(c: Context, a: Any, b: Any) -> str:
    return _choose(c, c(a), c(b), ">")


@register("minimum", "min")
def _minimum(c: Context, a: Any, b: Any) -> str:
    return _choose(c, c(a), c(b), "<")


@register("where")
def _where(c: Context, condition: Any, a: Any, b: Any) -> str:
    return f"({c(condition, 'bool')} ? {c(a)} : {c(b)})"


@register("masked_fill")
def _masked_fill(c: Context, x: Any, mask: Any, value: Any) -> str:
    return f"({c(mask, 'bool')} ? {c(value)} : {c(x)})"


# --- comparisons, logic, bits ---------------------------------------------------------------

for _name, _sign_of in {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}.items():  # fmt: skip

    @register(_name)
    def _compare(c: Context, a: Any, b: Any, *, _op: str = _sign_of) -> str:
        meet = c.common(a, b)
        return f"({c(a, meet)} {_op} {c(b, meet)})"


for _name, _sign_of in {"logical_and": "&&", "logical_or": "||", "logical_xor": "!="}.items():

    @register(_name)
    def _logical(c: Context, a: Any, b: Any, *, _op: str = _sign_of) -> str:
        return f"({c(a, 'bool')} {_op} {c(b, 'bool')})"


@register("logical_not")
def _logical_not(c: Context, x: Any) -> str:
    return f"(!{c(x, 'bool')})"


for _name, _sign_of in {"bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}.items():

    @register(_name)
    def _bitwise(c: Context, a: Any, b: Any, *, _op: str = _sign_of) -> str:
        if c.ctype == "bool":
            return f"({c(a)} {'!=' if _op == '^' else _op * 2} {c(b)})"
        return f"({c(a)} {_op} {c(b)})"


@register("bitwise_not")
def _bitwise_not(c: Context, x: Any) -> str:
    return f"({'!' if c.ctype == 'bool' else '~'}{c(x)})"


@register("isnan")
def _isnan(c: Context, x: Any) -> str:
    kind = c.common(x)
    return f"({c(x, kind)} != {c(x, kind)})"


@register("isinf")
def _isinf(c: Context, x: Any) -> str:
    kind = c.common(x)
    if kind not in ("float", "double"):
        return c(False)
    return f"({c.call('abs', x, ctype=kind)} == {c(math.inf, kind)})"


@register("isfinite")
def _isfinite(c: Context, x: Any) -> str:
    kind = c.common(x)
    if kind not in ("float", "double"):
        return c(True)
    return f"({c.call('abs', x, ctype=kind)} < {c(math.inf, kind)})"


@register("nan_to_num")
def _nan_to_num(
    c: Context, x: Any, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> str:  # fmt: skip
    if c.ctype not in ("float", "double"):
        return c(x)
    largest = {
        "float64": 1.7976931348623157e308, "float32": 3.4028234663852886e38,
        "bfloat16": 3.3895313892515355e38, "float16": 65504.0,
    }[c.dtype]  # fmt: skip
    v = c(x)
    high, low = c(largest if posinf is None else posinf), c(-largest if neginf is None else neginf)
    finite = f"({v} == {c(math.inf)} ? {high} : ({v} == {c(-math.inf)} ? {low} : {v}))"
    return f"({v} != {v} ? {c(nan or 0.0)} : {finite})"


@register("signbit")
def _signbit(c: Context, x: Any) -> str:
    kind = c.common(x)
    if kind not in ("float", "double"):
        return f"({c(x, kind)} < 0)"
    return f"({c.call('copysign', 1, x, ctype=kind)} < 0)"


@register("heaviside")
def _heaviside(c: Context, x: Any, at_zero: Any) -> str:
    v = c(x)
    return f"({v} == {c(0)} ? {c(at_zero)} : ({v} < {c(0)} || {v} != {v} ? {c(0)} : {c(1)}))"


@register("tril_at")
def _tril(c: Context, x: Any, row: Any, column: Any, diagonal: int = 0) -> str:
    """tril at a position of the last two dims (see `elementwise.positioned`)."""
    at = f"{c(column, 'long long')} - {c(row, 'long long')}"
    return f"({at} <= {diagonal} ? {c(x)} : {c(0)})"


@register("triu_at")
def _triu(c: Context, x: Any, row: Any, column: Any, diagonal: int = 0) -> str:
    at = f"{c(column, 'long long')} - {c(row, 'long long')}"
    return f"({at} >= {diagonal} ? {c(x)} : {c(0)})"


# --- constants, copies, conversion ----------------------------------------------------------


@register("full")
def _full(c: Context, size: Any, fill_value: Any, **_: Any) -> str:
    return c(fill_value)


@register("full_like")
def _full_like(c: Context, x: Any, fill_value: Any, **_: Any) -> str:
    return c(fill_value)


@register("scalar_tensor")
def _scalar_tensor(c: Context, value: Any, **_: Any) -> str:
    return c(value)


@register("zeros", "zeros_like")
def _zeros(c: Context, _shape: Any, **_: Any) -> str:
    return c(0)


@register("ones", "ones_like")
def _ones(c: Context, _shape: Any, **_: Any) -> str:
    return c(1)


@register("fill")
def _fill(c: Context, x: Any, value: Any) -> str:
    return c(value)


@register("clone", "alias", "detach", "lift_fresh_copy", "contiguous")
def _identity(c: Context, x: Any, **_: Any) -> str:
    return c(x)


@register("_to_copy", "convert_element_type")
def _to_copy(c: Context, x: Any, *_: Any, **__: Any) -> str:
    return c.use(types.round_trip(c(x), c.dtype)) if c.dtype in types.REDUCED else c(x)


# --- inference batch norm -------------------------------------------------------------------


@register("_native_batch_norm_legit_no_training")
def _batch_norm(
    c: Context, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> str:
    """Per channel: (x - mean) / sqrt(var + eps) * weight + bias. The four operands of one element
    per channel lie along dim 1 of the space (see `indexing.channel_operands`)."""
    # 1 / sqrt, as ATen: rsqrt would lose an ulp on CUDA.
    text = f"({c(x)} - {c(mean)}) * ({c(1)} / {c.call('sqrt', f'{c(var)} + {c(eps)}')})"
    if weight is not None:
        text = f"{text} * {c(weight)}"
    return f"({text})" if bias is None else f"({text} + {c(bias)})"
