"""C++: branch-free elementary functions that g++ vectorises, and conversions of 16-bit floats.

libm calls inside a loop keep g++ from vectorising it, so the functions that deep-learning code
uses most are written here as straight-line code: range reduction, a polynomial, selects. The
polynomials are minimax fits (Lawson iteration) made for this file; the largest errors, measured
against float64 in tests/skills/test_skills_expressions.py, stay within 2.5 ulp. Rarely used
functions (asin, lgamma ...) call libm. They need `-fno-math-errno -fno-trapping-math`, which change
no value, for g++ to turn selects into blends.
"""

from __future__ import annotations

from cuda_agent.skills.emit import math_cuda

_VECTORISED = (
    "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "tanh", "erf",
    "sigmoid", "pow", "sinh", "cosh",
)  # fmt: skip
_BUILTIN = (
    "sqrt", "floor", "ceil", "trunc", "rint", "copysign", "fmin", "fmax", "asin", "acos", "atan",
    "asinh", "acosh", "atanh", "erfc", "lgamma", "fmod", "atan2", "hypot",
)  # fmt: skip
_OURS = ("minimum", "maximum", "remainder", "div_floor", "rsqrt")

FUNCTIONS: dict[str, dict[str, str]] = {
    "float": {
        **{name: f"__builtin_{name}f" for name in _BUILTIN},
        "abs": "__builtin_fabsf",
        **{name: f"{name}_f32" for name in (*_VECTORISED, *_OURS)},
    },
    "double": {
        **{name: f"__builtin_{name}" for name in (*_BUILTIN, *_VECTORISED) if name != "sigmoid"},
        "abs": "__builtin_fabs",
        **{name: f"{name}_f64" for name in (*_OURS, "sigmoid")},
    },
    "long long": {n: f"{n}_i64" for n in ("div_floor", "remainder", "pow")},
    "bool": {},
}

_FILL = {
    size: {
        **words,
        "EXP": "exp_f32" if size == "f32" else "__builtin_exp",
        **{
            name.upper(): f"__builtin_{name}{'f' if size == 'f32' else ''}"
            for name in ("fmod", "copysign", "floor", "sqrt")
        },
    }
    for size, words in math_cuda.TYPE_WORDS.items()
}

_BITS = {
    "float_bits": """
INLINE unsigned int float_bits(float x) {
    unsigned int bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}""",
    "bits_float": """
INLINE float bits_float(unsigned int bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}""",
    "bf16_to_float": """
INLINE float bf16_to_float(unsigned short bits) { return bits_float((unsigned int)bits << 16); }""",
    "float_to_bf16": """
// round to nearest even; NaN keeps a set mantissa bit
INLINE unsigned short float_to_bf16(float x) {
    const unsigned int bits = float_bits(x);
    const unsigned int rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (unsigned short)(x != x ? 0x7fc0u : rounded);
}""",
    "half_to_float": """
// exponent moved by one multiplication, which also makes subnormal numbers right
INLINE float half_to_float(unsigned short half) {
    const unsigned int magnitude = half & 0x7fffu;
    const float scaled = bits_float(magnitude << 13) * 0x1p112f;
    const unsigned int special = (magnitude << 13) | 0x7f800000u;
    const unsigned int bits = magnitude >= 0x7c00u ? special : float_bits(scaled);
    return bits_float(bits | (half & 0x8000u) << 16);
}""",
    "float_to_half": """
// round to nearest even: adding 2^k with the right k drops exactly the bits that half lacks
INLINE unsigned short float_to_half(float x) {
    const unsigned int bits = float_bits(x);
    const unsigned int doubled = bits + bits;
    const float base = __builtin_fabsf(x) * 0x1p112f * 0x1p-110f;
    const unsigned int exponent = doubled & 0xff000000u;
    const unsigned int anchor = exponent < 0x71000000u ? 0x71000000u : exponent;
    const unsigned int sum = float_bits(bits_float((anchor >> 1) + 0x07800000u) + base);
    const unsigned int magnitude = ((sum >> 13) & 0x7c00u) + (sum & 0x0fffu);
    const unsigned int kept = doubled > 0xff000000u ? 0x7e00u : magnitude;
    return (unsigned short)((bits >> 16 & 0x8000u) | kept);
}""",
}

_FLOAT = {
    "exp_core": """
// (e^r - 1) for |r| <= ln(2) / 2, even and odd powers apart: two short chains of dependent steps
INLINE float exp_core(float r) {
    const float s = r * r;
    const float even = (0.0013814433f * s + 0.041668396f) * s + 0.49999994f;
    const float odd = 0.008368797f * s + 0.1666652f;
    return (odd * r + even) * s + r;
}""",
    "exp_moderate": """
// e^x for -87.3 <= x <= 89: 2^(n-1) * 2 e^r with |r| <= ln(2) / 2
INLINE float exp_moderate(float x) {
    const float n = __builtin_rintf(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    return (2.0f * exp_core(r) + 2.0f) * bits_float((unsigned int)((int)n + 126) << 23);
}""",
    "exp_f32": """
// Results below 2^-125.5 are zero.
INLINE float exp_f32(float x) {
    const float t = x < -87.3f ? -87.3f : x;
    return exp_moderate(t > 89.0f ? 89.0f : t);
}""",
    "exp2_f32": """
INLINE float exp2_f32(float x) {
    float t = x < -126.0f ? -126.0f : x;
    t = t > 128.0f ? 128.0f : t;  // 2^128 is infinite in float
    const float n = __builtin_rintf(t);
    const float f = t - n;  // exact
    const float scale = bits_float((unsigned int)((int)n + 126) << 23);
    return (2.0f * exp_core(f * 0.693147182f) + 2.0f) * scale;
}""",
    "expm1_f32": """
INLINE float expm1_f32(float x) {
    const float t = x < -18.0f ? -18.0f : x;
    const float value = expm1_moderate(t > 89.0f ? 89.0f : t);
    return x == 0.0f ? x : value;
}""",
    "log_core": """
// log(1 + f) - f for sqrt(1/2) <= 1 + f < sqrt(2)
INLINE float log_core(float f) {
    const float s = f * f;
    float odd = -0.07634493f, even = 0.12761575f;  // powers of f in the factor of f^3
    odd = odd * s - 0.13160183f;
    even = even * s + 0.14201759f;
    odd = odd * s - 0.16623357f;
    even = even * s + 0.20001227f;
    odd = odd * s - 0.2500082f;
    even = even * s + 0.3333333f;
    return (odd * f + even) * (s * f) - 0.5f * s;
}""",
    "log_exponent": """
// n with x = m * 2^n and m in [sqrt(1/2), sqrt(2)), for normal positive x
INLINE int log_exponent(float x) { return (int)(float_bits(x) - 0x3f3504f3u) >> 23; }""",
    "log_special": """
// the logarithm's values where x is zero, negative, infinite or NaN, else `value`
INLINE float log_special(float x, float value) {
    value = x == 0.0f ? -__builtin_inff() : value;
    value = x < 0.0f ? __builtin_nanf("") : value;
    return x == __builtin_inff() || x != x ? x : value;
}""",
    "log_f32": """
INLINE float log_f32(float x) {
    const bool subnormal = x < 1.17549435e-38f;
    const float normal = subnormal ? x * 8388608.0f : x;
    const int n = log_exponent(normal);
    const float f = bits_float(float_bits(normal) - ((unsigned int)n << 23)) - 1.0f;
    const float e = (float)n - (subnormal ? 23.0f : 0.0f);
    const float value = e * 0.693359375f + ((e * -2.12194440e-4f + log_core(f)) + f);
    return log_special(x, value);
}""",
    "log2_f32": """
// the exponent is added last, so that powers of two give whole numbers
INLINE float log2_f32(float x) {
    const bool subnormal = x < 1.17549435e-38f;
    const float normal = subnormal ? x * 8388608.0f : x;
    const int n = log_exponent(normal);
    const float f = bits_float(float_bits(normal) - ((unsigned int)n << 23)) - 1.0f;
    const float e = (float)n - (subnormal ? 23.0f : 0.0f);
    const float low = log_core(f);
    // log2(e) = 1.4375 + 0.00519504089 keeps f * 1.4375 nearly exact
    const float value = (low * 1.44269504f + f * 0.00519504089f) + f * 1.4375f;
    return log_special(x, e + value);
}""",
    "log10_f32": """
INLINE float log10_f32(float x) { return log_f32(x) * 0.434294482f; }""",
    "log1p_f32": """
// log(u) with u = 1 + x rounded, plus what the rounding lost
INLINE float log1p_f32(float x) {
    const float u = 1.0f + x;
    const float lost = (x - (u - 1.0f)) / u;
    const float value = log_f32(u);
    return u > 0.0f && u < __builtin_inff() ? (x == 0.0f ? x : value + lost) : value;
}""",
    "tanh_f32": """
// (e^2x - 1) / (e^2x + 1); beyond 9.1 the result rounds to 1
INLINE float tanh_f32(float x) {
    const float magnitude = __builtin_fabsf(x);
    const float t = magnitude > 9.1f ? 9.1f : magnitude;
    const float grown = expm1_moderate(2.0f * t);
    return __builtin_copysignf(grown / (grown + 2.0f), x);
}""",
    "sinh_f32": """
INLINE float sinh_f32(float x) {
    const float magnitude = __builtin_fabsf(x);
    const float grown = expm1_f32(magnitude);
    const float half = exp_f32(0.5f * magnitude);  // its square overflows only where sinh does
    const float value = 0.5f * (grown + grown / (grown + 1.0f));
    return __builtin_copysignf(magnitude > 88.0f ? 0.5f * half * half : value, x);
}""",
    "cosh_f32": """
INLINE float cosh_f32(float x) {
    const float half = exp_f32(0.5f * __builtin_fabsf(x));
    return 0.5f * half * half + 0.5f / half / half;
}""",
    "sigmoid_f32": """
INLINE float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }""",
    "expm1_moderate": """
// e^x - 1 = 2 * (2^(n-1) * (e^r - 1) + (2^(n-1) - 1/2)) for -87.3 <= x <= 89: no cancellation
INLINE float expm1_moderate(float x) {
    const float n = __builtin_rintf(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    const float scale = bits_float((unsigned int)((int)n + 126) << 23);
    return 2.0f * (exp_core(r) * scale + (scale - 0.5f));
}""",
    "erf_f32": """
// 1 - e^(x q(x)), where x q(x) = log(erfc(x)); beyond 4 the result rounds to 1
INLINE float erf_f32(float x) {
    const float magnitude = __builtin_fabsf(x);
    const float t = magnitude > 4.0f ? 4.0f : magnitude;
    const float s = t * t;
    float even = 9.2556584e-06f, odd = -0.000117635624f;  // powers of t in q
    even = even * s + 0.0006328157f;
    odd = odd * s - 0.0016669867f;
    even = even * s + 0.00016035250f;
    odd = odd * s + 0.01915309f;
    even = even * s - 0.10277784f;
    odd = odd * s - 0.6366194f;
    even = even * s + 5.8635383e-08f;  // with the next factor: 2 / sqrt(pi) in two parts
    const float exponent = t * -1.12837923f + t * (odd * t + even);
    return __builtin_copysignf(expm1_moderate(exponent), x);
}""",
    "quarter_turns": """
// x = quarter * pi/2 + rest, |rest| <= pi/4, reduced in double: exact up to |x| of 2^50
INLINE float quarter_turns(float x, int* quarter) {
    const double turns = __builtin_rint((double)x * 0.63661977236758134308);
    const double rest = __builtin_fma(-turns, 1.5707963267948966, (double)x);
    *quarter = (int)(turns - 4.0 * __builtin_floor(turns * 0.25));
    return (float)__builtin_fma(-turns, 6.123233995736766e-17, rest);
}""",
    "sin_core": """
INLINE float sin_core(float r) {
    const float s = r * r;
    return ((-0.00019514454f * s + 0.008332155f) * s - 0.16666655f) * s * r + r;
}""",
    "cos_core": """
INLINE float cos_core(float r) {
    const float s = r * r;
    return ((2.4432209e-05f * s - 0.0013887308f) * s + 0.041666646f) * s * s - 0.5f * s + 1.0f;
}""",
    "sin_f32": """
INLINE float sin_f32(float x) {
    int quarter;
    const float r = quarter_turns(x, &quarter);
    const float value = quarter & 1 ? cos_core(r) : sin_core(r);
    return x == 0.0f ? x : (quarter & 2 ? -value : value);
}""",
    "cos_f32": """
INLINE float cos_f32(float x) {
    int quarter;
    const float r = quarter_turns(x, &quarter);
    const float value = quarter & 1 ? sin_core(r) : cos_core(r);
    return (quarter + 1) & 2 ? -value : value;
}""",
    "tan_f32": """
INLINE float tan_f32(float x) {
    int quarter;
    const float r = quarter_turns(x, &quarter);
    const float sine = sin_core(r), cosine = cos_core(r);
    return quarter & 1 ? -cosine / sine : sine / cosine;
}""",
    "rsqrt_f32": """
INLINE float rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }""",
    "rsqrt_f64": """
INLINE double rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }""",
    "pow_f32": """
// 2^(y log2|x|) in double, which leaves one rounding; then the special cases of C's pow
INLINE float pow_f32(float x, float y) {
    const float magnitude = __builtin_fabsf(x);
    const bool subnormal = magnitude < 1.17549435e-38f;
    const float normal = subnormal ? magnitude * 8388608.0f : magnitude;
    const int n = log_exponent(normal);
    const double m = bits_float(float_bits(normal) - ((unsigned int)n << 23));
    const double s = (m - 1.0) / (m + 1.0), z = s * s;  // log(m) = 2 atanh(s)
    double p = 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    p = p * z + 1.0;
    double log2x = p * s * 2.8853900817779268 + (n - (subnormal ? 23 : 0));
    log2x = magnitude == 0.0f ? -__builtin_inf() : log2x;
    log2x = magnitude == __builtin_inff() ? __builtin_inf() : log2x;
    double t = y * log2x;
    t = t < -200.0 ? -200.0 : t;
    t = t > 200.0 ? 200.0 : t;
    const double whole = __builtin_rint(t), f = t - whole;
    double e = 1.5309737046574308e-05 + f * 1.3175851327726416e-06;
    e = e * f + 0.00015403851773453944;
    e = e * f + 0.001333345206351335;
    e = e * f + 0.009618128542839851;
    e = e * f + 0.05550410938940762;
    e = e * f + 0.24022650698880407;
    e = e * f + 0.6931471805465146;
    e = e * f + 1.0;
    const int half = (int)whole >> 1;
    const float low = bits_float((unsigned int)(half + 127) << 23);
    const float high = bits_float((unsigned int)((int)whole - half + 127) << 23);
    const float power = (float)(e * low * high);
    const bool integer = y == __builtin_rintf(y);
    const bool odd = integer && 0.5f * y != __builtin_rintf(0.5f * y);
    float value = odd ? __builtin_copysignf(power, x) : power;
    const bool undefined = x < 0.0f && magnitude < __builtin_inff() && !integer;
    value = undefined ? __builtin_nanf("") : value;
    value = x != x || y != y ? x + y : value;
    const bool unit_to_infinity = magnitude == 1.0f && __builtin_fabsf(y) == __builtin_inff();
    return x == 1.0f || y == 0.0f || unit_to_infinity ? 1.0f : value;
}""",
}

# Always inlined, because a loop that still holds a call is not vectorised.
PROLOGUE = "#define INLINE static inline __attribute__((always_inline))"


def _helpers() -> dict[str, str]:
    table = {**_BITS, **_FLOAT, **math_cuda.INTEGER_HELPERS}
    for name, template in math_cuda.FLOAT_TEMPLATES.items():
        for size, words in _FILL.items():
            key = f"{name}_{size}"
            table.setdefault(key, math_cuda.fill(template, words))
    return table


HELPERS: dict[str, str] = _helpers()
