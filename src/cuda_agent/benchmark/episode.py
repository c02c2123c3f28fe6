"""The episodes of a chat model as a page: every turn, foldable, and the speed-up over turns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cuda_agent.agents.transcript import Answered, ChatTurn, Transcript
from cuda_agent.benchmark import plots
from cuda_agent.benchmark.report import environment
from cuda_agent.records import Run

_LINES = 3  # series that the style sheet has a colour for


def render_episodes(run: Run, episodes: Sequence[Transcript]) -> str:
    """One self-contained HTML page. Everything that a model or a command said is escaped."""
    page = environment().get_template("episode.html.j2").render(
        run=run, episodes=[_episode(episode) for episode in episodes],
        plot=speedup_plot(episodes), rows=[_totals(episode) for episode in episodes],
    )
    return page.encode("utf-8", "replace").decode()  # halves of characters have no place in it


def speedup_plot(episodes: Sequence[Transcript]) -> str:
    """The best so far over eager after each turn; "" where nothing correct was measured."""
    series = {
        str(i): [
            (float(n), turn.speedup) for n, turn in enumerate(episode.turns, 1)
            if turn.speedup is not None
        ]
        for i, episode in enumerate(episodes[:_LINES])
    }
    return plots.lines(series, "Best speed-up over eager, by turn", "turn")


def _totals(episode: Transcript) -> dict[str, Any]:
    used, turns = episode.usage, episode.turns
    best = max((t.speedup for t in turns if t.speedup is not None), default=None)
    reached = next((n for n, t in enumerate(turns, 1) if best is not None and t.speedup == best), 0)
    return {
        "id": episode.heading.id, "model": episode.heading.model, "turns": len(turns),
        "best": best, "reached": reached or None,
        "evaluations": turns[-1].evaluations if turns else 0,
        "prompt": used.prompt, "cached": used.cached, "completion": used.completion,
        "estimated": used.estimated,
        "cost": episode.cost_usd if any(t.cost_usd is not None for t in turns) else None,
        "model_s": sum(t.model_s for t in turns), "tools_s": sum(t.tools_s for t in turns),
        "ended": episode.ended or "not ended",
    }


def _episode(episode: Transcript) -> dict[str, Any]:
    before: float | None = None
    turns = []
    for number, turn in enumerate(episode.turns, 1):
        better = turn.speedup is not None and (before is None or turn.speedup > before)
        before = turn.speedup if better else before
        turns.append(_turn(number, turn, better))
    opening = [(m["role"], str(m.get("content") or "")) for m in episode.heading.opening]
    return {
        "id": episode.heading.id, "dialect": episode.heading.dialect, "opening": opening,
        "turns": turns, "compacted": episode.compacted,
    }


def _turn(number: int, turn: ChatTurn, better: bool) -> dict[str, Any]:
    names = ", ".join(answer.name for answer in turn.answers) or "no call"
    failed = any(answer.status != "ok" for answer in turn.answers) or not turn.answers
    statuses = dict.fromkeys(a.status for a in turn.answers if a.status != "ok")
    return {
        "number": number, "names": names, "statuses": ", ".join(statuses), "failed": failed,
        "better": better, "speedup": turn.speedup, "turn": turn,
        "said": turn.reply.text or turn.reply.refusal,
        "answers": [(answer, _arguments(answer)) for answer in turn.answers],
    }


def _arguments(answer: Answered) -> list[tuple[str, str]]:
    """(name, text) of each argument; long texts as they stand, everything else as JSON."""
    if not isinstance(answer.arguments, dict):
        return [("", json.dumps(answer.arguments, ensure_ascii=False))]
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1))
        for name, value in answer.arguments.items()
    ]
