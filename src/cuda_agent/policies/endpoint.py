"""Any OpenAI-compatible chat endpoint, and whatever it does: asked until it answers sensibly.

Rate limits, time-outs, errors of the server, streams that break off and answers that are none are
tried again, with growing waits, for as long as `patience_s`. What an endpoint does not know (tool
calls, options of the stream) is left out from then on. The key is nowhere but in the client: it
is struck out of every text that the endpoint sends.
"""

from __future__ import annotations

import random
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuda_agent.errors import SettingsError
from cuda_agent.policies.chat import (
    Call,
    ChatFailed,
    ContextTooLong,
    Dialect,
    DialectChanged,
    Message,
    Reply,
    Tell,
    Usage,
)
from cuda_agent.policies.textprotocol import find_call, parsed

MAX_CHARACTERS = 2_000_000
"""Of one reply; a stream without end is cut off there."""

_LONGEST_WAIT_S = 60.0
_CONTEXT = re.compile(
    r"context[ _-]?(length|window|size)|too (long|many tokens)|maximum[^.]{0,40}tokens|"
    r"exceeds?[^.]{0,40}(context|tokens)|prompt is too|reduce the length", re.I,
)  # fmt: skip
_TOOLS = re.compile(r"\btools?\b|tool[_ ]|function[ _]call", re.I)
_FATAL = {
    401: "the key was refused", 402: "the account has no credit", 403: "access was refused",
    404: "no such model or address",
}  # fmt: skip


class _Unusable(Exception):
    """An answer that is none, or broke off."""


@dataclass
class Endpoint:
    """`name` is the model's. `base_url` None: the client's default. `reply_tokens` bounds a reply
    (None: the endpoint's own bound). `auto`: fall back to text where tool calls are refused."""

    name: str
    key: str = field(repr=False)
    base_url: str | None = None
    stream: bool = True
    dialect: Dialect = "tools"
    auto: bool = True
    reply_tokens: int | None = None
    timeout_s: float = 600.0
    patience_s: float = 900.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        try:
            import openai
        except ImportError:
            raise SettingsError(
                "the endpoint policy needs the openai client: pip install 'cuda-agent[agent]'."
            ) from None
        if self.base_url is not None:
            _check_address(self.base_url)
        self._client = openai.OpenAI(
            api_key=self.key, base_url=self.base_url, timeout=self.timeout_s, max_retries=0
        )
        self._options: dict[str, Any] = {"stream_options": {"include_usage": True}}
        self._limit_name = "max_tokens"

    def reply(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], tell: Tell
    ) -> Reply:
        """See ChatModel."""
        start, retries = time.monotonic(), 0
        while True:
            try:
                reply = self._ask(messages, tools, tell)
                return replace(reply, retries=retries)
            except KeyboardInterrupt:
                raise
            except Exception as error:
                if self._adapted(error):
                    continue
                wait = self._wait(error, retries)
                retries += 1
                if time.monotonic() - start + wait > self.patience_s:
                    raise ChatFailed(
                        f"{self.name} gave no answer in {retries} attempts, the last: "
                        f"{self._clean(error)}"
                    ) from None
                tell(f"\n[{self._clean(error)[:200]}; again in {wait:.0f} s]\n")
                self.sleep(wait)

    def _adapted(self, error: Exception) -> bool:
        """Whether the same request can be made at once in another form. Raises for what waiting
        does not mend."""
        status, text = getattr(error, "status_code", None), self._clean(error)
        if status in (400, 413, 422) and _CONTEXT.search(text):
            raise ContextTooLong(text) from None
        if status in (400, 404, 422, 500, 501) and self._options and "stream_options" in text:
            self._options = {}
            return True
        if status == 400 and "max_completion_tokens" in text and self._limit_name == "max_tokens":
            self._limit_name = "max_completion_tokens"
            return True
        if status in (400, 404, 422, 500, 501) and self.auto and self.dialect == "tools" and (
            _TOOLS.search(text)
        ):
            self.dialect = "text"
            raise DialectChanged(text) from None
        if status in _FATAL:
            raise SettingsError(f"{self.name}: {_FATAL[status]} ({text[:300]}).") from None
        if status in (400, 405, 413, 415, 422):
            raise SettingsError(f"{self.name} refuses the request: {text[:300]}.") from None
        return False

    def _wait(self, error: Exception, retries: int) -> float:
        """Seconds: what the endpoint asks for, else twice as long each time, with some chance."""
        headers = getattr(getattr(error, "response", None), "headers", {}) or {}
        try:
            asked = float(headers.get("retry-after", ""))
        except ValueError:
            asked = -1.0
        if 0 <= asked < 3600:
            return asked
        return min(_LONGEST_WAIT_S, 2.0**retries) * random.uniform(0.75, 1.25)

    # --- one attempt ----------------------------------------------------------------------------

    def _ask(
        self, messages: Sequence[Message], tools: Sequence[dict[str, Any]], tell: Tell
    ) -> Reply:
        request: dict[str, Any] = {"model": self.name, "messages": [_sound(m) for m in messages]}
        if self.dialect == "tools" and tools:
            request["tools"] = list(tools)
        if self.reply_tokens is not None:
            request[self._limit_name] = self.reply_tokens
        if self.stream:
            answer = self._client.chat.completions.create(
                **request, stream=True, **self._options
            )
            try:
                made = _collect(self._read(answer), self._clean, _Held(tell, self._clean, self.key))
            finally:
                answer.close()
        else:
            made = _whole(self._client.chat.completions.create(**request), self._clean, tell)
        if not (made.text.strip() or made.calls or made.refusal or made.reasoning.strip()):
            raise _Unusable("the answer is empty")
        names = [tool["function"]["name"] for tool in tools]
        if not made.calls and (found := find_call(made.text, names)[0]):
            made = replace(made, calls=(found,))
        if made.usage == Usage():
            sent = sum(len(str(m.get("content") or "")) + len(str(m.get("tool_calls") or ""))
                       for m in messages)  # fmt: skip
            said = len(made.text) + len(made.reasoning) + sum(len(str(c)) for c in made.calls)
            made = replace(made, usage=Usage(sent // 4 + 1, said // 4 + 1, estimated=True))
        return made

    def _read(self, chunks: Any) -> Iterator[Any]:
        deadline = time.monotonic() + 3 * self.timeout_s
        for chunk in chunks:
            if time.monotonic() > deadline:
                raise _Unusable("the answer takes too long")
            yield chunk

    def _clean(self, said: object) -> str:
        """Text that can be written to UTF-8, without the key."""
        text = str(said).encode("utf-8", "replace").decode()
        return text.replace(self.key, "[key]") if len(self.key) > 3 else text


Clean = Callable[[object], str]


def _sound(message: Message) -> Message:
    """Without what UTF-8 cannot hold: a model may have written half a character."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": content.encode("utf-8", "replace").decode()}


def _check_address(url: str) -> None:
    try:
        parts = urllib.parse.urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise SettingsError(f"{url!r} is no address; give one such as http://localhost:8000/v1.")


class _Held:
    """Passes text on as it comes, a key's length late: a key may come in pieces."""

    def __init__(self, tell: Tell, clean: Clean, key: str) -> None:
        self._tell, self._clean, self._size, self._text = tell, clean, len(key), ""

    def __call__(self, text: str) -> None:
        self._text = self._clean(self._text + text)
        if len(self._text) > self._size:
            self._tell(self._text[: -self._size])
            self._text = self._text[-self._size :]

    def flush(self) -> None:
        self._tell(self._text)
        self._text = ""


def _collect(chunks: Iterator[Any], clean: Clean, tell: _Held) -> Reply:
    """A stream put together. Raises _Unusable where it broke off, is endless or no stream."""
    text, reasoning, refusal, finish = [], [], [], ""
    calls: dict[int, dict[str, str]] = {}
    usage, size = Usage(), 0
    for chunk in chunks:
        usage = _usage(getattr(chunk, "usage", None)) or usage
        choices = getattr(chunk, "choices", None) or []
        if not choices:
            continue
        delta = choices[0].delta
        finish = _string(choices[0].finish_reason) or finish
        if delta is None:
            continue
        said, thought = _string(delta.content), _reasoning(delta)
        text.append(said)
        reasoning.append(thought)
        refusal.append(_string(getattr(delta, "refusal", None)))
        tell(said or thought)
        for part in getattr(delta, "tool_calls", None) or []:
            index = part.index if isinstance(part.index, int) else len(calls)
            own = calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
            function = part.function
            own["id"] = own["id"] or _string(part.id)
            own["name"] += _string(getattr(function, "name", None))
            own["arguments"] += _string(getattr(function, "arguments", None))
            size += len(_string(getattr(function, "arguments", None)))
        size += len(said) + len(thought)
        if size > MAX_CHARACTERS:
            raise _Unusable(f"the answer is longer than {MAX_CHARACTERS} characters")
    tell.flush()
    if not finish:
        raise _Unusable("the stream broke off")
    made = [(c["id"], c["name"], c["arguments"]) for _, c in sorted(calls.items())]
    return Reply(
        clean("".join(text)), clean("".join(reasoning)), _calls(made, clean), finish,
        clean("".join(refusal)), usage,
    )


def _whole(answer: Any, clean: Clean, tell: Tell) -> Reply:
    """An answer in one piece. Raises _Unusable where it is none."""
    choices = getattr(answer, "choices", None)
    if not choices or getattr(choices[0], "message", None) is None:
        raise _Unusable(f"the answer is no chat completion: {clean(answer)[:120]}")
    message = choices[0].message
    text = clean(_string(message.content))
    if len(text) > MAX_CHARACTERS:
        raise _Unusable(f"the answer is longer than {MAX_CHARACTERS} characters")
    tell(text)
    made = [
        (_string(c.id), _string(c.function.name), _string(c.function.arguments))
        for c in getattr(message, "tool_calls", None) or []
    ]
    return Reply(
        text, clean(_reasoning(message)), _calls(made, clean), _string(choices[0].finish_reason),
        clean(_string(getattr(message, "refusal", None))), _usage(getattr(answer, "usage", None))
        or Usage(),
    )


def _calls(made: Sequence[tuple[str, str, str]], clean: Clean) -> tuple[Call, ...]:
    """With ids of our own where the endpoint gave none or the same twice."""
    calls, seen = [], set()
    for number, (identifier, name, arguments) in enumerate(made):
        if not identifier or identifier in seen:
            identifier = f"call_{number}"
        seen.add(identifier)
        calls.append(parsed(clean(identifier), clean(name), clean(arguments)))
    return tuple(calls)


def _usage(found: Any) -> Usage | None:
    if found is None:
        return None
    prompt, completion = _count(found, "prompt_tokens"), _count(found, "completion_tokens")
    details = getattr(found, "prompt_tokens_details", None)
    more = getattr(found, "completion_tokens_details", None)
    cached = min(prompt, _count(details, "cached_tokens"))
    return Usage(prompt, completion, cached, _count(more, "reasoning_tokens"))


def _count(holder: Any, name: str) -> int:
    value = getattr(holder, name, None)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _reasoning(holder: Any) -> str:
    for name in ("reasoning_content", "reasoning"):
        if found := _string(getattr(holder, name, None)):
            return found
    return ""


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
