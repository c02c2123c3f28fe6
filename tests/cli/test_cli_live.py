"""The live view of chat models, and the lines that stand for it where there is no terminal."""

from __future__ import annotations

import io

from rich.console import Console

from cuda_agent.agents.engineer import Event
from cuda_agent.cli import lines
from cuda_agent.cli.live import LiveView
from cuda_agent.records import Problem, Run

RUN = Run("run-1", "optimize", Problem("toy", "", ""), {"target": "cpu", "seed": 0}, "now")
EVENTS = [
    Event(0, "text", "I will write\x1b]0;evil\x07 a kernel.\nThen", 1),
    Event(0, "call", "bash {\"command\": \"ls [bold]\"}", 1),
    Event(0, "output", "kernels\n", 1),
    Event(0, "answer", "ok kernels", 1),
    Event(0, "turn", "1000 + 50 tokens, 2.0 s", 1, 1.75, 0.125),
    Event(1, "note", "older turns were compacted", 7),
    Event(1, "end", "submitted", 7, 2.0),
]


def shown(view: LiveView) -> str:
    out = io.StringIO()
    Console(file=out, width=150).print(view.view())
    return out.getvalue()


def test_the_view_shows_where_each_episode_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=150)
    with LiveView(console, RUN, 200) as view:
        view.stage("searching")
        for event in EVENTS:
            view.chat(event)
        text = shown(view)
    for part in ("toy on cpu, run run-1", "1/200", "7/200", "1.75x eager", "2.00x eager",
                 "searching", "$0.1250", "kernels", "I will write"):  # fmt: skip
        assert part in text, part
    assert "\x1b]" not in text and "\x07" not in text
    assert "[bold]" in shown_while_calling()


def shown_while_calling() -> str:
    view = LiveView(Console(file=io.StringIO()), RUN, 200)
    for event in EVENTS[:2]:
        view.chat(event)
    return shown(view)


def test_lines_without_a_terminal() -> None:
    said = [line for event in EVENTS if (line := lines.of(event)) is not None]
    assert said == [
        '[0] turn 1 > bash {"command": "ls [bold]"}',
        "[0] turn 1 < ok kernels",
        "[0] turn 1: best 1.75x eager, $0.1250; 1000 + 50 tokens, 2.0 s",
        "[1] turn 7 ! older turns were compacted",
        "[1] ended: submitted",
    ]
    evil = Event(0, "answer", "a\x1b[2Jb\r\nc" + "x" * 500, 1)
    line = lines.of(evil) or ""
    assert "\x1b" not in line and "\n" not in line and len(line) < 180
