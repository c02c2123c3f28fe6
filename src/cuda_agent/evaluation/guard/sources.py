"""A candidate's Python files taken together: which names are its own, and who is the reference."""

from __future__ import annotations

import ast
from collections.abc import Mapping

_HOPS = 8  # of a name through files that import it from one another


class Sources:
    """The syntax trees of a candidate's own files, and that of its problem."""

    def __init__(self, trees: Mapping[str, ast.Module], problem: str) -> None:
        self.trees = trees
        paths = {_module(name): name for name in trees}
        self.modules = {path.partition(".")[0] for path in paths}
        self._imports = {path: _imports(trees[name]) for path, name in paths.items()}
        self._kinds = {path: _classes(trees[name]) for path, name in paths.items()}
        self._forward = _forward_of(_classes(_parsed(problem)).get("Model"))

    def resolve(self, name: str) -> str:
        """`helper.time.sleep` is `time.sleep` where the candidate's helper.py imports time."""
        for _ in range(_HOPS):
            module, _, rest = name.partition(".")
            head, _, tail = rest.partition(".")
            full = self._imports.get(module, {}).get(head)
            if full is None or full == name:
                break
            name = f"{full}.{tail}".rstrip(".")
        return name

    def is_reference(self, name: str, file: str, hops: int = _HOPS) -> bool:
        """Whether a class, as `file` calls it, has the reference's forward: it is called Model and
        no other forward stands in the candidate's files, or it inherits from such a one."""
        module, _, short = name.rpartition(".")
        path = module or _module(file)
        kind = self._kinds.get(path, {}).get(short)
        if kind is None:
            return short == "Model"
        own = _forward_of(kind)
        if own is not None:
            return short == "Model" and own == self._forward
        known = self._imports.get(path, {})
        return hops > 0 and any(
            self.is_reference(self.resolve(full_name(base, known)), f"{path}.py", hops - 1)
            for base in kind.bases
        )


def bound(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """{bound name: full name} of one import statement."""
    found: dict[str, str] = {}
    for name in node.names:
        if isinstance(node, ast.ImportFrom):
            found[name.asname or name.name] = f"{node.module or ''}.{name.name}".lstrip(".")
        else:
            top = name.name.partition(".")[0]
            found[name.asname or top] = name.name if name.asname else top
    return found


def full_name(node: ast.AST, known: Mapping[str, str]) -> str:
    """`a.b.c` with `a` as `known` has it; "" for anything but a dotted name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([known.get(node.id, node.id), *reversed(parts)])


def _imports(tree: ast.Module) -> dict[str, str]:
    """Of all import statements, at any depth."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= bound(node)
    return found


def defines_forward(node: ast.ClassDef) -> bool:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in ("forward", "__call__"):
            return True
        if isinstance(item, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "forward" for t in item.targets
        ):
            return True
    return False


def _module(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _classes(tree: ast.Module | None) -> dict[str, ast.ClassDef]:
    return {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)} if tree else {}


def _forward_of(kind: ast.ClassDef | None) -> str | None:
    """The text of a class's own forward; None for one that inherits it."""
    if kind is None or not defines_forward(kind):
        return None
    found = [n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name == "forward"]
    return ast.dump(found[0]) if found else ""


def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
