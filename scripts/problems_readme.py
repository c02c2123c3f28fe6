"""Writes the table of problems/README.md from the problem files (a test keeps it fresh).

python scripts/problems_readme.py
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "problems"
BEGIN = "<!-- table: scripts/problems_readme.py -->"
END = "<!-- end of table -->"


def sizes(shapes: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in shapes.items())


def row(path: Path) -> str:
    tree = ast.parse(path.read_text())
    doc = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    shapes = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SHAPES"
    )
    link = f"[{path.stem}]({path.parent.name}/{path.name})"
    return f"| {link} | {doc} | {sizes(shapes['gpu'])} | {sizes(shapes['cpu'])} |"


def table() -> str:
    parts = []
    for level, title in ((1, "single operators"), (2, "fused chains"), (3, "whole blocks")):
        files = sorted((FOLDER / f"level{level}").glob("*.py"))
        parts += [
            f"\n### Level {level}: {title} ({len(files)})\n",
            "| problem | what it is | GPU size | CPU size |\n| --- | --- | --- | --- |",
            *(row(path) for path in files),
        ]
    return "\n".join(parts) + "\n"


def rendered(readme: str) -> str:
    head, _, rest = readme.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    path = FOLDER / "README.md"
    path.write_text(rendered(path.read_text()))
