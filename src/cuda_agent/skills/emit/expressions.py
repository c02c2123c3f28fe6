"""From core ATen pointwise ops to C expressions, the same for CUDA and C++.

`statements(ops, values, scope, language)` turns a chain of ops into `const float gelu = ...;`
lines; `expression(...)` is one op. Both name the helper functions they call, whose text
`preamble(helpers, language)` returns in dependency order, to stand above the kernel.

Semantics are torch's: NaN passes through relu, clamp, minimum and maximum; rounding is half to
even; scalars are rounded to the compute type. Intermediate bf16/f16 values stay in float, which is
more accurate than eager's rounding of every op; an explicit `_to_copy` does round. CUDA calls the
accurate functions of libdevice (expf, tanhf, erff ...: at most 2 ulp; powf 4 ulp), never the
`__` intrinsics. C++ calls branch-free functions of `math_cpp.py` that g++ vectorises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.graph.ir import Arg, Op, Ref, Tensor
from cuda_agent.skills.emit import aten, math_cpp, math_cuda, types
from cuda_agent.skills.emit.context import Context, Operand
from cuda_agent.skills.emit.types import Code, Language, compute_type

# Variables and functions of our kernels and of C that a value's name must not hide.
_RESERVED_WORDS = """
    alignas and asm auto bool break case catch char class const continue default delete do double
    else enum extern false float for goto if inline int long namespace new not operator or private
    public register return short signed sizeof static struct switch template this throw true try
    typedef typename union unsigned using virtual void volatile while xor bitand bitor compl
    blockIdx threadIdx blockDim gridDim warpSize abs exp exp2 log log1p log2 log10 expm1 sqrt rsqrt
    sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh erf erfc pow fmod floor ceil trunc
    rint fabs fmin fmax atan2 lgamma copysign hypot floorf ceilf round index i j k row col lane warp
    tile step base offset count begin end main NULL vector first valid u unroll start stop
    chunk task rest column element load store stream d0 d1 d2 d3 d4 d5 d6 d7 i0 j0
    l q e p r v s w sum total partial part wide narrow group within batch factor slice
    before value inclusive prefix carry rank segment totals warp_totals step scanned buffer rows c
    outer strip plane top left taps inside at image output_row"""
_RESERVED = frozenset(_RESERVED_WORDS.split())


def is_pointwise(op: Op) -> bool:
    """Whether `expression` can write `op` (its dtypes are checked by `supports`)."""
    return aten.handler(op.target) is not None


def supports(op: Op, values: Mapping[str, Tensor]) -> bool:
    """Whether `op` and all dtypes it touches can be written. Tries it, so that no list drifts."""
    if not is_pointwise(op):
        return False
    names = [*op.refs(), op.outputs[0]]
    if not all(n in values and types.supported(values[n].dtype) for n in names):
        return False
    scope = dict.fromkeys(names, "x")
    try:
        for language in ("cuda", "cpp"):
            expression(op, values, scope, language)
    except (KeyError, TypeError, ValueError, NotImplementedError):
        return False
    return True


def expression(
    op: Op, values: Mapping[str, Tensor], scope: Mapping[str, str], language: Language
) -> Code:
    """The value of `op`'s first output as a C expression of `compute_type(its dtype)`.

    `scope` maps the names of the values that it reads to C expressions, each of the compute type
    of that value's dtype. Raises NotImplementedError for an op that is no pointwise one.
    """
    handler = aten.handler(op.target)
    if handler is None:
        raise NotImplementedError(f"{op.target} is not a pointwise op that kernels can hold")
    dtype = values[op.outputs[0]].dtype
    context = Context(language, compute_type(dtype), dtype)

    def resolve(arg: Arg) -> Any:
        if isinstance(arg, Ref):
            return Operand(_atom(scope[arg.name]), compute_type(values[arg.name].dtype))
        return tuple(resolve(a) for a in arg) if isinstance(arg, tuple) else arg

    text = handler(context, *map(resolve, op.args), **{k: resolve(v) for k, v in op.kwargs})
    if context.ctype == "long long" and dtype != "int64":
        text = types.round_trip(text, dtype).text  # narrow integers wrap, as torch's do
    return Code(text, frozenset(context.helpers))


def _atom(text: str) -> str:
    """`text` in parentheses unless it is a name, a number, an index or a call."""
    simple = re.fullmatch(r"[\w.]+(\[[^\[\]]*\]|\([^()]*\))?", text)
    return text if simple or strip(text) != text else f"({text})"


@dataclass(frozen=True)
class Statements:
    """Lines that declare one constant per op, and the scope that then holds."""

    lines: tuple[str, ...]
    scope: dict[str, str]
    helpers: frozenset[str]


def statements(
    ops: Sequence[Op],
    values: Mapping[str, Tensor],
    scope: Mapping[str, str],
    language: Language,
) -> Statements:
    """`const T name = ...;` for each pointwise op, in order. `scope` as for `expression`."""
    known = dict(scope)
    lines: list[str] = []
    helpers: set[str] = set()
    for op in ops:
        code = expression(op, values, known, language)
        helpers |= code.helpers
        output = op.outputs[0]
        name = identifier(output)
        lines.append(f"const {compute_type(values[output].dtype)} {name} = {strip(code.text)};")
        known[output] = name
    return Statements(tuple(lines), known, frozenset(helpers))


def strip(text: str) -> str:
    """`text` without parentheses that enclose all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0 and position < len(text) - 1:
            return text
    return text[1:-1]


def identifier(name: str) -> str:
    """A value's name as a C variable that hides neither a keyword nor one of our functions."""
    clash = name in _RESERVED or name in math_cuda.HELPERS or name in math_cpp.HELPERS
    return f"{name}_" if clash else name


def preamble(helpers: Iterable[str], language: Language) -> str:
    """Definitions of `helpers` and of what they call, in dependency order; "" for none."""
    table = math_cuda.HELPERS if language == "cuda" else math_cpp.HELPERS
    order: dict[str, None] = {}

    def visit(name: str) -> None:
        text = table[name]
        for other in table:
            if other != name and other not in order and re.search(rf"\b{other}\(", text):
                visit(other)
        order.setdefault(name)

    for name in sorted(helpers):
        visit(name)
    prologue = [math_cpp.PROLOGUE] if language == "cpp" and order else []
    return "\n\n".join([*prologue, *(table[name].strip() for name in order)])
