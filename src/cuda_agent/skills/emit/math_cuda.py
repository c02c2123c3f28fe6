"""CUDA: device functions by compute type, and the helper functions that a kernel may need.

All are libdevice's accurate versions. Helper text is CUDA C++ that NVRTC takes without any header.
"""

from __future__ import annotations

import re

_PLAIN = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "sin", "cos", "tan",
    "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "erfc",
    "lgamma", "floor", "ceil", "trunc", "rint", "fmod", "pow", "atan2", "hypot", "copysign",
    "fmin", "fmax",
)  # fmt: skip
_OURS = ("sigmoid", "minimum", "maximum", "remainder", "div_floor")


def _table(suffix: str, ours: str) -> dict[str, str]:
    table = {name: name + suffix for name in _PLAIN}
    table["abs"] = "fabs" + suffix
    table.update({name: f"{name}_{ours}" for name in _OURS})
    return table


FUNCTIONS: dict[str, dict[str, str]] = {
    "float": _table("f", "f32"),
    "double": _table("", "f64"),
    "long long": {n: f"{n}_i64" for n in ("div_floor", "remainder", "pow")},
    "bool": {},
}

FLOAT_TEMPLATES = {
    "sigmoid": """
INLINE T sigmoid_S(T x) { return ONE / (ONE + EXP(-x)); }""",
    "minimum": """
// NaN if either operand is, as torch.minimum
INLINE T minimum_S(T a, T b) { return a != a || a < b ? a : b; }""",
    "maximum": """
// NaN if either operand is, as torch.maximum
INLINE T maximum_S(T a, T b) { return a != a || a > b ? a : b; }""",
    "remainder": """
// Python's modulo: the sign of the divisor
INLINE T remainder_S(T a, T b) {
    const T rest = FMOD(a, b);
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}""",
    "div_floor": """
// floor(a / b) as torch computes it, through the remainder so that rounding cannot overshoot
INLINE T div_floor_S(T a, T b) {
    if (b == 0) return a / b;
    const T rest = FMOD(a, b);
    T quotient = (a - rest) / b;
    if (rest != 0 && (b < 0) != (rest < 0)) quotient -= ONE;
    if (quotient == 0) return COPYSIGN(ZERO, a / b);
    const T whole = FLOOR(quotient);
    return quotient - whole > HALF ? whole + ONE : whole;
}""",
}
TYPE_WORDS = {
    "f32": {
        "T": "float", "S": "f32", "ONE": "1.0f", "ZERO": "0.0f", "HALF": "0.5f", "EXP": "expf",
        "FMOD": "fmodf", "COPYSIGN": "copysignf", "FLOOR": "floorf",
    },
    "f64": {
        "T": "double", "S": "f64", "ONE": "1.0", "ZERO": "0.0", "HALF": "0.5", "EXP": "exp",
        "FMOD": "fmod", "COPYSIGN": "copysign", "FLOOR": "floor",
    },
}  # fmt: skip


def fill(template: str, words: dict[str, str]) -> str:
    """`template` with its placeholder words replaced, also after an underscore (`minimum_S`)."""
    return re.sub(
        r"(?<![A-Za-z0-9])(" + "|".join(words) + r")(?![A-Za-z0-9_])",
        lambda m: words[m.group(1)],
        template,
    )


INTEGER_HELPERS = {
    "div_floor_i64": """
// rounds towards minus infinity, as torch.div(rounding_mode="floor")
INLINE long long div_floor_i64(long long a, long long b) {
    const long long quotient = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}""",
    "remainder_i64": """
// Python's modulo: the sign of the divisor
INLINE long long remainder_i64(long long a, long long b) {
    const long long rest = a % b;
    return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}""",
    "pow_i64": """
// integer power by squaring; negative exponents give 0, 1 or -1, as torch.pow
INLINE long long pow_i64(long long x, long long exponent) {
    if (exponent < 0) return x == 1 ? 1 : (x == -1 ? (exponent % 2 ? -1 : 1) : 0);
    unsigned long long power = 1, factor = (unsigned long long)x;
    for (; exponent; exponent >>= 1, factor *= factor)
        if (exponent & 1) power *= factor;
    return (long long)power;
}""",
}

_INLINE = "__device__ __forceinline__"

HELPERS: dict[str, str] = {
    "bf16_to_float": """
__device__ __forceinline__ float bf16_to_float(unsigned short bits) {
    return __uint_as_float((unsigned int)bits << 16);
}""",
    "float_to_bf16": """
// round to nearest even, in one instruction since sm_80
__device__ __forceinline__ unsigned short float_to_bf16(float x) {
    unsigned short bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}""",
    "half_to_float": """
__device__ __forceinline__ float half_to_float(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}""",
    "float_to_half": """
__device__ __forceinline__ unsigned short float_to_half(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}""",
    **{
        f"{name}_{size}": fill(text, {**words, "INLINE": _INLINE})
        for name, text in FLOAT_TEMPLATES.items()
        for size, words in TYPE_WORDS.items()
    },
    **{
        name: fill(text, {"INLINE": _INLINE})
        for name, text in INTEGER_HELPERS.items()
    },
}
