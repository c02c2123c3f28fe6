"""Element types: how a torch dtype is stored, loaded, computed with and stored again.

float32, bfloat16 and float16 are computed in float, float64 in double, integers in 64 bits and
bool in bool. bf16 and f16 are stored as `unsigned short`, so no CUDA header has to be found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Language = Literal["cuda", "cpp"]
FLOATING = frozenset({"float64", "float32", "bfloat16", "float16"})
REDUCED = frozenset({"bfloat16", "float16"})

_STORAGE = {
    "float64": "double", "float32": "float", "bfloat16": "unsigned short",
    "float16": "unsigned short", "int64": "long long", "int32": "int", "int16": "short",
    "int8": "signed char", "uint8": "unsigned char", "bool": "unsigned char",
}  # fmt: skip
_RANK = {"bool": 0, "long long": 1, "float": 2, "double": 3}


@dataclass(frozen=True)
class Code:
    """A C expression and the helper functions (see `preamble`) that it calls."""

    text: str
    helpers: frozenset[str] = frozenset()


def compute_type(dtype: str) -> str:
    """The C type that values of a torch dtype are computed in. KeyError for complex and others."""
    if dtype not in _STORAGE:
        raise KeyError(f"no kernel element type for dtype {dtype}")
    if dtype == "float64":
        return "double"
    if dtype in FLOATING:
        return "float"
    return "bool" if dtype == "bool" else "long long"


def storage_type(dtype: str) -> str:
    """The C type of one element in memory."""
    return _STORAGE[dtype]


def supported(dtype: str) -> bool:
    return dtype in _STORAGE


def load(text: str, dtype: str) -> Code:
    """The stored element `text` as its compute type."""
    if dtype == "bfloat16":
        return Code(f"bf16_to_float({text})", frozenset({"bf16_to_float"}))
    if dtype == "float16":
        return Code(f"half_to_float({text})", frozenset({"half_to_float"}))
    if dtype == "bool":
        return Code(f"({text} != 0)")
    if compute_type(dtype) != storage_type(dtype):
        return Code(f"(long long){text}")
    return Code(text)


def store(text: str, dtype: str) -> Code:
    """The computed value `text` as an element to store; floats round to nearest even."""
    if dtype == "bfloat16":
        return Code(f"float_to_bf16({text})", frozenset({"float_to_bf16"}))
    if dtype == "float16":
        return Code(f"float_to_half({text})", frozenset({"float_to_half"}))
    if compute_type(dtype) != storage_type(dtype):
        return Code(f"({storage_type(dtype)}){text}")
    return Code(text)


def round_trip(text: str, dtype: str) -> Code:
    """`text` rounded to what `dtype` can hold, still in its compute type."""
    if dtype in REDUCED:
        down = store(text, dtype)
        up = load(down.text, dtype)
        return Code(up.text, down.helpers | up.helpers)
    if dtype in ("int32", "int16", "int8", "uint8"):
        return Code(f"(long long)({storage_type(dtype)})({text})")
    return Code(text)


def promote(*types: str) -> str:
    """The wider of several compute types."""
    return max(types, key=_RANK.__getitem__)


def literal(value: float | int | bool, ctype: str, language: Language) -> str:
    """A Python number as a C literal of type `ctype`, exact after rounding to that type."""
    if ctype == "bool":
        return "true" if value else "false"
    if ctype == "long long":
        whole = int(value)
        if whole == -(2**63):
            return "(-9223372036854775807LL - 1)"
        return f"{whole}LL" if abs(whole) >= 2**31 else str(whole)
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        return _special(number, ctype, language)
    if ctype == "double":
        return repr(number)
    import numpy as np  # numpy prints the shortest text that reads back as the same float32

    with np.errstate(over="ignore"):
        single = np.float32(number)
    if np.isinf(single):
        return _special(float(single), ctype, language)
    text = str(single)
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def _special(number: float, ctype: str, language: Language) -> str:
    double = ctype == "double"
    if number != number:
        cpp, bits, wide = "nan", "0x7fffffff", "0x7ff8000000000000LL"
        argument = '""'
    else:
        cpp, bits, wide = "inf", "0x7f800000", "0x7ff0000000000000LL"
        argument = ""
    if language == "cpp":
        text = f"__builtin_{cpp}{'' if double else 'f'}({argument})"
    else:
        text = f"__longlong_as_double({wide})" if double else f"__int_as_float({bits})"
    return f"(-{text})" if number < 0 else text
