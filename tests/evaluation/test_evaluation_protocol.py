"""The wire: framing, limits, descriptors, and what an answer may hold."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from cuda_agent.evaluation import protocol
from cuda_agent.evaluation.protocol import Channel, ChannelClosed, ChannelTimeout, ProtocolError

Pair = tuple[Channel, Channel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """(judge's end, contestant's end, the contestant's raw socket)."""
    ours, theirs = socket.socketpair()
    yield Channel(ours, 1000), Channel(theirs, 1 << 20), theirs
    ours.close()
    theirs.close()


def soon(seconds: float = 1.0) -> float:
    return time.monotonic() + seconds


def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    judge, contestant, _ = pair
    for i in range(3):
        judge.send({"n": i, "text": "ä\n"}, deadline=soon())
    assert [contestant.receive(soon())[0]["n"] for _ in range(3)] == [0, 1, 2]


def test_a_large_message_is_sent_in_parts(pair: Pair) -> None:
    judge, contestant, _ = pair
    text = "x" * 900_000  # more than a socket buffers
    reader: list[int] = []
    thread = threading.Thread(
        target=lambda: reader.append(len(contestant.receive(soon(5))[0]["text"]))
    )
    thread.start()
    judge.send({"text": text}, deadline=soon(5))
    thread.join()
    assert reader == [len(text)]


def test_descriptors_travel_only_towards_the_contestant(pair: Pair) -> None:
    judge, contestant, raw = pair
    read, write = os.pipe()
    judge.send({"op": "inputs"}, [write], soon())
    _, fds = contestant.receive(soon(), accept_fds=True)
    os.write(fds[0], b"here")
    assert os.read(read, 4) == b"here"
    body = b'{"seq":1}'
    socket.send_fds(raw, [struct.pack("!I", len(body)) + body], [read])
    message, none = judge.receive(soon())
    assert message == {"seq": 1} and none == []
    for fd in (read, write, *fds):
        os.close(fd)


def test_silence_ends_at_the_deadline(pair: Pair) -> None:
    start = time.monotonic()
    with pytest.raises(ChannelTimeout):
        pair[0].receive(soon(0.1))
    assert 0.05 < time.monotonic() - start < 1.0


def test_half_a_message_ends_at_the_deadline(pair: Pair) -> None:
    pair[2].sendall(struct.pack("!I", 100) + b"{")
    with pytest.raises(ChannelTimeout):
        pair[0].receive(soon(0.1))


def test_a_reader_that_does_not_read_ends_at_the_deadline(pair: Pair) -> None:
    with pytest.raises(ChannelTimeout):
        for _ in range(100):
            pair[0].send({"text": "x" * 100_000}, deadline=soon(0.2))


def test_hanging_up_is_noticed(pair: Pair) -> None:
    pair[2].close()
    with pytest.raises(ChannelClosed):
        pair[0].receive(soon())
    with pytest.raises(ChannelClosed):
        pair[0].send({"op": "run"}, deadline=soon())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"x" * 2000, "2000 bytes"),
        (b"\x80\x04K\x01.", "not JSON"),  # a pickle
        (b"[1, 2]", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b"[" * 900, "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_what_is_no_message_is_refused(pair: Pair, body: bytes, says: str) -> None:
    pair[2].sendall(struct.pack("!I", len(body)) + body)
    with pytest.raises(ProtocolError, match=says):
        pair[0].receive(soon())


def test_a_huge_length_is_refused_before_it_is_read(pair: Pair) -> None:
    pair[2].sendall(struct.pack("!I", 0xFFFFFFFF))
    with pytest.raises(ProtocolError, match="4294967295 bytes"):
        pair[0].receive(soon())


# --- answers ------------------------------------------------------------------------------------

SPEC = {"shape": [2, 3], "dtype": "float32", "type": "Tensor", "device": "cpu"}
CALL = {"seq": 5, "tree": {"tensor": 0}, "specs": [SPEC], "copied": True, "ms": 1.5}


def test_a_good_answer_passes() -> None:
    assert protocol.check_reply("call", 5, CALL) == CALL
    failed = {"seq": 5, "failed": True, "error": "E", "text": "t", "stage": "run"}
    assert protocol.check_reply("call", 5, failed) == failed


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 6}, {"seq": "5"}, {"seq": True}, {"seq": None},
        {"ms": float("nan")}, {"ms": float("inf")}, {"ms": -1.0}, {"ms": "1"}, {"ms": True},
        {"ms": None}, {"copied": 1}, {"tree": []}, {"specs": {}}, {"specs": [1]},
        {"specs": [{**SPEC, "shape": [-1]}]}, {"specs": [{**SPEC, "shape": [1.0]}]},
        {"specs": [{**SPEC, "shape": [True]}]}, {"specs": [{**SPEC, "dtype": "x" * 200}]},
        {"specs": [{**SPEC, "extra": 1}]}, {"specs": [SPEC] * 5000},
        {"status": "ok"}, {"speedup": 100.0}, {"failed": True},
    ],
    ids=lambda change: json.dumps(change)[:40],
)
def test_an_answer_with_anything_else_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        protocol.check_reply("call", 5, {**CALL, **change})


@pytest.mark.parametrize("field", ["seq", "tree", "specs", "copied", "ms"])
def test_an_answer_that_lacks_a_field_is_refused(field: str) -> None:
    with pytest.raises(ProtocolError):
        protocol.check_reply("call", 5, {k: v for k, v in CALL.items() if k != field})


def test_an_answer_to_another_question_is_refused() -> None:
    with pytest.raises(ProtocolError, match="run"):
        protocol.check_reply("run", 5, CALL)


def test_a_failure_has_limits_too() -> None:
    failed = {"seq": 5, "failed": True, "error": "E", "text": "t" * 30_000, "stage": "run"}
    with pytest.raises(ProtocolError, match="text"):
        protocol.check_reply("run", 5, failed)
