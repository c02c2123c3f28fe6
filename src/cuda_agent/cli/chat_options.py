"""Options of `optimize` for policies that are chat models."""

from __future__ import annotations

import argparse
from typing import Any

from cuda_agent.agents.compete import KEY_ENV, ChatOptions

# option: (argument of argparse, field of ChatOptions)
_FIELDS = {
    "model": "model", "base_url": "base_url", "key_env": "key_env", "key_file": "key_file",
    "samples": "samples", "turns": "turns", "context": "context", "max_cost": "max_cost_usd",
    "prices": "prices", "protocol": "protocol", "stream": "stream",
    "reply_tokens": "reply_tokens", "timeout": "timeout_s", "patience": "patience_s",
}  # fmt: skip
_FIXED = ("model", "samples", "protocol")  # of a run that is resumed


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "with --policy endpoint", "any OpenAI-compatible chat endpoint; pip install '.[agent]'"
    )
    default = ChatOptions()
    group.add_argument("--base-url", metavar="URL", help="e.g. http://localhost:8000/v1")
    group.add_argument("--key-env", metavar="NAME", help=f"holds the key; default: {KEY_ENV}")
    group.add_argument("--key-file", metavar="FILE", help="holds the key")
    group.add_argument(
        "--samples", type=int, metavar="K", help="episodes side by side at one judge; default: 1"
    )
    group.add_argument(
        "--turns", type=int, metavar="N", help=f"replies at most; default: {default.turns}"
    )
    group.add_argument(
        "--context", type=int, metavar="N", help=f"tokens; default: {default.context}"
    )
    group.add_argument(
        "--max-cost", type=float, metavar="USD", help="of all episodes together; needs --prices"
    )
    group.add_argument("--prices", metavar="FILE", help="price table (TOML), see docs/agents.md")
    group.add_argument(
        "--protocol", choices=("auto", "tools", "text"),
        help="tool calls, or one fenced action a turn; default: auto",
    )
    group.add_argument(
        "--stream", action=argparse.BooleanOptionalAction, help="default: --stream"
    )
    group.add_argument("--reply-tokens", type=int, metavar="N", help="of one reply at most")
    group.add_argument(
        "--timeout", type=float, metavar="S", help=f"of one answer; default: {default.timeout_s:g}"
    )
    group.add_argument(
        "--patience", type=float, metavar="S",
        help=f"for an endpoint that fails; default: {default.patience_s:g}",
    )


def given(args: argparse.Namespace, model: bool = True) -> dict[str, Any]:
    """Fields of ChatOptions that were typed. `model`: whether --model is one of them."""
    fields = {n: f for n, f in _FIELDS.items() if model or n != "model"}
    found = {field: getattr(args, name) for name, field in fields.items()}
    return {field: value for field, value in found.items() if value is not None}


def resumed(stored: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """The stored fields with those that may be given anew."""
    anew = {f: v for f, v in given(args).items() if f not in _FIXED}
    return {**stored, **anew}
