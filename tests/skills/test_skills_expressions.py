"""Pointwise ops as C: accuracy of the vectorised functions, and every op against torch."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from skills_harness import build_cpp, compile_cuda, compiler_missing, dtype_name

from cuda_agent.graph.ir import Op, Ref, Tensor
from cuda_agent.graph.ops import POINTWISE
from cuda_agent.skills.emit import expressions, math_cpp, types
from cuda_agent.skills.emit.expressions import expression, identifier, is_pointwise, preamble

aten = torch.ops.aten
needs_compiler = pytest.mark.skipif(compiler_missing(), reason="no C++ compiler")
# Largest error in units of the last place over all normal results.
MAX_ULP = {
    "exp": 1.5, "exp2": 1.5, "expm1": 2, "log": 1.5, "log1p": 2, "log2": 2, "log10": 2.5, "sin": 2,
    "cos": 2, "tan": 4, "tanh": 3, "erf": 2, "sinh": 3, "cosh": 3, "sigmoid": 3, "rsqrt": 2,
}  # fmt: skip


def _grid() -> torch.Tensor:
    torch.manual_seed(0)
    scales = (1e-30, 1e-6, 1e-2, 0.3, 1, 3, 10, 40, 1e4, 1e8)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 1.0, -1.0, 88.8, 88.7, -103.9, 8.0]
    return torch.cat([*(torch.randn(1 << 13) * s for s in scales), torch.tensor(special)]).float()


def _ulps(got: torch.Tensor, want: torch.Tensor) -> float:
    """Largest error where the exact result is a normal float32."""
    rounded = want.float().abs()
    step = (torch.nextafter(rounded, torch.tensor(math.inf)) - rounded).double()
    normal = (rounded > 1.2e-38) & (rounded < 3e38) & (got.abs() > 0)
    return float(((got.double() - want).abs() / step)[normal].max())


def _loop(name: str, body: str, inputs: int) -> str:
    head = ", ".join(f"const float* __restrict x{i}" for i in range(inputs))
    return (f'extern "C" void {name}({head}, float* __restrict y, long long n) {{\n'
            f"#pragma omp simd\nfor (long long i = 0; i < n; ++i) y[i] = {body};\n}}\n")


@pytest.mark.compiler
@needs_compiler
def test_vectorised_functions_are_accurate_and_handle_special_values() -> None:
    source = preamble([f"{f}_f32" for f in MAX_ULP], "cpp")
    source += "\n" + "".join(_loop(f"k_{f}", f"{f}_f32(x0[i])", 1) for f in MAX_ULP)
    library, x = build_cpp(source), _grid()
    for name, bound in MAX_ULP.items():
        y = torch.empty_like(x)
        getattr(library, f"k_{name}")(_p(x), _p(y), ctypes.c_longlong(x.numel()))
        want = getattr(torch, name)(x.double())
        assert torch.equal(y.isnan(), want.isnan()), name
        assert torch.equal(y.isinf(), want.float().isinf()), name
        assert _ulps(y, want) <= bound, (name, _ulps(y, want))


@pytest.mark.compiler
@needs_compiler
def test_power_is_correctly_rounded_and_follows_c_in_special_cases() -> None:
    source = preamble(["pow_f32"], "cpp") + "\n" + _loop("k", "pow_f32(x0[i], x1[i])", 2)
    special = torch.tensor([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e-40, -1e-40, math.inf,
                            -math.inf, math.nan, 1e30, -1e30, 4e7])
    a, b = torch.meshgrid(special, special, indexing="ij")
    torch.manual_seed(1)
    x = torch.cat([a.flatten(), torch.rand(1 << 14) * 10])
    y = torch.cat([b.flatten(), torch.randn(1 << 14) * 10])
    got = torch.empty_like(x)
    build_cpp(source).k(_p(x), _p(y), _p(got), ctypes.c_longlong(x.numel()))
    want = torch.pow(x.double(), y.double())
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.float().isinf())
    assert torch.equal(got.signbit() & ~got.isnan(), want.signbit() & ~want.isnan())
    assert _ulps(got, want) <= 0.51


def _p(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


# --- every op against torch ---------------------------------------------------------------------

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
X, Y, Z, P, U, M, N, J = "x", "y", "z", "p", "u", "m", "n", "j"


def _values() -> dict[str, torch.Tensor]:
    """x, y, z any floats, p positive, u in (-1, 1), m bool, n and j integers."""
    torch.manual_seed(2)
    size = 203
    made = {
        X: torch.randn(size) * 3, Y: torch.randn(size) * 2, Z: torch.randn(size),
        P: torch.rand(size) * 4 + 0.1, U: torch.rand(size) * 1.9 - 0.95,
        M: torch.rand(size) > 0.5, N: torch.randint(-20, 20, (size,)),
        J: torch.randint(1, 7, (size,)),
    }  # fmt: skip
    made[X][:5] = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
    made[Y][3:8] = torch.tensor([math.nan, math.inf, 1.0, -0.5, 2.5])
    return made


def _c(op: Any, *args: Any, **kwargs: Any) -> Call:
    return op, args, kwargs


CALLS: list[Call] = [
    _c(aten.add.Tensor, X, Y), _c(aten.add.Tensor, X, Y, alpha=0.3), _c(aten.add.Scalar, X, 2),
    _c(aten.sub.Tensor, X, Y, alpha=2), _c(aten.rsub.Scalar, X, 1.5), _c(aten.mul.Tensor, X, Y),
    _c(aten.div.Tensor, X, Y), _c(aten.div.Tensor, N, J), _c(aten.div.Scalar, X, 3),
    _c(aten.div.Tensor_mode, X, Y, rounding_mode="floor"),
    _c(aten.div.Tensor_mode, X, Y, rounding_mode="trunc"),
    _c(aten.div.Tensor_mode, N, J, rounding_mode="floor"),
    _c(aten.div.Tensor_mode, N, J, rounding_mode="trunc"),
    _c(aten.fmod.Tensor, X, Y), _c(aten.fmod.Scalar, N, 7), _c(aten.remainder.Tensor, X, Y),
    _c(aten.remainder.Scalar, N, -7), _c(aten.pow.Tensor_Tensor, P, Y),
    *(_c(aten.pow.Tensor_Scalar, P, e) for e in (0, 0.5, -0.5, 1, -1, 2, -2, 3, 4, 1.7)),
    _c(aten.pow.Scalar, 2.5, X), _c(aten.pow.Tensor_Scalar, N, 3), _c(aten.reciprocal.default, X),
    _c(aten.neg.default, X), _c(aten.neg.default, N), _c(aten.abs.default, X),
    _c(aten.abs.default, N), _c(aten.sign.default, X), _c(aten.sign.default, N),
    _c(aten.lerp.Scalar, X, Z, 0.3), _c(aten.lerp.Scalar, X, Z, 0.7), _c(aten.lerp.Tensor, Y, Z, U),
    _c(aten.addcmul.default, X, Y, Z, value=0.5), _c(aten.addcdiv.default, X, Z, P, value=2),
    *(_c(getattr(aten, n).default, X) for n in (
        "exp", "exp2", "expm1", "sin", "cos", "tan", "tanh", "sigmoid", "erf", "erfc", "sinh",
        "cosh", "atan", "asinh", "floor", "ceil", "trunc", "round", "relu", "silu", "hardswish",
        "hardsigmoid", "isnan", "isinf", "signbit", "square", "mish", "frac", "deg2rad")),
    *(_c(getattr(aten, n).default, P) for n in (
        "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "lgamma")),
    *(_c(getattr(aten, n).default, U) for n in ("asin", "acos", "atanh")),
    _c(aten.acosh.default, P), _c(aten.log.default, X), _c(aten.sqrt.default, X),
    _c(aten.round.decimals, Y, decimals=2), _c(aten.atan2.default, X, Z),
    _c(aten.hypot.default, X, Z), _c(aten.copysign.Tensor, X, Y), _c(aten.fmin.default, X, Y),
    _c(aten.fmax.default, X, Y), _c(aten.gelu.default, X),
    _c(aten.gelu.default, X, approximate="tanh"), _c(aten.leaky_relu.default, X, 0.2),
    _c(aten.elu.default, X), _c(aten.elu.default, X, 1.6732632, 1.0507010, 1.0),
    _c(aten.elu.default, X, 1.5, 1.0, 2.0), _c(aten.hardtanh.default, X, -2.0, 1.5),
    _c(aten.softplus.default, X), _c(aten.softplus.default, X, 2.0, 3.0),
    _c(aten.hardshrink.default, X, 0.7), _c(aten.softshrink.default, Y, 0.7),
    _c(aten.threshold.default, X, 0.5, 9.0), _c(aten.logit.default, P, 1e-3),
    _c(aten._prelu_kernel.default, X, Z), _c(aten.xlogy.Tensor, Z, P),
    _c(aten.logaddexp.default, X, Z), _c(aten.heaviside.default, Z, Y),
    _c(aten.clamp.default, X, -1, 2), _c(aten.clamp.default, X, 0.5),
    _c(aten.clamp.default, X, 2, 1),
    _c(aten.clamp.Tensor, X, Z, P), _c(aten.clamp_min.default, X, 0),
    _c(aten.clamp_max.default, N, 3), _c(aten.maximum.default, X, Y),
    _c(aten.minimum.default, X, Y),
    _c(aten.maximum.default, N, J), _c(aten.where.self, M, X, Y), _c(aten.where.self, M, N, J),
    _c(aten.masked_fill.Scalar, X, M, -1e9), _c(aten.eq.Tensor, N, J), _c(aten.ne.Scalar, N, 3),
    _c(aten.lt.Tensor, X, Y), _c(aten.le.Scalar, X, 0.5), _c(aten.gt.Tensor, X, Z),
    _c(aten.ge.Scalar, N, 2), _c(aten.gt.Tensor, X, N), _c(aten.logical_and.default, M, X),
    _c(aten.logical_or.default, M, N), _c(aten.logical_xor.default, M, N),
    _c(aten.logical_not.default, X), _c(aten.bitwise_and.Tensor, N, J),
    _c(aten.bitwise_or.Tensor, N, J), _c(aten.bitwise_xor.Scalar, N, 5),
    _c(aten.bitwise_not.default, N), _c(aten.bitwise_not.default, M),
    _c(aten.bitwise_and.Tensor, M, M), _c(aten.nan_to_num.default, X),
    _c(aten.nan_to_num.default, X, 1.0, 2.0, -3.0),
    _c(aten._to_copy.default, X, dtype="torch.bool"),
    _c(aten._to_copy.default, N, dtype="torch.float32"),
    _c(aten._to_copy.default, P, dtype="torch.int64"),
    _c(aten._to_copy.default, X, dtype="torch.float64"),
    _c(aten._to_copy.default, Y, dtype="torch.bfloat16"),
    _c(aten._to_copy.default, Y, dtype="torch.float16"),
    _c(aten.full_like.default, X, 2.5), _c(aten.clone.default, X), _c(aten.fill.Scalar, X, 3),
]  # fmt: skip


def _torch_dtype(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: getattr(torch, v[6:]) if isinstance(v, str) and v.startswith("torch.") else v
            for k, v in kwargs.items()}


def _arguments(call: Call, values: dict[str, torch.Tensor]) -> list[Any]:
    return [values[a] if isinstance(a, str) and a in values else a for a in call[1]]


def _described(position: int, values: dict[str, torch.Tensor]) -> tuple[Op, dict[str, Tensor]]:
    """The call as an op of the graph; its result is named r<position>."""
    op, args, kwargs = CALLS[position]
    result = op(*_arguments(CALLS[position], values), **_torch_dtype(kwargs))
    known = {n: Tensor(n, (203,), (1,), dtype_name(v)) for n, v in values.items()}
    name = f"r{position}"
    known[name] = Tensor(name, (203,), (1,), dtype_name(result))
    refs = tuple(Ref(a) if isinstance(a, str) and a in values else a for a in args)
    return Op(str(op), refs, (name,), tuple(kwargs.items())), known


def _kernel(position: int, values: dict[str, torch.Tensor], language: Any) -> tuple[str, set[str]]:
    op, known = _described(position, values)
    names = list(dict.fromkeys(op.refs()))
    scope = {n: f"{n}_" for n in names}
    code = expression(op, known, scope, language)
    helpers = set(code.helpers)
    lines = []
    for n in names:
        loaded = types.load(f"{n}_ptr[k]", known[n].dtype)
        lines.append(f"const {types.compute_type(known[n].dtype)} {n}_ = {loaded.text};")
    stored = types.store(code.text, known[op.outputs[0]].dtype)
    helpers |= stored.helpers
    kind = types.storage_type(known[op.outputs[0]].dtype)
    parameters = [f"const {types.storage_type(known[n].dtype)}* {n}_ptr" for n in names]
    head = 'extern "C" ' + ("__global__ " if language == "cuda" else "")
    text = (f"{head}void call_{position}({', '.join([*parameters, f'{kind}* out'])}) {{\n"
            f"for (int k = 0; k < 203; ++k) {{ {' '.join(lines)} out[k] = {stored.text}; }}\n}}\n")
    return text, helpers


def _source(language: Any) -> str:
    values = _values()
    written = [_kernel(position, values, language) for position in range(len(CALLS))]
    helpers = set().union(*(h for _, h in written))
    return preamble(helpers, language) + "\n\n" + "".join(text for text, _ in written)


def _agrees(got: torch.Tensor, want: torch.Tensor, wide: torch.Tensor) -> bool:
    """Equal to torch up to a few roundings; NaN and infinities where torch has them."""
    if not got.is_floating_point():
        return torch.equal(got, want)
    close = torch.isclose(got.double(), wide.double(), rtol=1e-2 if got.itemsize == 2 else 4e-6,
                          atol=2e-6, equal_nan=True)
    same = torch.isclose(got.double(), want.double(), rtol=4e-6, atol=2e-6, equal_nan=True)
    return bool((close | same).all())


def _compare(position: int, got: torch.Tensor, values: dict[str, torch.Tensor]) -> None:
    op, _, kwargs = CALLS[position]
    want = op(*_arguments(CALLS[position], values), **_torch_dtype(kwargs))
    doubled = {n: v.double() if v.is_floating_point() else v for n, v in values.items()}
    wide = op(*_arguments(CALLS[position], doubled), **_torch_dtype(kwargs))
    assert _agrees(got, want, wide), f"{CALLS[position]}: {got[:12]} is not {want[:12]}"


@pytest.mark.compiler
@needs_compiler
def test_every_op_agrees_with_torch_in_cpp() -> None:
    values, library = _values(), build_cpp(_source("cpp"))
    for position in range(len(CALLS)):
        op, known = _described(position, values)
        names = list(dict.fromkeys(op.refs()))
        out = torch.empty(203, dtype=getattr(torch, known[op.outputs[0]].dtype))
        getattr(library, f"call_{position}")(*(_p(values[n]) for n in names), _p(out))
        _compare(position, out, values)


@pytest.mark.nvrtc
def test_every_op_compiles_for_hopper() -> None:
    compile_cuda(_source("cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_every_op_agrees_with_torch_on_a_device(tmp_path: Any) -> None:
    from cuda_agent import runtime

    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "ops.cu").write_text(_source("cuda"))
    kernels, values = runtime.load(str(tmp_path / "model_new.py")), _values()
    moved = {n: v.cuda() for n, v in values.items()}
    for position in range(len(CALLS)):
        op, known = _described(position, values)
        names = list(dict.fromkeys(op.refs()))
        out = torch.empty(203, dtype=getattr(torch, known[op.outputs[0]].dtype), device="cuda")
        getattr(kernels, f"call_{position}")(1, 1, *(moved[n] for n in names), out)
        _compare(position, out.cpu(), values)


# --- the rest of the interface ------------------------------------------------------------------


def test_ops_that_the_graph_calls_elementwise_can_be_written() -> None:
    """Few are missing, and region forming may hand them over: they stay torch calls."""
    missing = {n for n in POINTWISE if not is_pointwise(Op(f"aten.{n}.self", (), ("y",)))}
    assert missing <= {"digamma", "erfinv", "logaddexp2", "nextafter"}


@pytest.mark.parametrize("target", ["aten.sum.default", "aten.max.dim", "aten.mm.default",
                                    "custom.relu.default"])
def test_other_ops_are_not_pointwise(target: str) -> None:
    assert not is_pointwise(Op(target, (), ("y",)))


def test_names_that_c_or_the_kernels_need_are_changed() -> None:
    assert identifier("relu") == "relu" and identifier("exp") == "exp_"
    assert identifier("float") == "float_" and identifier("tanh_f32") == "tanh_f32_"


def test_literals_are_exact() -> None:
    assert types.literal(0.1, "float", "cpp") == "0.1f"
    assert types.literal(1, "float", "cuda") == "1.0f"
    assert types.literal(1e-5, "float", "cuda") == "1e-05f"
    assert types.literal(-math.inf, "float", "cuda") == "(-__int_as_float(0x7f800000))"
    assert types.literal(3.0, "long long", "cpp") == "3"
    assert types.literal(1e300, "float", "cpp") == "__builtin_inff()"


def test_a_preamble_defines_before_use() -> None:
    for name in math_cpp.HELPERS:
        text = preamble([name], "cpp")
        at = {other: text.find(f" {other}(") for other in math_cpp.HELPERS if f" {other}(" in text}
        assert name in at and all(position >= 0 for position in at.values())
    assert preamble([], "cuda") == ""


def test_statements_name_values_after_their_ops() -> None:
    x, y, z = (Tensor(n, (4,), (1,), "float32") for n in ("x", "relu", "mul"))
    ops: Sequence[Op] = (Op("aten.relu.default", (Ref("x"),), ("relu",)),
                         Op("aten.mul.Tensor", (Ref("relu"), 2.0), ("mul",)))
    written = expressions.statements(ops, {"x": x, "relu": y, "mul": z}, {"x": "x"}, "cuda")
    assert written.lines == ("const float relu = x < 0.0f ? 0.0f : x;",
                             "const float mul = relu * 2.0f;")
