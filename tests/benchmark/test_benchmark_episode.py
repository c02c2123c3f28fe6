"""The page of a chat model's episodes: complete, foldable, and safe whatever was said."""

from __future__ import annotations

import dataclasses

from test_benchmark_report import RUN, Checker

from cuda_agent.agents.transcript import Answered, ChatTurn, Compacted, Heading, Transcript
from cuda_agent.benchmark.episode import render_episodes, speedup_plot
from cuda_agent.policies.chat import Call, Reply, Usage

EVIL = "\ud800</pre><script>alert(1)</script><img src=http://evil/x>"
HEADING = Heading(
    "run-1", {}, "some/model", "tools", (),
    ({"role": "system", "content": f"system {EVIL}"}, {"role": "user", "content": "task"}),
)


def check(page: str) -> None:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []


def turn(name: str, status: str = "ok", speedup: float | None = None) -> ChatTurn:
    arguments = {"path": EVIL, "edits": [EVIL]}
    reply = Reply(f"I {name} {EVIL}", f"because {EVIL}", (Call("1", name, arguments),), "stop",
                  usage=Usage(1000, 50, 800))  # fmt: skip
    answer = Answered("1", name, arguments, status, f"said {EVIL}")
    return ChatTurn(reply, (answer,), "", speedup, 2, 0.25, 1.5, 0.5)


def episode() -> Transcript:
    turns = [
        turn("write"), turn("profile", "wrong"), turn("profile", speedup=1.5),
        turn(f"odd{EVIL}", "error", speedup=1.5), turn("profile", speedup=2.25),
        ChatTurn(Reply(refusal=f"no {EVIL}"), note="call a tool", speedup=2.25, evaluations=2),
    ]
    return Transcript(HEADING, None, turns, Compacted(2, f"summary {EVIL}"), f"time {EVIL}")


def test_the_page_holds_everything_and_nothing_runs() -> None:
    page = render_episodes(RUN, [episode()])
    check(page)
    assert page.encode() and "<script" not in page and "<img" not in page
    assert page.count('<details class="turn">') == 6
    for part in ("2.25× eager", "because ", "said ", "summary ", "call a tool", "some/model",
                 "1.2500", "5000", "4000"):  # fmt: skip
        assert part in page, part
    assert page.count('class="better"') == 2  # only where it became better


def test_several_episodes_and_none_that_measured() -> None:
    other = Transcript(dataclasses.replace(HEADING, id="run-1.1"), None, [turn("write")], None, "")
    page = render_episodes(RUN, [episode(), other])
    check(page)
    assert "run-1.1" in page and "not ended" in page
    assert speedup_plot([other]) == "" and "<path" in speedup_plot([episode()])
    check(render_episodes(RUN, [Transcript(HEADING)]))
