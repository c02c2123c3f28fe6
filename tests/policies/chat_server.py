"""An OpenAI-compatible chat endpoint on a real socket: says what it is told to, or misbehaves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-9f8e7d6c5b4a"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.headers.append({k.lower(): v for k, v in self.headers.items()})
        with self.server.lock:
            behaviours = self.server.behaviours
            behave = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        try:
            behave(self, body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def whole(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.wfile.write(f"data: {text}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: Any) -> None:
        pass


Behaviour = Callable[[Handler, dict[str, Any]], None]


class ChatServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviours: Sequence[Behaviour]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviours = list(behaviours)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def serving(*behaviours: Behaviour) -> Iterator[ChatServer]:
    """Each request gets the next behaviour; the last one goes on for ever."""
    server = ChatServer(behaviours)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


# --- behaviours ---------------------------------------------------------------------------------


@dataclass
class Say:
    """A sound answer, in pieces where a stream was asked for. `calls`: (name, arguments), where
    arguments that are a string are sent as they stand."""

    text: str | None = ""
    calls: Sequence[tuple[str, Any]] = ()
    reasoning: str = ""
    finish: str = ""
    refusal: str | None = None
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 1000, "completion_tokens": 50}
    )
    ids: Sequence[str] | None = None

    def _calls(self) -> list[dict[str, Any]]:
        return [
            {
                "index": i, "id": self.ids[i] if self.ids is not None else f"id{i}",
                "type": "function",
                "function": {
                    "name": name, "arguments": a if isinstance(a, str) else json.dumps(a)
                },
            }
            for i, (name, a) in enumerate(self.calls)
        ]

    def __call__(self, handler: Handler, body: dict[str, Any]) -> None:
        finish = self.finish or ("tool_calls" if self.calls else "stop")
        if not body.get("stream"):
            message: dict[str, Any] = {"role": "assistant", "content": self.text}
            if self.calls:
                message["tool_calls"] = self._calls()
            if self.reasoning:
                message["reasoning_content"] = self.reasoning
            if self.refusal:
                message["refusal"] = self.refusal
            answer = {
                "id": "x", "object": "chat.completion", "created": 1, "model": "m",
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": self.usage,
            }
            handler.whole(200, json.dumps(answer).encode())
            return
        handler.begin_stream()
        for delta in self._deltas():
            handler.event(chunk(delta))
        handler.event(chunk({}, finish))
        if self.usage is not None and "stream_options" in body:
            handler.event({**chunk({}), "choices": [], "usage": self.usage})
        handler.event("[DONE]")

    def _deltas(self) -> Iterator[dict[str, Any]]:
        yield {"role": "assistant", "content": ""}
        if self.reasoning:
            yield {"reasoning_content": self.reasoning}
        text = self.text or ""
        for start in range(0, len(text), 7):
            yield {"content": text[start : start + 7]}
        if self.refusal:
            yield {"refusal": self.refusal}
        for call in self._calls():
            arguments = call["function"]["arguments"]
            head = {**call, "function": {**call["function"], "arguments": ""}}
            yield {"tool_calls": [head]}
            for start in range(0, len(arguments), 11):
                part = {"arguments": arguments[start : start + 11]}
                yield {"tool_calls": [{"index": call["index"], "function": part}]}


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def call(name: str, **arguments: Any) -> Say:
    return Say(calls=[(name, arguments)])


def fails(
    status: int, message: str = "it failed", headers: dict[str, str] | None = None,
    code: str | None = None,
) -> Behaviour:
    error = {"error": {"message": message, "type": "x", "code": code}}

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        handler.whole(status, json.dumps(error).encode(), headers)

    return behave


def sends(data: bytes, kind: str = "application/json") -> Behaviour:
    def behave(handler: Handler, body: dict[str, Any]) -> None:
        handler.whole(200, data, {"Content-Type": kind})

    return behave


def breaks_off(handler: Handler, body: dict[str, Any]) -> None:
    """After a piece of a call."""
    handler.begin_stream()
    handler.event(chunk({"content": "I will"}))
    function = {"name": "write", "arguments": '{"path": "a'}
    handler.event(chunk({"tool_calls": [{"index": 0, "id": "1", "function": function}]}))


def hangs_up(handler: Handler, body: dict[str, Any]) -> None:
    handler.close_connection = True
    handler.connection.close()


def half_an_answer(handler: Handler, body: dict[str, Any]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"id": "x", "choices": [')
    handler.close_connection = True


def waits(seconds: float) -> Behaviour:
    def behave(handler: Handler, body: dict[str, Any]) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return behave


def drips_for_ever(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    while True:
        handler.event(chunk({"content": "x" * 10_000}))


def nonsense_chunks(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    for event in ({}, [], 3, {"choices": [{"delta": 7}]}, {"choices": {"a": 1}}, "null"):
        handler.event(event)
    handler.event("[DONE]")


def broken_json_chunk(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.event('{"choices": [')


def error_in_stream(handler: Handler, body: dict[str, Any]) -> None:
    handler.begin_stream()
    handler.event(chunk({"content": "so far"}))
    handler.event({"error": {"message": "overloaded", "type": "server_error"}})


def echoes_the_key(handler: Handler, body: dict[str, Any]) -> None:
    """What a hostile or badly logged endpoint may send back."""
    key = handler.headers["Authorization"]
    Say(f"Your key is {key}", [("todo", {"items": [{"text": key, "state": "open"}]})], key)(
        handler, body
    )
