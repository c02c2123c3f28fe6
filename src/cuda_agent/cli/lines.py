"""What a chat model does, as lines for a terminal."""

from __future__ import annotations

import re

from cuda_agent.agents.engineer import Event

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_WIDTH = 140


def of(event: Event) -> str | None:
    """A line without control characters; None for what comes in pieces (text, output)."""
    if event.kind in ("text", "output"):
        return None
    text = _CONTROL.sub(" ", event.text)[:_WIDTH].strip()
    head = f"[{event.sample}] turn {event.turn}"
    if event.kind == "turn":
        best = "none yet" if event.speedup is None else f"{event.speedup:.2f}x eager"
        cost = f", ${event.cost_usd:.4f}" if event.cost_usd else ""
        return f"{head}: best {best}{cost}; {text}"
    if event.kind == "end":
        return f"[{event.sample}] ended: {text}"
    mark = {"call": ">", "answer": "<", "note": "!"}[event.kind]
    return f"{head} {mark} {text}"
