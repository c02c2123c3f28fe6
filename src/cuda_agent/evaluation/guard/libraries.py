"""What others' libraries compute for a candidate, by the names that its text calls.

torch's own operators are recorded while they run; of a library that torch does not know, only the
text tells. These calls are listed in a verdict, and refused where the track wants own kernels:
products (GEMM) and convolutions stay allowed there, and so do building blocks inside of a kernel (a
block's reduction of CUB, `tl.dot`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

# Vendors' functions; and whole algorithms, as against building blocks.
_VENDOR = re.compile(
    r"\b((?:cublas|cudnn|cufft|cusparse|cusolver|curand|miopen|rocblas|cblas_|LAPACKE_)\w*|"
    r"v[sd](?:Exp|Ln|Tanh|Add|Mul|Sqrt|Inv)\w*)\s*\("
)
_SETTING_UP = re.compile(r"(?:cublas|cudnn|cufft|cusparse|cusolver|curand)(?:Lt)?\w*"
                         r"(?:Create|Destroy|Set|Get|Init|Plan)\w*")
_PRODUCTS = re.compile(r"\w*(?:[gG]emm|[gG]emv|Matmul|[cC]onvolution)\w*")
_ALGORITHM = re.compile(
    r"\b((?:thrust|std(?:::ranges)?)::(?:stable_)?(?:sort|partial_sort|nth_element)\w*|"
    r"thrust::(?:reduce|transform|inclusive_scan|exclusive_scan|inner_product|count|unique|max|"
    r"min)\w*|cub::Device\w+::\w+)\s*(?:<[^;{}()]*>)?\s*\("
)
_TRITON_WHOLE = {"triton.language.sort", "triton.language.topk"}
_PYTHON = {"numpy", "scipy", "cupy", "jax", "numexpr", "pandas", "cv2", "sklearn", "mkl"}
# Makes, describes or views arrays, or sizes a launch.
_HARMLESS = re.compile(
    r"\w+\.(asarray|array|ascontiguousarray|frombuffer|from_dlpack|empty\w*|zeros\w*|ones\w*|full\w*|"
    r"dtype|iinfo|finfo|u?int\d*|float\d*|prod|ceil|floor|log2|sqrt|lcm|gcd|random\..*|ctypeslib\..*)"
)


def native(code: str) -> Iterator[tuple[int, str, str]]:
    """(position, function, rule) of each call in C++ without comments. The rule is that of the
    kernels track; "" where it allows the call."""
    for hit in _VENDOR.finditer(code):
        if not _SETTING_UP.fullmatch(hit[1]):
            yield hit.start(), hit[1], "" if _PRODUCTS.fullmatch(hit[1]) else "E1"
    for hit in _ALGORITHM.finditer(code):
        yield hit.start(), hit[1], "E9"


def python(name: str) -> str:
    """The rule that a call of `name` (dotted, imports resolved) breaks in the kernels track, "" for
    one that is no library's."""
    if name in _TRITON_WHOLE:
        return "E9"
    foreign = name.partition(".")[0] in _PYTHON and not _HARMLESS.fullmatch(name)
    return "E1" if foreign else ""


def reached(tree: ast.Module, start: str = "forward") -> set[str]:
    """Names of the functions that `start` calls, and those that these call, in one file."""
    bodies: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            bodies.setdefault(node.name, []).append(node)
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in found or name not in bodies:
            continue
        found.add(name)
        inner = [n for body in bodies[name] for n in ast.walk(body)]
        waiting += [n.id for n in inner if isinstance(n, ast.Name)]
        waiting += [n.attr for n in inner if isinstance(n, ast.Attribute)]
    return found
