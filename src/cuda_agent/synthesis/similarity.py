"""How alike are two Model classes? The filter that keeps benchmarks out of the data.

A class becomes a sequence of tokens: its syntax tree in preorder, without what is the same in
every problem (docstrings, `super().__init__()`, names of variables and sizes) and with one spelling
for what computes the same. A call is the name of the operator, be it `F.relu(x)`, `torch.relu(x)`,
`x.relu()` or `self.act(x)` after `self.act = nn.ReLU()`; `a + b` is `torch.add(a, b)`; any other
name or constant is one and the same leaf. Then

    similarity(a, b) = 2 * LCS(a, b) / (len(a) + len(b))

with the longest common subsequence, so 1.0 means equal but for names, sizes and settings' values.
LCS is found bit-parallel (Hyyrö 2004: one addition of long integers for a token), and only for
pairs that the shared tokens, counted without order, leave above the best so far: an upper bound.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from cuda_agent.errors import ProblemError
from cuda_agent.problems import suite_problems

_SIGNS = {
    "Add": "add", "Sub": "sub", "Mult": "mul", "Div": "div", "MatMult": "matmul", "Pow": "pow",
    "USub": "neg",
}  # fmt: skip
_LEAF = "."


def tokens(source: str) -> tuple[str, ...]:
    """The class `Model` of a problem's text. Raises ProblemError where there is none."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ProblemError(f"line {error.lineno}: {error.msg}") from error
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            return tuple(_Reader(node).walk(node))
    raise ProblemError("no class `Model`")


class _Reader:
    def __init__(self, model: ast.ClassDef) -> None:
        self._made: dict[str, str] = {}  # self.act -> relu
        for node in ast.walk(model):
            match node:
                case ast.Assign(
                    targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)],
                    value=ast.Call(func=function),
                ):
                    self._made[name] = _short(function)

    def walk(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.ClassDef():
                yield from self._all(_statements(node.body))
            case ast.FunctionDef():
                yield "def"
                yield from self._all(_statements(node.body))
            case ast.Call():
                yield from self._call(node)
            case ast.BinOp(left=left, op=op, right=right):
                yield _SIGNS.get(type(op).__name__, type(op).__name__)
                yield from self._all((left, right))
            case ast.UnaryOp(op=op, operand=operand):
                yield _SIGNS.get(type(op).__name__, type(op).__name__)
                yield from self.walk(operand)
            case ast.Name() | ast.Constant() | ast.Attribute():
                yield _LEAF
            case ast.expr_context():
                return
            case _:
                yield type(node).__name__
                yield from self._all(ast.iter_child_nodes(node))

    def _all(self, nodes: Iterable[ast.AST]) -> Iterator[str]:
        for node in nodes:
            yield from self.walk(node)

    def _call(self, node: ast.Call) -> Iterator[str]:
        """The operator, its receiver if that is a value (`x.view(...)`), its arguments."""
        function = node.func
        yield _short(function, self._made)
        if isinstance(function, ast.Attribute) and not _is_path(function):
            yield from self.walk(function.value)
        yield from self._all((*node.args, *(k.value for k in node.keywords)))


def _short(function: ast.expr, made: dict[str, str] | None = None) -> str:
    match function:
        case ast.Attribute(value=ast.Name(id="self"), attr=name) if made and name in made:
            return made[name]
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.replace("_", "").lower()
    return type(function).__name__


def _is_path(function: ast.Attribute) -> bool:
    """`torch.nn.functional.relu` or `self.act`, unlike `x.relu` or `self.act(x).relu`."""
    node: ast.expr = function.value
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("torch", "nn", "F", "self", "math")


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Expr(value=ast.Call() as call) if ast.unparse(call).startswith("super("):
                continue
        yield statement


def similarity(a: Sequence[str], b: Sequence[str]) -> float:
    """2 * LCS / (len(a) + len(b)), in [0, 1]."""
    return 2 * lcs(a, b) / max(len(a) + len(b), 1)


def lcs(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    places: dict[str, int] = {}
    for i, token in enumerate(a):
        places[token] = places.get(token, 0) | 1 << i
    full = (1 << len(a)) - 1
    row = full
    for token in b:
        shared = row & places.get(token, 0)
        row = (row + shared | row - shared) & full
    return len(a) - row.bit_count()


class Suite:
    """Benchmarks to stay away from. `nearest` takes about a millisecond for hundreds of them."""

    def __init__(self, texts: Iterable[tuple[str, str]] = ()) -> None:
        """`texts`: (name, source) of each problem."""
        self.names: list[str] = []
        self.sequences: list[tuple[str, ...]] = []
        for name, source in texts:
            try:
                self.sequences.append(tokens(source))
            except ProblemError as error:
                raise ProblemError(f"{name}: {error}; mend the file.") from error
            self.names.append(name)
        self._columns = {t: i for i, t in enumerate(sorted({t for s in self.sequences for t in s}))}
        self._counts = np.array(
            [self._count(s) for s in self.sequences], dtype=np.int32
        ).reshape(len(self.sequences), len(self._columns))
        self._lengths = np.array([len(s) for s in self.sequences])

    def _count(self, sequence: Sequence[str]) -> list[int]:
        counts = Counter(sequence)
        return [counts[t] for t in self._columns]

    def nearest(self, source: str) -> tuple[float, str]:
        """(similarity, name) of the most similar problem; (0.0, "") of an empty suite."""
        if not self.names:
            return 0.0, ""
        mine = tokens(source)
        shared = np.minimum(self._counts, np.array(self._count(mine), dtype=np.int32)).sum(1)
        bounds = 2 * shared / (self._lengths + len(mine))
        best, name = 0.0, self.names[0]
        for i in np.argsort(-bounds, kind="stable"):
            if bounds[i] <= best:
                break
            value = similarity(mine, self.sequences[i])
            if value > best:
                best, name = value, self.names[i]
        return best, name


def read_suites(paths: Iterable[str]) -> Suite:
    """All problems of the given folders (`ours`, a KernelBench checkout, plain files' folder).

    Raises: ProblemError for a folder without problems, and for a file without class Model.
    """
    files: list[Path] = [file for path in paths for file in suite_problems(path)]
    return Suite((str(file), file.read_text(encoding="utf-8")) for file in files)
