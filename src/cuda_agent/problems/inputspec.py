"""`randn(8,512,1024); randint(0, 100, 8)`: inputs as a person types them, to Python text.

Only the listed functions, literals and arithmetic are accepted; nothing is evaluated here.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from cuda_agent.errors import ProblemError

FUNCTIONS = {
    "randn": "randn(8, 512): standard normal",
    "rand": "rand(8, 512): uniform in [0, 1)",
    "randint": "randint(low, high, 8, 512): integers",
    "zeros": "zeros(8, 512)",
    "ones": "ones(8, 512)",
    "full": "full(value, 8, 512)",
    "arange": "arange(512)",
    "mask": "mask(8, 512): random booleans",
}
_DTYPES = (
    *("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8"),
    *("bool", "long", "int", "half", "float"),
)


def input_expressions(specs: str | Sequence[str]) -> list[str]:
    """Python expressions over `torch`, one for each input.

    Args:
        specs: one text with inputs separated by `;` (or by commas between calls), or several.
    Raises: ProblemError naming the part that cannot be read and what can be written instead.
    """
    texts = [specs] if isinstance(specs, str) else list(specs)
    parts = [part.strip() for text in texts for part in text.split(";") if part.strip()]
    if not parts:
        raise ProblemError('No inputs were given; write for example --inputs "randn(8,512,1024)".')
    return [expression for part in parts for expression in _part(part)]


def _part(part: str) -> list[str]:
    try:
        node = ast.parse(part, mode="eval").body
    except SyntaxError as error:
        raise _bad(part, "it is not a Python expression") from error
    several = isinstance(node, ast.Tuple) and any(isinstance(e, ast.Call) for e in node.elts)
    nodes = node.elts if several and isinstance(node, ast.Tuple) else [node]
    return [ast.unparse(ast.fix_missing_locations(_convert(n, part))) for n in nodes]


def _bad(part: str, reason: str) -> ProblemError:
    return ProblemError(
        f"The input `{part}` cannot be used: {reason}; write a literal or one of "
        f"{', '.join(FUNCTIONS)}, for example randint(0, 100, 8, 512)."
    )


def _convert(node: ast.expr, part: str) -> ast.expr:
    if isinstance(node, ast.Constant):
        return node
    if isinstance(node, (ast.Tuple, ast.List)):
        return type(node)([_convert(e, part) for e in node.elts], ast.Load())
    if isinstance(node, ast.Dict):
        keys = [None if k is None else _convert(k, part) for k in node.keys]
        return ast.Dict(keys, [_convert(v, part) for v in node.values])
    if isinstance(node, ast.UnaryOp):
        return ast.UnaryOp(node.op, _convert(node.operand, part))
    if isinstance(node, ast.BinOp):
        return ast.BinOp(_convert(node.left, part), node.op, _convert(node.right, part))
    if isinstance(node, ast.Call):
        return _call(node, part)
    raise _bad(part, f"`{ast.unparse(node)}` is not a number or a known function")


def _call(node: ast.Call, part: str) -> ast.expr:
    name = ast.unparse(node.func).removeprefix("torch.")
    if name not in FUNCTIONS:
        raise _bad(part, f"there is no input function `{name}`")
    args = [_convert(a, part) for a in node.args]
    if not args:
        raise _bad(part, f"`{name}` needs a shape")
    keywords = [_dtype_keyword(k, part) for k in node.keywords]
    if name == "mask":
        uniform = ast.Call(_torch("rand"), [_shape(args, part)], [])
        return ast.Compare(uniform, [ast.Lt()], [ast.Constant(0.5)])
    if name == "arange":
        return ast.Call(_torch(name), args, keywords)
    lead = {"randint": 2, "full": 1}.get(name, 0)
    if name == "full" and isinstance(args[0], (ast.Tuple, ast.List)):
        args = [*args[1:2], args[0]]  # torch's own order: full((8, 512), value)
    if len(args) <= lead:
        raise _bad(part, f"`{name}` is written {FUNCTIONS[name]}")
    shape = _shape(args[lead:], part)
    leading = args[:lead]
    ordered = [shape, *leading] if name == "full" else [*leading, shape]
    return ast.Call(_torch(name), ordered, keywords)


def _torch(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("torch", ast.Load()), name, ast.Load())


def _shape(args: list[ast.expr], part: str) -> ast.expr:
    dims = args
    if len(args) == 1 and isinstance(args[0], (ast.Tuple, ast.List)):
        dims = args[0].elts
    for dim in dims:
        good = isinstance(dim, ast.Constant) and type(dim.value) is int and dim.value >= 0
        if not good and not isinstance(dim, ast.BinOp):
            raise _bad(part, f"`{ast.unparse(dim)}` is not a size")
    return ast.Tuple(list(dims), ast.Load())


def _dtype_keyword(keyword: ast.keyword, part: str) -> ast.keyword:
    name = ast.unparse(keyword.value).strip("'\"").removeprefix("torch.")
    if keyword.arg != "dtype" or name not in _DTYPES:
        raise _bad(part, f"`{ast.unparse(keyword)}` is not a dtype as in dtype=int32")
    return ast.keyword("dtype", _torch(name))
