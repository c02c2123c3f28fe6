"""Chat models at work: the loop over real sockets, its limits, its memory, and what it survives."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install '.[agent]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))

import chat_server as server
import toolbox_cases as cases
from agents_fakes import PROBLEM
from chat_server import KEY, Behaviour, Say, call, fails, serving

from cuda_agent.agents import compete, context
from cuda_agent.agents.compete import ChatOptions, Competition, best_of, transcripts
from cuda_agent.agents.engineer import ChatLimits, Event
from cuda_agent.agents.transcript import Transcript
from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.policies.chat import Reply, Usage
from cuda_agent.policies.endpoint import Endpoint


def write(ms: Any) -> Say:
    return call("write", path="model_new.py", text=cases.MODEL_NEW.format(ms=ms))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    made = Endpoint.__post_init__

    def impatient(self: Endpoint) -> None:
        made(self)
        self.sleep = lambda seconds: None

    monkeypatch.setattr(Endpoint, "__post_init__", impatient)


def competition(
    folder: Path, url: str = "", limits: ChatLimits | None = None, policy: str = "endpoint",
    worker: cases.TextWorker | None = None, watch: list[Event] | None = None, **options: Any,
) -> Competition:
    bench = cases.bench(folder, worker=worker)
    chosen = ChatOptions(**{"model": "m", "base_url": url, "patience_s": 500.0, **options})
    return Competition(
        policy, chosen, limits or ChatLimits(), bench, cases.FACTS, bench.room.store, "run",
        "library", "strict", watch=(watch if watch is not None else []).append,
    )


def play(folder: Path, *behaviours: Behaviour, **options: Any) -> tuple[str, Transcript, Any]:
    with serving(*behaviours) as at:
        made = competition(folder, at.url, **options)
        reason = made.run()[0]
        return reason, transcripts(made.store, "run")[0], at


@pytest.mark.parametrize("stream", [True, False])
def test_an_episode_from_the_first_look_to_the_submission(tmp_path: Path, stream: bool) -> None:
    events: list[Event] = []
    reason, episode, at = play(
        tmp_path, call("read", path="model.py"), write(0.5), call("profile"), write(0.8),
        Say("It should be slower.", [("profile", {}), ("todo", {"items": []})]), call("submit"),
        stream=stream, watch=events,
    )
    assert reason == "submitted" == episode.ended and len(episode.turns) == 6
    first = at.requests[0]
    assert first["messages"][0]["role"] == "system" and "x = 1" in first["messages"][1]["content"]
    assert {t["function"]["name"] for t in first["tools"]} >= {"write", "profile", "submit"}
    last = at.requests[-1]["messages"]
    assert [m["role"] for m in last[-3:]] == ["assistant", "tool", "tool"]
    assert last[-3]["content"] == "It should be slower." and "0.8 ms a call" in last[-2]["content"]
    assert [m["tool_call_id"] for m in last[-2:]] == [c["id"] for c in last[-3]["tool_calls"]]
    # The best anywhere counts, although the last was slower.
    best = best_of(cases.Store(tmp_path / "runs"), "run", 1)
    assert best[0][1].speedup["eager"].value == 2.0 and len(best) == 2
    assert [t.speedup for t in episode.turns] == [None, None, 2.0, 2.0, 2.0, 2.0]
    assert episode.turns[-1].evaluations == 2 and episode.usage == Usage(6000, 300)
    kinds = {event.kind for event in events}
    assert {"call", "answer", "turn", "end"} <= kinds


def test_text_protocol_from_the_start(tmp_path: Path) -> None:
    text = cases.MODEL_NEW.format(ms=0.5)
    reason, _, at = play(
        tmp_path, Say(f"I write it.\n\n```write model_new.py\n{text}```\n"),
        Say("```profile\n```"), Say("I am done:\n```submit\n```"), protocol="text",
    )
    assert reason == "submitted" and all("tools" not in r for r in at.requests)
    system = at.requests[0]["messages"][0]["content"]
    assert "exactly one fenced block" in system and "multi_edit(" in system
    roles = [m["role"] for m in at.requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert "[profile: ok]" in at.requests[-1]["messages"][-1]["content"]


def test_an_endpoint_without_tools_is_spoken_to_in_text(tmp_path: Path) -> None:
    reason, episode, at = play(
        tmp_path, fails(400, "this model does not support tools"),
        Say('```submit\n{"give_up": true}\n```'),
    )
    assert reason == "submitted" and episode.heading.dialect == "text"
    assert "tools" not in at.requests[1]
    assert "exactly one fenced block" in at.requests[1]["messages"][0]["content"]


def test_everything_at_once_is_survived(tmp_path: Path) -> None:
    """Rate limits, errors, cut streams, nonsense, unknown tools, wrong types, too many calls."""
    many = Say(calls=[("todo", {"items": []})] * 20)
    reason, episode, _ = play(
        tmp_path, fails(429), fails(500), server.breaks_off, server.hangs_up, Say(""),
        Say("", refusal="I cannot do that."), Say(reasoning="hm", text="Let me think."),
        Say(calls=[("fly", {}), ("read", {"path": 7}), ("bash", "{oh"), ("read", "[]")]),
        many, Say("cut", finish="length"), write("wrong"), call("profile"), write(0.5),
        call("profile"), call("submit"),
    )
    assert reason == "submitted"
    answers = [a for t in episode.turns for a in t.answers]
    said = "\n".join(a.text for a in answers)
    for part in ("there is no tool 'fly'", "must be of type string", "not valid JSON",
                 "takes an object", "over 16 calls", "it is wrong", "0.5 ms a call"):  # fmt: skip
        assert part in said, part
    assert episode.turns[0].reply.refusal and episode.turns[0].reply.retries == 5
    assert "cut off" in episode.turns[4].note and "called no tool" in episode.turns[0].note


def test_invalid_arguments_go_back_as_valid_ones(tmp_path: Path) -> None:
    """Servers parse the arguments in the history again, and fail at what the model wrote."""
    _, _, at = play(
        tmp_path, Say(calls=[("bash", "{oh"), ("read", "[1]"), ("", "{}")]),
        call("submit", give_up=True),
    )
    calls = at.requests[-1]["messages"][2]["tool_calls"]
    assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in calls)
    assert all(c["function"]["name"] for c in calls)


def test_half_a_character_harms_nobody(tmp_path: Path) -> None:
    odd = "\\ud83d"
    reason, episode, at = play(
        tmp_path, Say(calls=[("todo", f'{{"items": [{{"text": "{odd}", "state": "open"}}]}}')]),
        Say(calls=[("bash", f'{{"command": "echo {odd}"}}'), ("read", f'{{"path": "{odd}"}}')]),
        call("submit", give_up=True),
    )
    assert reason == "submitted" and len(episode.turns) == 3 and len(at.requests) == 3


def test_a_model_that_does_not_act_is_let_go(tmp_path: Path) -> None:
    reason, episode, _ = play(tmp_path, Say("", refusal="I cannot help with that."))
    assert reason == "no action in 3 replies: I cannot help with that."
    assert len(episode.turns) == 3


def test_an_endpoint_that_is_gone_ends_the_episode_which_can_go_on(tmp_path: Path) -> None:
    reason, episode, _ = play(tmp_path, write(0.5), call("profile"), fails(503), patience_s=0.01)
    assert reason.startswith("endpoint: m gave no answer") and len(episode.turns) == 2
    reason, episode, at = play(tmp_path, call("submit"))
    assert reason == "submitted" and len(episode.turns) == 3
    assert len(at.requests) == 1 and "0.5 ms a call" in str(at.requests[0]["messages"])


@pytest.mark.parametrize(
    ("limits", "said", "turns"),
    [
        (ChatLimits(turns=2), "2 turns", 2), (ChatLimits(evaluations=1), "1 evaluations", 2),
        (ChatLimits(deadline=0.0), "time", 0),
    ],
)
def test_limits_end_it(tmp_path: Path, limits: ChatLimits, said: str, turns: int) -> None:
    reason, episode, _ = play(
        tmp_path, write(0.5), call("profile"), call("read", path="model.py"), limits=limits
    )
    assert reason == said and len(episode.turns) == turns


def test_costs_are_counted_and_not_exceeded(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[m]\ninput = 1000\noutput = 10000\n")  # 1 + 0.5 dollars a turn
    reason, episode, _ = play(
        tmp_path, call("read", path="model.py"), prices=str(prices), max_cost_usd=4.0,
        limits=ChatLimits(cost_usd=4.0),
    )
    assert episode.cost_usd == pytest.approx(3.0) and reason.startswith("$3.00 of $4.00")


def test_a_killed_episode_continues_where_it_was(tmp_path: Path) -> None:
    """After every number of turns: the transcript is cut there, with a torn line at its end."""
    script = [write(0.5), call("profile"), write(0.25), call("profile"), call("submit")]
    _, whole, _ = play(tmp_path / "whole", *script)
    lines = (tmp_path / "whole/runs/transcripts/run.jsonl").read_text().splitlines(keepends=True)
    for done in range(1, 5):
        folder = tmp_path / str(done)
        play(folder, *script[:done], limits=ChatLimits(turns=done))
        path = folder / "runs/transcripts/run.jsonl"
        path.write_text("".join(lines[: done + 1]) + lines[done + 1][:40])
        reason, episode, at = play(folder, *script[done:])
        assert reason == "submitted" and len(at.requests) == 5 - done
        assert [t.answers[0].status for t in episode.turns] == [
            t.answers[0].status for t in whole.turns
        ]
        assert episode.turns[-1].speedup == 4.0


def test_an_interrupt_keeps_the_turns_before(tmp_path: Path) -> None:
    with serving(write("interrupt"), call("profile")) as at, pytest.raises(KeyboardInterrupt):
        competition(tmp_path, at.url).run()
    assert len(Transcript.load(tmp_path / "runs/transcripts/run.jsonl").turns) == 1


def test_the_key_is_written_nowhere(tmp_path: Path) -> None:
    events: list[Event] = []
    play(
        tmp_path, server.echoes_the_key, fails(500, KEY),
        call("bash", command="env; cat /proc/*/environ"), call("submit", give_up=True),
        watch=events,
    )
    files = [p for p in tmp_path.rglob("*") if p.is_file() and not p.is_symlink()]
    assert len(files) > 10 and not [p for p in files if KEY.encode() in p.read_bytes()]
    assert KEY not in str(events)


# --- the budget of the context ------------------------------------------------------------------


def long_reads(count: int) -> list[Say]:
    return [call("read", path="runtime.py") for _ in range(count)]


def test_old_turns_are_compacted_and_what_matters_is_kept(tmp_path: Path) -> None:
    notes = call("write", path="notes.md", text="Lesson: vectors of 8 spill.")
    todo = call("todo", items=[{"text": "try columns", "state": "open"}])
    failure = Say("I expect the tail to be wrong.", [("profile", {})])
    script = [notes, todo, write("wrong"), failure, write(0.5), call("profile"), *long_reads(8)]
    script = [replace(said, usage=None) for said in [*script, call("submit")]]
    reason, episode, at = play(
        tmp_path, *script, limits=ChatLimits(context=20_000)
    )
    assert reason == "submitted" and episode.compacted is not None
    sizes = [len(json.dumps(r["messages"])) + len(json.dumps(r["tools"])) for r in at.requests]
    assert max(sizes) / context._DEFAULT_RATE < 20_000 * 1.1
    task = at.requests[-1]["messages"][1]["content"]
    assert at.requests[-1]["messages"][0] == at.requests[0]["messages"][0]
    for part in ("vectors of 8 spill", "[open] try columns", "profile: wrong", "it is wrong",
                 "I expect the tail", "ms = 0.5", "2.000x eager", "0.5 ms a call"):  # fmt: skip
        assert part in task, part
    roles = [m["role"] for m in at.requests[-1]["messages"]]
    assert roles[:3] == ["system", "user", "assistant"]
    # Between compactions the conversation only grows: its beginning can be cached.
    kept = [r["messages"][1]["content"] for r in at.requests]
    assert len(set(kept)) < len(kept) / 2


def test_a_context_that_the_endpoint_finds_too_long_is_made_shorter(tmp_path: Path) -> None:
    limit = 40_000

    def small(handler: server.Handler, body: dict[str, Any]) -> None:
        if len(json.dumps(body)) > limit:
            fails(400, "maximum context length is 9000 tokens")(handler, body)
        else:
            script.pop(0)(handler, body)

    script = [*long_reads(5), call("submit", give_up=True)]
    reason, episode, _ = play(tmp_path, small)
    assert reason == "submitted" and episode.compacted is not None and len(episode.turns) == 6


def test_a_context_that_is_too_small_for_the_opening_ends_it(tmp_path: Path) -> None:
    reason, _, at = play(tmp_path, fails(400, "maximum context length is 10 tokens"))
    assert reason.startswith("endpoint: the context is too small") and len(at.requests) < 8


def test_the_estimate_follows_what_the_endpoint_counts() -> None:
    reply = Reply("x" * 100, usage=Usage(2000, 30))
    heading = compete.Heading(
        "e", PROBLEM.to_json(), "m", "tools", (), ({"role": "user", "content": "y" * 4000},)
    )
    turns = [cases_turn(reply) for _ in range(3)]
    episode = Transcript(heading, None, turns)
    sent = context.messages(replace(episode, turns=turns[:2]), heading.opening, "tools")
    counted = context.tokens(sent, episode, "")
    assert 1900 < counted < 2100


def cases_turn(reply: Reply) -> Any:
    from cuda_agent.agents.transcript import ChatTurn

    return ChatTurn(reply)


# --- side by side, and again --------------------------------------------------------------------


def test_episodes_side_by_side_share_the_judge(tmp_path: Path) -> None:
    """Each conversation is told apart by its own first measurement; the judge is never shared by
    two at once."""
    busy = threading.Lock()

    class Careful(cases.TextWorker):
        def evaluate(self, candidate: Any) -> Any:
            assert busy.acquire(blocking=False)
            try:
                time.sleep(0.02)
                return super().evaluate(candidate)
            finally:
                busy.release()

    counter = iter(range(100))

    def own(handler: server.Handler, body: dict[str, Any]) -> None:
        done = len([m for m in body["messages"] if m["role"] == "assistant"])
        with at.lock:
            ms = 1 / (2 + next(counter)) if done % 2 == 0 else 0
        ((call("submit") if done == 6 else write(ms)) if done % 2 == 0 else call("profile"))(
            handler, body
        )

    with serving(own) as at:
        made = competition(tmp_path, at.url, samples=3, worker=Careful(PROBLEM))
        assert made.run() == ["submitted"] * 3
    episodes = transcripts(made.store, "run")
    assert len(episodes) == 3 and all(len(t.turns) == 7 for t in episodes)
    ranked = best_of(made.store, "run", 3)
    assert len(ranked) == 9
    best = max(t.turns[-1].speedup or 0 for t in episodes)
    assert ranked[0][1].speedup["eager"].value == best
    assert (tmp_path / "runs/work/run.2/model_new.py").exists()


def test_one_of_several_that_fails_is_told(tmp_path: Path) -> None:
    refused = pytest.raises(SettingsError, match="key was refused")
    with serving(fails(401, "bad key")) as at, refused:
        competition(tmp_path, at.url, samples=2).run()


def replayed(folder: Path, source: Path, **fields: Any) -> Transcript:
    made = competition(folder, policy=f"scripted:{source}", **fields)
    made.run()
    return transcripts(made.store, "run")[0]


def test_a_stored_episode_is_replayed_exactly_without_a_network(tmp_path: Path) -> None:
    script: Sequence[Say] = [
        write(0.5), call("profile"), Say("no call"), call("fly"),
        call("edit", path="model_new.py", old="0.5", new="0.25"),
        Say("both", [("verify", {}), ("todo", {"items": []})]), call("submit"),
    ]
    _, first, _ = play(tmp_path / "first", *script)
    again = replayed(tmp_path / "again", first.path or Path())
    assert [t.reply for t in again.turns] == [t.reply for t in first.turns]
    assert [t.answers for t in again.turns] == [t.answers for t in first.turns]
    assert again.ended == "submitted"
    half = replayed(tmp_path / "half", first.path or Path(), limits=ChatLimits(turns=3))
    assert len(half.turns) == 3
    assert replayed(tmp_path / "half", first.path or Path()).turns[-1].speedup == 4.0


def test_a_script_that_does_not_end_gives_up(tmp_path: Path) -> None:
    _, first, _ = play(tmp_path / "first", write(0.5), limits=ChatLimits(turns=1))
    again = replayed(tmp_path / "again", first.path or Path())
    assert len(again.turns) == 2 and again.ended == "submitted"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"), ("", "holds no episode"), ("{}\n", "line 1 is not"),
        ('{"turn": {}}\n', "line 1 is not"), ("nonsense\n", "line 1 is not"),
        ('{"episode": {"id": 1}}\n', "line 1 is not"), ("[]\n", "line 1 is not"),
    ],
)
def test_a_file_that_is_no_transcript(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "x.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=said):
        replayed(tmp_path / "again", path)


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with serving(call("read", path="model.py")) as at:
        made = competition(tmp_path, at.url)
        monkeypatch.setattr("cuda_agent.agents.transcript.os.fsync", full)
        with pytest.raises(OutputError, match="No space left"):
            made.run()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": 0}, "samples is 0"), ({"turns": -1}, "turns is -1"),
        ({"protocol": "xml"}, "no protocol 'xml'"), ({"max_cost_usd": 1.0}, "needs --prices"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        ChatOptions(**options)


def test_where_the_key_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("from-file\n")
    assert ChatOptions(key_file=str(tmp_path / "key")).key() == "from-file"
    assert ChatOptions().key() == KEY
    monkeypatch.setenv("OTHER", "from-other")
    assert ChatOptions(key_env="OTHER").key() == "from-other"
    monkeypatch.delenv("OPENAI_API_KEY")
    assert ChatOptions(base_url="http://localhost:1/v1").key()
    for options in ({}, {"base_url": "https://example.com/v1"}, {"key_file": str(tmp_path / "no")}):
        with pytest.raises(SettingsError, match="key"):
            ChatOptions(**options).key()
