"""Runs the text of a problem as a module, and says in one sentence what is wrong with it."""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cuda_agent.errors import ProblemError
from cuda_agent.records import DTYPES, Problem, content_hash

_MESSAGE_LIMIT = 240


def first_line(error: BaseException) -> str:
    """`Type: message` of an exception, on one line and not too long."""
    text = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    if len(text) > _MESSAGE_LIMIT:
        text = text[: _MESSAGE_LIMIT - 3] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def where(error: BaseException, problem: Problem) -> str:
    """`file.py, line 12`: the innermost line of the problem's own text that `error` passed.

    A live module has no text; then it is the innermost line that is neither torch's nor ours.
    """
    filename, libraries = _filename(problem), (torch.__path__[0], str(Path(__file__).parent))
    line = foreign = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file == filename:
            line = trace.tb_lineno
        elif not file.startswith(libraries):
            foreign = f"{file}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if line is None and foreign and problem.kind == "live":
        return f"{problem.origin} ({foreign})"
    return f"{problem.origin}, line {line}" if line else problem.origin


def _filename(problem: Problem) -> str:
    return problem.origin if problem.origin.endswith(".py") else f"<problem {problem.name}>"


def import_roots(problem: Problem) -> tuple[str, ...]:
    """Folders that must be importable for the problem's own imports: its folder and the cwd."""
    roots = [os.getcwd()]
    if problem.origin.endswith(".py"):
        roots.insert(0, str(Path(problem.origin).resolve().parent))
    return tuple(dict.fromkeys(roots))


@contextmanager
def imports_of(problem: Problem) -> Iterator[None]:
    """Lets the problem's text import files that lie beside it, as a script could."""
    added = [root for root in import_roots(problem) if root not in sys.path]
    sys.path[:0] = added
    try:
        yield
    finally:
        for root in added:
            if root in sys.path:
                sys.path.remove(root)


def parse(source: str, origin: str) -> ast.Module:
    """The syntax tree of `source`. Raises ProblemError with the line of a syntax error."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise ProblemError(
            f"{origin}, line {error.lineno}: {error.msg}{f' in `{text}`' if text else ''}; "
            "mend the file so that Python can parse it."
        ) from error
    except ValueError as error:  # null bytes
        raise ProblemError(f"{origin} is not Python text ({error}); give a .py file.") from error


def declared_dtype(tree: ast.Module, origin: str) -> str:
    """What a module-level `DTYPE = "bfloat16"` says; float32 without one. Raises ProblemError."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="DTYPE")], value=ast.Constant(value=str(dtype))):
                if dtype in DTYPES:
                    return dtype
                raise ProblemError(
                    f"{origin}, line {node.lineno}: there is no problem dtype `{dtype}`; use one "
                    f"of {', '.join(DTYPES)}."
                )
    return DTYPES[0]


def execute(problem: Problem) -> ModuleType:
    """A fresh module made of the problem's text, with `Model` and `get_inputs` checked.

    Raises ProblemError: the text does not parse, does not run, or lacks what the format asks for.
    """
    parse(problem.source, problem.origin)
    filename = _filename(problem)
    module = ModuleType(f"cuda_agent_problem_{content_hash(problem.source, problem.name)}")
    module.__file__ = filename
    # Tracebacks and torch's tracers read source lines through these two.
    linecache.cache[filename] = (
        len(problem.source),
        None,
        problem.source.splitlines(keepends=True),
        filename,
    )
    sys.modules[module.__name__] = module
    try:
        with imports_of(problem):
            exec(compile(problem.source, filename, "exec"), module.__dict__)
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        raise ProblemError(
            f"{where(error, problem)}: {first_line(error)}; install "
            f"{f'`{package}`' if package else 'it'} in this environment or mend the import."
        ) from error
    except (Exception, SystemExit) as error:
        raise ProblemError(
            f"{where(error, problem)}: the file raised {first_line(error)} when it was loaded; "
            "mend that line."
        ) from error
    _check_format(module, problem)
    return module


def _check_format(module: ModuleType, problem: Problem) -> None:
    model = getattr(module, "Model", None)
    if model is None:
        own = [
            name
            for name, value in vars(module).items()
            if inspect.isclass(value)
            and issubclass(value, torch.nn.Module)
            and value.__module__ == module.__name__
        ]
        give = f"rename `{own[-1]}` to it or give {problem.origin}:{own[-1]}" if own else "add it"
        raise ProblemError(
            f"{problem.origin} defines no class `Model`, the module to make faster; {give}."
        )
    if not (inspect.isclass(model) and issubclass(model, torch.nn.Module)):
        raise ProblemError(
            f"{problem.origin}: `Model` must be a class derived from torch.nn.Module."
        )
    if not callable(getattr(module, "get_inputs", None)):
        raise ProblemError(
            f"{problem.origin} defines no function `get_inputs()`, which returns the list of "
            "forward arguments; add it or pass --inputs."
        )


def call(problem: Problem, function: Any, what: str, expected: str, *args: Any, **kw: Any) -> Any:
    """`function(*args, **kw)`; what it raises becomes a ProblemError naming the user's line.

    Out-of-memory errors pass through: the caller knows how much was needed.
    """
    try:
        with imports_of(problem):
            return function(*args, **kw)
    except (torch.OutOfMemoryError, ProblemError):
        raise
    except Exception as error:
        raise ProblemError(
            f"{where(error, problem)}: {what} raised {first_line(error)}; {expected}."
        ) from error
