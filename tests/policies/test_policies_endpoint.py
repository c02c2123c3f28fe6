"""An endpoint that behaves, and every way in which one may not, over real sockets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install '.[agent]'")

import chat_server as server
from chat_server import KEY, Say, call, fails, serving

from cuda_agent.errors import SettingsError
from cuda_agent.policies import endpoint as endpoint_module
from cuda_agent.policies.chat import (
    Call,
    ChatFailed,
    ContextTooLong,
    DialectChanged,
    Reply,
    Usage,
)
from cuda_agent.policies.endpoint import Endpoint
from cuda_agent.policies.prices import price_of

TOOLS = [
    {"type": "function", "function": {"name": n, "description": "", "parameters": {}}}
    for n in ("bash", "write", "submit", "todo")
]
ASKED = [{"role": "user", "content": "work"}]
both = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


def endpoint(at: server.ChatServer, waits: list[float] | None = None, **fields: Any) -> Endpoint:
    slept = waits if waits is not None else []
    return Endpoint(
        "m", KEY, at.url, **{"timeout_s": 5.0, "sleep": slept.append, "stream": True, **fields}
    )


def ask(made: Endpoint, tell: Callable[[str], None] = lambda text: None) -> Reply:
    return made.reply(ASKED, TOOLS, tell)


@both
def test_an_answer_comes_as_it_was_said(stream: bool) -> None:
    usage = {
        "prompt_tokens": 900, "completion_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 800},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    calls = [("write", {"path": "a.cu", "text": "x\n\"é\""}), ("bash", {"command": "ls"})]
    told: list[str] = []
    with serving(Say("I write.", calls, "Let me think.", usage=usage)) as at:
        reply = ask(endpoint(at, stream=stream), told.append)
        assert at.headers[0]["authorization"] == f"Bearer {KEY}"
        assert at.requests[0]["tools"] == TOOLS and at.requests[0]["messages"] == ASKED
    assert (reply.text, reply.reasoning, reply.finish) == (
        "I write.", "Let me think.", "tool_calls",
    )
    assert [(c.name, c.arguments) for c in reply.calls] == calls
    assert reply.usage == Usage(900, 40, 800, 30) and reply.retries == 0
    assert "I write." in "".join(told)


HOSTILE = {
    "rate_limit": fails(429, "slow down"), "server_error": fails(500), "bad_gateway": fails(502),
    "overloaded": fails(503), "timeout_status": fails(504), "conflict": fails(409),
    "hangs_up": server.hangs_up, "html": server.sends(b"<html>proxy</html>", "text/html"),
    "not_json": server.sends(b"{oh no"), "null": server.sends(b"null"),
    "no_choices": server.sends(b'{"choices": []}'), "odd_types": server.sends(
        b'{"choices": [{"message": {"content": 3, "tool_calls": 4}}], "usage": "much"}'
    ),
    "list": server.sends(b"[1, 2]"), "half": server.half_an_answer, "empty": Say(""),
    "blank": Say("  \n"), "null_content": Say(None),
}  # fmt: skip
HOSTILE_STREAMS = {
    "breaks_off": server.breaks_off, "nonsense": server.nonsense_chunks,
    "broken_json": server.broken_json_chunk, "error_inside": server.error_in_stream,
}


@both
@pytest.mark.parametrize("name", HOSTILE)
def test_a_bad_answer_is_asked_for_again(name: str, stream: bool) -> None:
    waits: list[float] = []
    with serving(HOSTILE[name], HOSTILE[name], call("bash", command="ls")) as at:
        reply = ask(endpoint(at, waits, stream=stream))
        assert len(at.requests) == 3
    assert reply.calls[0].arguments == {"command": "ls"} and reply.retries == 2
    assert 0.5 < waits[0] < 1.5 and 1 < waits[1] < 3  # longer each time


@pytest.mark.parametrize("name", HOSTILE_STREAMS)
def test_a_bad_stream_is_asked_for_again(name: str) -> None:
    with serving(HOSTILE_STREAMS[name], call("submit")) as at:
        reply = ask(endpoint(at))
    assert reply.calls == (Call("id0", "submit", {}),) and reply.retries == 1


@both
def test_silence_is_timed_out(stream: bool) -> None:
    with serving(server.waits(3), call("submit")) as at:
        reply = ask(endpoint(at, timeout_s=0.3, stream=stream))
    assert reply.retries == 1


def test_a_stream_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "MAX_CHARACTERS", 200_000)
    with serving(server.drips_for_ever, call("submit")) as at:
        assert ask(endpoint(at)).retries == 1


def test_the_endpoint_says_how_long_to_wait() -> None:
    waits: list[float] = []
    with serving(fails(429, headers={"Retry-After": "17"}), call("submit")) as at:
        ask(endpoint(at, waits))
    assert waits == [17.0]


def test_patience_ends() -> None:
    clock = [0.0]
    with serving(fails(503, "overloaded")) as at, pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint_module.time, "monotonic", lambda: clock[0])

        def sleep(seconds: float) -> None:
            clock[0] += seconds

        with pytest.raises(ChatFailed, match=r"gave no answer in .* attempts, .*overload"):
            ask(endpoint(at, sleep=sleep, patience_s=100.0))
        assert 30 < clock[0] <= 100 and len(at.requests) >= 5


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        (fails(401, "bad key"), "the key was refused"),
        (fails(403, "no"), "access was refused"),
        (fails(404, "no model m"), "no such model"),
        (fails(402, "pay"), "no credit"),
        (fails(400, "messages[0] is odd"), "refuses the request: .*odd"),
    ],
)
def test_what_the_user_must_mend_is_said_at_once(behaviour: Any, said: str) -> None:
    with serving(behaviour) as at:
        with pytest.raises(SettingsError, match=said):
            ask(endpoint(at))
        assert len(at.requests) == 1


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "the request exceeds the available context size, try increasing it",
        "Requested tokens (700) exceed context window of 512",
        "Please reduce the length of the messages",
    ],
)
def test_a_context_that_is_too_long_is_told_apart(message: str) -> None:
    refusal = fails(400, message, code="context_length_exceeded")
    with serving(refusal) as at, pytest.raises(ContextTooLong):
        ask(endpoint(at))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "tools is not supported by this model"), (500, "tools param requires --jinja flag"),
        (404, "No endpoints found that support tool use"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice to be set'),
        (400, "registry.ollama.ai/library/gemma does not support tools"),
    ],
)
def test_refused_tools_change_the_dialect(status: int, message: str) -> None:
    answer = Say("I look.\n\n```bash\nls kernels\n```\n")
    with serving(fails(status, message), answer) as at:
        made = endpoint(at)
        with pytest.raises(DialectChanged):
            ask(made)
        reply = ask(made)
        assert made.dialect == "text" and "tools" not in at.requests[-1]
    assert reply.calls == (Call("text", "bash", {"command": "ls kernels"}),)


def test_options_that_an_endpoint_does_not_know_are_left_out() -> None:
    with serving(
        fails(400, "Unrecognized request argument supplied: stream_options"),
        fails(400, "Use 'max_completion_tokens' instead of max_tokens"), call("submit"),
    ) as at:
        reply = ask(endpoint(at, reply_tokens=77))
        last = at.requests[-1]
    assert reply.retries == 0 and "stream_options" not in last
    assert last["max_completion_tokens"] == 77 and "max_tokens" not in last
    assert reply.usage.estimated and reply.usage.prompt > 0


@both
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"command": "ls"', "not valid JSON"), ("ls", "not valid JSON: .* at character 0"),
        ("[" * 100_000, "not valid JSON"), ('{"command": "a\nb"}', ""),
    ],
)
def test_arguments_that_are_no_json_are_told_to_the_model(
    arguments: str, problem: str, stream: bool
) -> None:
    with serving(Say(calls=[("bash", arguments)])) as at:
        made = ask(endpoint(at, stream=stream)).calls[0]
    if problem:
        assert re.search(problem, made.problem)
    else:
        assert made.arguments == {"command": "a\nb"} and not made.problem


@both
def test_calls_without_names_or_ids_of_their_own_are_kept_apart(stream: bool) -> None:
    calls = [("bash", {}), ("", {}), ("bash", {})]
    with serving(Say(calls=calls, ids=["same", "same", ""])) as at:
        made = ask(endpoint(at, stream=stream)).calls
    assert len({c.id for c in made}) == 3 and [c.name for c in made] == ["bash", "", "bash"]


def test_refusals_and_lone_surrogates_pass() -> None:
    with serving(Say("", refusal="I cannot help"), Say("odd \ud83d text")) as at:
        made = endpoint(at)
        assert ask(made).refusal == "I cannot help"
        assert ask(made).text.encode()


@both
def test_the_key_is_struck_out_of_all_that_comes_back(stream: bool) -> None:
    with serving(server.echoes_the_key, fails(500, f"key {KEY}"), fails(401, KEY)) as at:
        made = endpoint(at, stream=stream)
        reply, told = ask(made), []
        assert KEY not in json.dumps(reply.to_json()) and "[key]" in reply.text
        with pytest.raises(SettingsError) as caught:
            ask(made, told.append)
    assert KEY not in str(caught.value) and KEY not in "".join(told) and KEY not in repr(made)


def test_a_wrong_address_is_a_sentence() -> None:
    for url in ("http://[half", "ftp://x/v1", "localhost:8000", "http://", "http://x:99999999"):
        with pytest.raises(SettingsError, match="no address"):
            Endpoint("m", KEY, url)
    made = Endpoint("m", KEY, "http://127.0.0.1:9/v1", sleep=lambda s: None, patience_s=5.0)
    with pytest.raises(ChatFailed):
        ask(made)


# --- text protocol ------------------------------------------------------------------------------

TEXTS = {
    "bash": ("```bash\nls -l\ncd x\n```", "bash", {"command": "ls -l\ncd x"}),
    "sh": ("```sh\nls\n```", "bash", {"command": "ls"}),
    "write": (
        "First:\n```write kernels/a.cu\nint x;\n\n```\nand more", "write",
        {"path": "kernels/a.cu", "text": "int x;\n\n"},
    ),
    "json": ('```todo\n{"items": []}\n```', "todo", {"items": []}),
    "empty": ("```submit\n```", "submit", {}),
    "tildes": ("~~~~bash\n```\n~~~~", "bash", {"command": "```"}),
    "longer_fence": ("````write a.md\n```\ncode\n```\n````", "write",
                     {"path": "a.md", "text": "```\ncode\n```\n"}),
    "named": ('```json\n{"name": "bash", "arguments": {"command": "ls"}}\n```', "bash",
              {"command": "ls"}),
    "bash_object": ('```bash\n{"command": "ls", "timeout_s": 3}\n```', "bash",
                    {"command": "ls", "timeout_s": 3}),
    "other_fences_first": ("```python\nx = 1\n```\n```bash\nls\n```", "bash", {"command": "ls"}),
    "first_of_two": ("```bash\none\n```\n```bash\ntwo\n```", "bash", {"command": "one"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_fenced_action_is_found(name: str) -> None:
    text, tool, arguments = TEXTS[name]
    with serving(Say(text)) as at:
        made = ask(endpoint(at, dialect="text")).calls
    assert [(c.name, c.arguments, c.problem) for c in made] == [(tool, arguments, "")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("```write a.cu\nint", "does not end"), ("```todo\n{oh\n```", "not valid JSON")],
)
def test_a_broken_action_is_told_to_the_model(text: str, problem: str) -> None:
    with serving(Say(text)) as at:
        assert problem in ask(endpoint(at, dialect="text")).calls[0].problem


def test_no_action_is_no_call() -> None:
    with serving(Say("I think that ```inline``` is fine.\n```python\nx\n```")) as at:
        assert ask(endpoint(at, dialect="text")).calls == ()


# --- prices -------------------------------------------------------------------------------------


def test_a_price_table(tmp_path: Any) -> None:
    path = tmp_path / "prices.toml"
    path.write_text('["a/b"]\ninput = 2.0\noutput = 10\ncached = 0.5\n[c]\ninput = 1\noutput = 1\n')
    assert price_of("a/b", path).of(Usage(1_000_000, 100_000, 400_000)) == pytest.approx(2.4)
    assert price_of("c", path).of(Usage(1_000_000, 0, 400_000)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\ninput = 1\noutput = 2\n", "no price for 'm'"), ("= nonsense", "not TOML"),
        ("[m]\ninput = 1\n", "needs the numbers"), ('[m]\ninput = "x"\noutput = 1', "numbers"),
        ("[m]\ninput = -1\noutput = 1", "none"), ("[m]\ninput = nan\noutput = 1", "none"),
        (None, "cannot be read"),
    ],
)
def test_a_price_table_that_is_none(tmp_path: Any, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "prices.toml").write_text(text)
    with pytest.raises(SettingsError, match=said):
        price_of("m", tmp_path / "prices.toml")
