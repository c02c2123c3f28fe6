"""The shape of the code base: who may import whom, sizes, and what an import may do."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "cuda_agent"
TESTS = ROOT / "tests"

ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "records", "runtime", "runtime_gemm"),
    ("store",),
    ("problems",),
    ("graph", "targets"),
    ("skills",),
    ("evaluation",),
    ("workers",),
    ("policies",),
    ("agents", "rewards"),
    ("benchmark",),
    ("synthesis", "training"),
    ("api",),
    ("cli",),
)
"""A room imports from rooms on an earlier line only. Between rooms of one line nothing passes,
except in the first: leaves that may be used by one another."""

RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
ENTRANCES = {"__init__", "__main__"}

MAX_FILE_LINES, MAX_FUNCTION_LINES = 600, 80
HEAVY = ("torch", "numpy", "rich", "jinja2", "cuda")

MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({p.relative_to(PACKAGE).parts[0].removesuffix(".py") for p in MODULES})
SKILLS = sorted(p.parent for p in (PACKAGE / "skills").glob("*/skill.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[tuple[str, int]]:
    """Dotted names that a file imports, at any depth, each with its line."""
    package = ["cuda_agent", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def test_every_room_has_its_place_in_the_order() -> None:
    assert set(ROOMS) - ENTRANCES <= set(RANK)


@pytest.mark.parametrize("room", [room for room in ROOMS if room not in ENTRANCES])
def test_a_room_imports_only_from_rooms_left_of_it(room: str) -> None:
    wrong = []
    for path in MODULES:
        if room_of(path) != room:
            continue
        for name, line in imported(path):
            parts = name.split(".")
            if parts[0] != "cuda_agent" or len(parts) < 2 or parts[1] not in RANK:
                continue
            other = parts[1]
            leaf = RANK[room] == RANK[other] == 0
            if other != room and not leaf and RANK[other] >= RANK[room]:
                wrong.append(f"{name_of(path)}:{line} imports {name}")
    assert wrong == []


def test_ray_is_imported_in_one_file_only() -> None:
    users = {name_of(p) for p in MODULES for name, _ in imported(p) if name.split(".")[0] == "ray"}
    assert users <= {"src/cuda_agent/workers/ray.py"}


def test_what_is_exported_stands_alone() -> None:
    """The files beside a solution import the standard library, torch and cuda-core."""
    allowed = {*sys.stdlib_module_names, "torch", "cuda"}
    for path in (PACKAGE / "runtime.py", PACKAGE / "runtime_gemm.py"):
        tops = {name.split(".")[0] for name, _ in imported(path)}
        assert tops <= allowed, f"{name_of(path)} imports {sorted(tops - allowed)}"


@pytest.mark.parametrize("path", [*MODULES, *sorted(TESTS.rglob("*.py"))], ids=name_of)
def test_files_and_functions_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE_LINES, f"{lines} lines"
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_every_module_says_what_it_is() -> None:
    silent = [
        name_of(p) for p in MODULES if tree(p).body and ast.get_docstring(tree(p)) is None
    ]
    assert silent == []


@pytest.mark.parametrize("folder", SKILLS, ids=lambda p: p.name)
def test_every_skill_can_be_read(folder: Path) -> None:
    """SKILL.md with front matter that any agent understands: name = folder, and a description."""
    text = (folder / "SKILL.md").read_text(encoding="utf-8")
    match = re.match(r"---\n(.*?)\n---\n(.+)", text, re.S)
    assert match is not None, "front matter between --- lines, then text"
    fields = dict(line.split(":", 1) for line in match[1].splitlines() if ":" in line)
    assert fields["name"].strip() == folder.name
    assert len(fields["description"].strip()) >= 20


def test_every_room_is_tested_and_test_files_have_names_of_their_own() -> None:
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
    for room in set(ROOMS) - ENTRANCES:
        own = TESTS / room
        assert any(own.glob(f"test_{room}_*.py")) or any(TESTS.glob(f"test_{room}*.py")), room


def python(code: str, folder: Path) -> str:
    """Standard output of a fresh interpreter that lives and writes in `folder` only."""
    env = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(PACKAGE.parent)}
    env = {key: value for key, value in env.items() if not key.startswith("CUDA_AGENT")}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], cwd=folder, env=env, text=True, capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    code = f"import sys, cuda_agent; print([m for m in {HEAVY} if m in sys.modules])"
    assert python(code, tmp_path).strip() == "[]"


def test_importing_everything_prints_and_writes_nothing(tmp_path: Path) -> None:
    names = [
        ".".join(["cuda_agent", *path.relative_to(PACKAGE).with_suffix("").parts])
        for path in MODULES
        if path.name != "__main__.py"
    ]
    names = [name.removesuffix(".__init__") for name in names]
    assert python(f"import importlib\nfor n in {names}: importlib.import_module(n)", tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: all but the bodies of functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        yield child
        yield from at_import_time(child)


@pytest.mark.parametrize("room", ROOMS)
def test_the_environment_is_not_read_at_import_time(room: str) -> None:
    for path in MODULES:
        if room_of(path) == room:
            for node in at_import_time(tree(path)):
                read = isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
                assert not read, f"{name_of(path)}:{getattr(node, 'lineno', 0)}"


def test_no_path_of_a_machine_in_the_sources() -> None:
    pattern = re.compile(r"[\"'` ](/root/|/home/|/work/)")
    found = [
        f"{name_of(path)}:{number}"
        for path in [*MODULES, *(ROOT / "problems").rglob("*.py")]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []
