"""Honest uses of calls that cheats use as well, told by what they are applied to."""

from __future__ import annotations

import ast

_CLEANING = {
    "cleanup", "clear", "close", "join", "shutdown", "terminate", "unlink", "rmtree", "remove",
    "rmdir", "free", "release", "destroy",
}
_OPENING = {"mkstemp", "open"}


def honest(name: str, call: ast.Call, tree: ast.Module) -> bool:
    """Whether a call of `name`, which has a rule, is one of the idioms below."""
    if name == "types.MethodType":  # to the module itself, not to a tensor that is handed on
        return len(call.args) == 2 and _is_name(call.args[1], "self")
    if name == "atexit.register":
        return bool(call.args) and _cleans(call.args[0], tree)
    if name in ("os.write", "os.fdopen"):
        return bool(call.args) and _opened_here(call.args[0], tree)
    if name == "os.kill":  # asks whether a process lives, sends nothing
        return len(call.args) == 2 and _is_zero(call.args[1])
    return False


def is_main_block(node: ast.If, tree: ast.Module) -> bool:
    """`if __name__ == "__main__"` in a file that calls itself so nowhere else."""
    test = node.test
    return (
        isinstance(test, ast.Compare) and _is_name(test.left, "__name__")
        and isinstance(test.ops[0], ast.Eq) and _is_main(test.comparators[0])
        and sum(map(_is_main, ast.walk(tree))) == 1
    )


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == "__main__"


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_zero(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 0


def _cleans(what: ast.expr, tree: ast.Module) -> bool:
    """A method that ends or removes something, or a function that does nothing else."""
    if isinstance(what, ast.Attribute):
        return what.attr in _CLEANING
    bodies: list[ast.AST] = []
    if isinstance(what, ast.Lambda):
        bodies = [what.body]
    elif isinstance(what, ast.Name):
        bodies = [n for n in ast.walk(tree) if getattr(n, "name", None) == what.id
                  and isinstance(n, ast.FunctionDef)]
    inner = [n for body in bodies for n in ast.walk(body)]
    changes = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)
    calls = [n for n in inner if isinstance(n, ast.Call)]
    return bool(calls) and not any(isinstance(n, changes) for n in inner) and all(
        isinstance(c.func, ast.Attribute) and c.func.attr in _CLEANING for c in calls
    )


def _opened_here(descriptor: ast.expr, tree: ast.Module) -> bool:
    """A name that this file gets from mkstemp or os.open, and never from anywhere else."""
    if not isinstance(descriptor, ast.Name):
        return False
    stores = [n for n in ast.walk(tree) if _is_name(n, descriptor.id)
              and isinstance(getattr(n, "ctx", None), ast.Store)]
    given = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _opens(node.value):
            first = node.targets[0]
            if isinstance(first, ast.Tuple) and first.elts:
                first = first.elts[0]
            given += _is_name(first, descriptor.id)
    arguments = {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in n.args}
    return given > 0 and given == len(stores) and descriptor.id not in arguments


def _opens(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (
        node.func.attr in _OPENING
    )
