"""`cuda-agent mcp PROBLEM`: the tools for a coding agent, as an MCP server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from cuda_agent.cli import common
from cuda_agent.errors import SettingsError
from cuda_agent.records import Precision, Track


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "mcp", help="the tools for a coding agent, as an MCP server", description=__doc__
    )
    common.add_problem_options(parser)
    parser.add_argument(
        "--folder", type=Path, metavar="DIR",
        help="the work folder, which the tools never leave; default: work/<problem's name>",
    )
    parser.add_argument(
        "--http", type=int, metavar="PORT",
        help="streamable HTTP on 127.0.0.1 instead of standard input and output",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        import anyio
        import mcp.server  # noqa: F401  (a missing one is told before any work)
    except ImportError:
        raise SettingsError(
            "the MCP server needs the mcp package: pip install 'cuda-agent[agent]'."
        ) from None
    from cuda_agent.agents import mcp_server
    from cuda_agent.agents.optimize import cache_dir
    from cuda_agent.evaluation import Settings
    from cuda_agent.store import Store

    target = common.resolve_target(args.target)
    with common.only_json_on_stdout(True):
        problem = common.load(args, target)
    settings = Settings(
        target=target.name, track=args.track or get_args(Track)[0],
        precision=args.precision or get_args(Precision)[0],
        baselines=args.baselines or ("eager", "compile_default"),
    )
    folder = args.folder or Path("work") / problem.name
    store = Store(cache_dir() / "mcp")
    guest = mcp_server.Guest(problem, settings, folder, store, cache_dir(), target.facts())
    try:
        server = mcp_server.make_server(guest)
        if args.http is None:
            anyio.run(mcp_server.serve_stdio, server)
        else:
            anyio.run(mcp_server.serve_http, server, args.http)
    finally:
        guest.close()
    return 0
