"""What the writer of one op gets: operands by compute type, literals, function calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.skills.emit import math_cpp, math_cuda
from cuda_agent.skills.emit.types import Code, Language, literal, promote


@dataclass(frozen=True)
class Operand:
    """An argument that is a value: its C expression and compute type."""

    text: str
    ctype: str


@dataclass
class Context:
    """Where one op is written: its language, its result's compute type, the helpers it needs."""

    language: Language
    ctype: str
    dtype: str
    helpers: set[str] = field(default_factory=set)

    def use(self, code: Code) -> str:
        self.helpers |= code.helpers
        return code.text

    def __call__(self, arg: Any, ctype: str | None = None) -> str:
        """`arg` (operand or number) as an expression of `ctype` (default: the result's)."""
        ctype = ctype or self.ctype
        if not isinstance(arg, Operand):
            return literal(arg, ctype, self.language)
        if arg.ctype == ctype:
            return arg.text
        return f"({arg.text} != 0)" if ctype == "bool" else f"({ctype}){arg.text}"

    def common(self, *args: Any) -> str:
        """The compute type in which operands of a comparison meet."""
        operands = [a.ctype for a in args if isinstance(a, Operand)]
        numbers = [_number_type(a) for a in args if not isinstance(a, Operand)]
        found = promote(*operands) if operands else "bool"
        # A Python number lifts the category (int -> float) but never the width of floats.
        return promote(found, *numbers)

    def call(self, function: str, *args: Any, ctype: str | None = None) -> str:
        """A call of a mathematical function, e.g. `exp`, in the variant for the compute type."""
        ctype = ctype or self.ctype
        table = math_cuda.FUNCTIONS if self.language == "cuda" else math_cpp.FUNCTIONS
        name = table[ctype][function]
        if name in (math_cuda if self.language == "cuda" else math_cpp).HELPERS:
            self.helpers.add(name)
        texts = [a if isinstance(a, str) else self(a, ctype) for a in args]
        return f"{name}({', '.join(texts)})"


def _number_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "long long" if isinstance(value, int) else "float"


Handler = Callable[..., str]
HANDLERS: dict[str, Handler] = {}


def register(*names: str) -> Callable[[Handler], Handler]:
    """Adds the writer of an op, called as `handler(context, *args, **kwargs)` with ATen's names."""

    def add(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return add
