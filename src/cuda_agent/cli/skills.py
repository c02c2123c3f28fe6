"""`cuda-agent skills`: the kernel skills as texts, for any agent that reads Agent Skills."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cuda_agent.errors import OutputError
from cuda_agent.skills.reading import documents
from cuda_agent.store import write_file


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "skills", help="the kernel skills as texts: list, export", description=__doc__
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    actions.add_parser("list", help="names and when they apply").set_defaults(run=run_list)
    making = actions.add_parser("export", help="a folder for each, with its SKILL.md")
    making.add_argument("folder", metavar="DIR", type=Path)
    making.set_defaults(run=run_export)


def run_list(args: argparse.Namespace) -> int:
    table = Table("skill", "writes kernels", "description")
    for document in documents().values():
        table.add_row(document.name, "yes" if document.writes else "", document.description)
    Console().print(table)
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Skills of the same names are replaced, other files are left alone."""
    try:
        for document in documents().values():
            folder = args.folder / document.name
            folder.mkdir(parents=True, exist_ok=True)
            write_file(folder / "SKILL.md", document.text.encode())
    except OSError as error:
        raise OutputError(
            f"{args.folder} cannot be written ({error.strerror or error})."
        ) from error
    print(f"{len(documents())} skills: {args.folder}")
    return 0
