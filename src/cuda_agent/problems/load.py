"""A file, a row of a data set, `file.py:Class` or `package.module:Class` -> Problem.

The KernelBench format is Python text that defines `Model`, `get_inputs()` and, if the constructor
takes arguments, `get_init_inputs()`. We add two conventions (problems/README.md): a module-level
`SIZE = "gpu"` picks the entry of `SHAPES`, and `size="cpu"` rewrites that line; a module-level
`DTYPE = "bfloat16"` is the dtype where the caller gives none.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from cuda_agent.errors import ProblemError
from cuda_agent.problems.dataset import dataset_problem, is_dataset
from cuda_agent.problems.execute import declared_dtype, execute, first_line, imports_of, parse
from cuda_agent.problems.inputspec import input_expressions
from cuda_agent.records import DTYPES, Problem

SIZES = ("gpu", "cpu")
_CLASS_SPEC = re.compile(
    r"(?P<module>[^:()]+):(?P<cls>[A-Za-z_][\w.]*)\s*(?:\((?P<args>.*)\))?", re.S
)


def load_problem(
    spec: str | os.PathLike[str],
    *,
    inputs: str | Sequence[str] | None = None,
    dtype: str | None = None,
    size: str | None = None,
) -> Problem:
    """Reads a problem and checks that its text runs and has the parts of the format.

    Args:
        spec: path of a KernelBench-format file; a row of a data set, `ops.parquet#12`;
            `file.py:Class`; or `package.module:Class`. A class may carry literal constructor
            arguments: `torch.nn:LayerNorm(1024, eps=1e-6)`.
        inputs: `"randn(8,512,1024); randint(0, 9, 8)"` or a list of such texts. Required for a
            class; for a file they replace its `get_inputs()`.
        dtype: floating parameters and inputs get this dtype ("float32", "bfloat16", "float16");
            default: what the file declares (`DTYPE = "bfloat16"`), else float32.
        size: "gpu" or "cpu" picks that entry of a suite file's SHAPES; other files ignore it.
    Raises: ProblemError, one sentence that names the file, the line and how to mend it.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ProblemError(f"There is no problem dtype `{dtype}`; use one of {', '.join(DTYPES)}.")
    if size is not None and size not in SIZES:
        raise ProblemError(f"There is no problem size `{size}`; use one of {', '.join(SIZES)}.")
    text = os.fspath(spec)
    match = _CLASS_SPEC.fullmatch(text.strip())
    if is_dataset(text):
        problem = dataset_problem(text, dtype)
        if inputs is not None:
            problem = replace(problem, source=_with_inputs(problem.source, inputs))
    elif match and not Path(text).exists():
        problem = _from_class(text.strip(), match, inputs, dtype or DTYPES[0])
    else:
        problem = _from_file(Path(text), inputs, dtype, size)
    execute(problem)
    return problem


def _read(path: Path) -> str:
    if not path.exists():
        raise ProblemError(
            f"There is no problem file {path}; give a KernelBench-format .py file, or "
            "package.module:Class with --inputs."
        )
    if path.is_dir():
        raise ProblemError(
            f"{path} is a folder, not a problem file; give one .py file in it, or run "
            "`cuda-agent bench` on the folder."
        )
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path} is not UTF-8 text; give a Python (.py) file.") from error
    except OSError as error:
        raise ProblemError(f"{path} cannot be read ({error.strerror}); check the file.") from error


def _origin(path: Path) -> str:
    """Relative where it can be, so that stored records hold no machine path without need."""
    absolute = path.resolve()
    cwd = Path.cwd()
    return str(absolute.relative_to(cwd) if absolute.is_relative_to(cwd) else absolute)


def _from_file(
    path: Path, inputs: str | Sequence[str] | None, dtype: str | None, size: str | None
) -> Problem:
    source = _read(path)
    origin = _origin(path) if path.suffix == ".py" else str(path)
    tree = parse(source, origin)
    if size is not None:
        source = with_size(source, size, tree)
    if inputs is not None:
        source = _with_inputs(source, inputs)
    return Problem(path.stem, source, origin, dtype or declared_dtype(tree, origin))


def _with_inputs(source: str, inputs: str | Sequence[str]) -> str:
    """The later definition of get_inputs() counts."""
    return source.rstrip("\n") + "\n\n\n" + _get_inputs_text(inputs)


def with_size(source: str, size: str, tree: ast.Module | None = None) -> str:
    """`source` with its module-level `SIZE = "..."` set; unchanged where it has none.

    The line count stays, so that messages still name the right line of the file.
    """
    for node in (tree or ast.parse(source)).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        named = [t.id for t in targets if isinstance(t, ast.Name)]
        if named == ["SIZE"] and isinstance(node, ast.Assign):
            lines = source.splitlines(keepends=True)
            start, end = node.lineno - 1, node.end_lineno or node.lineno
            lines[start:end] = [f'SIZE = "{size}"' + "\n" * (end - start)]
            return "".join(lines)
    return source


def _get_inputs_text(inputs: str | Sequence[str]) -> str:
    rows = "".join(f"        {expression},\n" for expression in input_expressions(inputs))
    return f"def get_inputs():\n    import torch\n\n    return [\n{rows}    ]\n"


def _from_class(
    text: str, match: re.Match[str], inputs: str | Sequence[str] | None, dtype: str
) -> Problem:
    module, cls, args = match["module"].strip(), match["cls"], match["args"]
    if inputs is None:
        raise ProblemError(
            f'{text} needs its inputs; add for example --inputs "randn(8,512,1024)".'
        )
    arguments = _constructor_arguments(text, args)
    tail = f"\n\n{_get_inputs_text(inputs)}\n\ndef get_init_inputs():\n    return []\n"
    constructor = f"    def __init__(self):\n        super().__init__({arguments})\n"
    body = f"\n\nclass Model({cls}):\n{constructor}"
    if module.endswith(".py"):
        path = Path(module)
        own = _read(path)
        parse(own, _origin(path))
        if cls not in {n.name for n in ast.walk(ast.parse(own)) if isinstance(n, ast.ClassDef)}:
            raise _unknown(text, cls, module, re.findall(r"^class (\w+)", own, re.M))
        source = own.rstrip("\n") + "\n" + body + tail
        return Problem(name=cls, source=source, origin=_origin(path), dtype=dtype)
    _check_class(text, module, cls)
    source = (
        f'"""{text} as a problem; inputs as given on the command line."""\n\n'
        f"import torch\nfrom {module} import {cls.partition('.')[0]}\n{body}{tail}"
    )
    return Problem(name=cls.replace(".", "_"), source=source, origin=text, dtype=dtype)


def _constructor_arguments(text: str, args: str | None) -> str:
    if not args or not args.strip():
        return ""
    try:
        call = ast.parse(f"f({args})", mode="eval").body
        assert isinstance(call, ast.Call)
        for node in [*call.args, *(k.value for k in call.keywords)]:
            ast.literal_eval(node)
    except (SyntaxError, ValueError) as error:
        raise ProblemError(
            f"The constructor arguments of {text} must be literals, as in "
            "torch.nn:LayerNorm(1024, eps=1e-6); put anything else into a problem file."
        ) from error
    return ast.unparse(call)[2:-1]


def _check_class(text: str, module: str, cls: str) -> None:
    """The class is imported here so that its errors name the spec and not generated text."""
    stand_in = Problem(name=cls, source="", origin=text)
    try:
        with imports_of(stand_in):
            importlib.invalidate_caches()
            found: object = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ProblemError(
            f"{text}: there is no module `{error.name}`; check its name, and that it is installed "
            "or lies under the current folder."
        ) from error
    except (Exception, SystemExit) as error:
        raise ProblemError(f"{text}: importing `{module}` raised {first_line(error)}.") from error
    for part in cls.split("."):
        if not hasattr(found, part):
            raise _unknown(text, part, module, dir(found))
        found = getattr(found, part)
    if not (inspect.isclass(found) and issubclass(found, torch.nn.Module)):
        raise ProblemError(f"{text}: `{cls}` is not a class derived from torch.nn.Module.")


def _unknown(text: str, cls: str, module: str, names: Sequence[str]) -> ProblemError:
    near = difflib.get_close_matches(cls, names, n=1)
    hint = f"; did you mean `{near[0]}`?" if near else "; check its name."
    return ProblemError(f"{text}: there is no class `{cls}` in {module}{hint}")
