"""What the CUDA and C++ emitters of row programs share: indented text and expressions."""

from __future__ import annotations

from cuda_agent.graph.ir import Tensor
from cuda_agent.skills.emit import types
from cuda_agent.skills.emit.expressions import expression, identifier, strip
from cuda_agent.skills.emit.rows.program import Map, RowProgram, merge_axes
from cuda_agent.skills.emit.types import Language

# Variables of our kernels that a value's name must not hide.
LOCALS = frozenset({
    "thread", "col", "row", "slot", "live", "outer", "inner", "tile", "along", "part", "rank",
    "u", "k", "at", "here", "shared", "inside", "top", "base", "count", "center", "spread",
    "batch", "chunk", "first", "last", "lane", "width", "take", "rest", "begin", "end", "gap",
    "both", "share", "half",
})


def c_name(name: str) -> str:
    """A value's name as a C variable that hides none of ours."""
    safe = identifier(name)
    return f"{safe}_" if safe in LOCALS else safe


def offset(index: str, sizes: tuple[int, ...], strides: tuple[int, ...]) -> str:
    """C text of the element offset at a flat `index` into axes; "" for zero."""
    axes, (steps,) = merge_axes(list(sizes), [list(strides)])
    terms: list[str] = []
    inner = 1
    for position in range(len(axes) - 1, -1, -1):
        if steps[position]:
            text = index if inner == 1 else f"{index} / {inner}"
            if position:
                text = f"{text} % {axes[position]}"
            terms.append(scaled(text, steps[position]))
        inner *= axes[position]
    return " + ".join(reversed(terms))


def scaled(text: str, factor: int) -> str:
    """`text` times a constant, with parentheses only where they are needed."""
    if factor == 1:
        return text
    return f"({text}) * {factor}" if " " in text else f"{text} * {factor}"


class Lines:
    """Text with indentation."""

    def __init__(self, depth: int = 1) -> None:
        self.text: list[str] = []
        self.depth = depth

    def add(self, *lines: str) -> None:
        for line in lines:
            self.text.append("    " * self.depth + line if line else "")

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1

    def close(self, line: str = "}") -> None:
        self.depth -= 1
        self.add(line)


class Emitter:
    """`scope` maps values to the C text that reads them, `helpers` collects called functions."""

    language: Language

    def __init__(self, program: RowProgram) -> None:
        self.program = program
        self.out = Lines()
        self.scope: dict[str, str] = {}
        self.helpers: set[str] = set()
        self.tensors = {n: Tensor(n, (), (), v.dtype) for n, v in program.values.items()}

    def code(self, step: Map, scope: dict[str, str]) -> str:
        result = expression(step.op, self.tensors, scope, self.language)
        self.helpers |= result.helpers
        return strip(result.text)

    def loaded(self, text: str, dtype: str) -> str:
        """A stored element as its compute type."""
        result = types.load(text, dtype)
        self.helpers |= result.helpers
        return strip(result.text)

    def stored(self, text: str, value: str, dtype: str) -> str:
        """A value as the element that an operand of `dtype` holds."""
        have, want = self.ctype(value), types.compute_type(dtype)
        if have != want:
            text = f"({want})({text})"
        result = types.store(text, dtype)
        self.helpers |= result.helpers
        return strip(result.text)

    def ctype(self, value: str) -> str:
        return types.compute_type(self.program.values[value].dtype)
