"""C++ text for results that accumulate: identities and merges."""

from __future__ import annotations

NAN_MINMAX = """
// NaN wins, as in torch. Branch-free, so that loops vectorise.
template <typename T>
static inline __attribute__((always_inline)) T nan_max(T a, T b) {
    return (a > b) | (a != a) ? a : b;
}

template <typename T>
static inline __attribute__((always_inline)) T nan_min(T a, T b) {
    return (a < b) | (a != a) ? a : b;
}"""

INF = "__builtin_inff()"
ONLINE = ("max_expsum", "mean_m2")


def extreme(ctype: str, *, largest: bool) -> str:
    if ctype == "bool":
        return "true" if largest else "false"
    if ctype == "long long":
        return "9223372036854775807LL" if largest else "(-9223372036854775807LL - 1)"
    text = INF if ctype == "float" else "__builtin_inf()"
    return text if largest else f"-{text}"


def identity(kind: str, ctype: str) -> str:
    if kind in ("max", "argmax", "max_expsum"):
        return extreme(ctype, largest=False)
    if kind in ("min", "argmin"):
        return extreme(ctype, largest=True)
    return {"sum": "0", "mean_m2": "0", "prod": "1", "any": "false", "all": "true"}[kind]


def merged(kind: str, into: str, value: str) -> str:
    """One statement that takes `value` into a running result."""
    if kind in ("max", "min"):
        return f"{into} = nan_{kind}({into}, {value});"
    sign = {"sum": "+=", "prod": "*=", "any": "|=", "all": "&="}[kind]
    return f"{into} {sign} {value};"
