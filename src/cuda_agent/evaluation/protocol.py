"""The wire between judge and contestant: length-prefixed JSON over a Unix socket, never pickle.

A reply repeats the random `seq` of its request, so that nothing written to the socket beforehand
can pass for an answer. The judge's side reads no descriptors and at most REPLY_LIMIT bytes, and
accepts only the fields that REPLIES lists for the request that it made.
"""

from __future__ import annotations

import array
import json
import math
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

REPLY_LIMIT = 1 << 20  # bytes, contestant to judge
REQUEST_LIMIT = 1 << 26  # bytes, judge to contestant: tables of parameters can be long
MAX_FDS = 16
_HEADER = struct.Struct("!I")


class ProtocolError(Exception):
    """The other side sent something that is no message of this protocol."""


class ChannelClosed(Exception):
    """The other side is gone."""


class ChannelTimeout(Exception):
    """No whole message arrived before the deadline."""


class Channel:
    """One end of the socket. Not for several threads at once."""

    def __init__(self, sock: socket.socket, receive_limit: int) -> None:
        self._sock = sock
        self._limit = receive_limit

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(
        self, message: Mapping[str, Any], fds: Iterable[int] = (), deadline: float | None = None
    ) -> None:
        """Send one message, descriptors beside it. `deadline` is in time.monotonic() seconds."""
        body = json.dumps(message, separators=(",", ":")).encode()
        data = memoryview(_HEADER.pack(len(body)) + body)
        rights = array.array("i", fds)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        try:
            while data:
                self._sock.settimeout(_remaining(deadline))
                data = data[self._sock.sendmsg([data], ancillary) :]
                ancillary = []
        except TimeoutError:
            raise ChannelTimeout from None
        except (BrokenPipeError, ConnectionError):
            raise ChannelClosed from None

    def receive(
        self, deadline: float | None = None, accept_fds: bool = False
    ) -> tuple[Any, list[int]]:
        """(message, descriptors). Descriptors that were not asked for are dropped by the kernel.

        Raises ChannelTimeout, ChannelClosed, ProtocolError.
        """
        fds: list[int] = []
        header = self._read(_HEADER.size, deadline, fds if accept_fds else None)
        (length,) = _HEADER.unpack(header)
        if length > self._limit:
            raise ProtocolError(f"a message of {length} bytes; at most {self._limit} are read")
        body = self._read(length, deadline, fds if accept_fds else None)
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"a message that is not JSON: {error}") from None
        if not isinstance(message, dict):
            raise ProtocolError("a message that is no JSON object")
        return message, fds

    def _read(self, size: int, deadline: float | None, fds: list[int] | None) -> bytes:
        room = socket.CMSG_SPACE(MAX_FDS * 4) if fds is not None else 0
        data = bytearray()
        while len(data) < size:
            try:
                self._sock.settimeout(_remaining(deadline))
                part, ancillary, _, _ = self._sock.recvmsg(size - len(data), room)
            except TimeoutError:
                raise ChannelTimeout from None
            except ConnectionError:
                raise ChannelClosed from None
            if not part:
                raise ChannelClosed
            data += part
            for level, kind, raw in ancillary:
                if fds is not None and (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    rights = array.array("i")
                    rights.frombytes(raw[: len(raw) - len(raw) % 4])
                    fds.extend(rights)
        return bytes(data)

    def close(self) -> None:
        self._sock.close()


def _remaining(deadline: float | None) -> float | None:
    """A socket timeout; never 0, which would mean non-blocking."""
    return None if deadline is None else max(1e-4, deadline - time.monotonic())


# --- what a reply may hold ----------------------------------------------------------------------


def _text(limit: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and len(value) <= limit


def _texts(value: Any) -> bool:
    short = _text(400)
    return isinstance(value, list) and len(value) <= 4096 and all(map(short, value))


def _number(value: Any) -> bool:
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value) and value >= 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _tree(value: Any) -> bool:
    """Checked as a whole by layout.same_structure against what is expected."""
    return isinstance(value, dict)


def _specs(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 4096 and all(map(_spec, value))


def _spec(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) == {"shape", "dtype", "type", "device"}
        and all(_text(100)(value[key]) for key in ("dtype", "type", "device"))
        and isinstance(value["shape"], list)
        and len(value["shape"]) <= 64
        and all(type(n) is int and n >= 0 for n in value["shape"])
    )


def _activity(value: Any) -> bool:
    """Fields of records.Activity, or nothing."""
    return value == {} or (
        isinstance(value, dict)
        and set(value) == {"device_ms", "launches", "streams", "kernels"}
        and _number(value["device_ms"])
        and all(type(value[name]) is int and value[name] >= 0 for name in ("launches", "streams"))
        and isinstance(value["kernels"], dict)
        and len(value["kernels"]) <= 65
        and all(_text(200)(name) for name in value["kernels"])
        and all(type(count) is int and count > 0 for count in value["kernels"].values())
    )


Fields = Mapping[str, Callable[[Any], bool]]

_OUTPUT: Fields = {"tree": _tree, "specs": _specs, "copied": _flag}
REPLIES: Mapping[str, Fields] = {
    "confine": {},
    "build": {"error": _text(4000), "log": _text(200_000)},
    "load": {"missing": _texts, "unexpected": _texts},
    "state": {"missing": _texts, "unexpected": _texts},
    "inputs": {},
    "outputs": {},
    "drop": {},
    "unload": {},
    "run": {**_OUTPUT, "ops": _texts},
    "prepare": {},
    "call": {**_OUTPUT, "ms": _number},
    "burst": {"copied": _flag},
    "trace": {"activity": _activity},
    "fork": {"pid": lambda value: type(value) is int and value > 1, "isolated": _flag},
    "reap": {"status": lambda value: value is None or type(value) is int},
}
FAILURE: Fields = {"error": _text(200), "text": _text(20_000), "stage": _text(40)}


def check_reply(request: str, seq: int, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """`message` if it is a well-formed answer to `request`, else ProtocolError.

    A failure report has the fields of FAILURE and `failed: true` instead of the answer's own.
    """
    if message.get("seq") != seq or type(message.get("seq")) is not int:
        raise ProtocolError("an answer to a question that was not asked")
    failed = message.get("failed") is True
    fields: Fields = FAILURE if failed else REPLIES[request]
    expected = set(fields) | {"seq"} | ({"failed"} if failed else set())
    if set(message) != expected:
        raise ProtocolError(f"an answer to {request} with fields {sorted(message)[:12]}")
    for name, valid in fields.items():
        if not valid(message[name]):
            raise ProtocolError(f"an answer to {request} with a bad {name}")
    return message
