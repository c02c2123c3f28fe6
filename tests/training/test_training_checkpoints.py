"""Checkpoints survive kill -9 at any moment, damage, and a full disk."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cuda_agent.errors import OutputError
from cuda_agent.training import checkpoints
from cuda_agent.training.checkpoints import Checkpoints, Position

WRITER = """
import sys, torch
from cuda_agent.training.checkpoints import Checkpoints, Position
kept = Checkpoints(sys.argv[1])
found = kept.newest("warmup")
step = 0 if found is None else found[0].step
print("ready", flush=True)
while True:
    step += 1
    kept.save(Position("warmup", step, False), {"weights": torch.full((200_000,), float(step))})
"""


def test_newest_whole_checkpoint_after_kill_9_at_random_moments(tmp_path: Path) -> None:
    """The writer is killed many times while it writes; each time the newest one is whole, not
    older than the one before, and nothing else is left to be taken for one."""
    rng, before = random.Random(0), 0
    for _ in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None and writer.stdout.readline()
        deadline = time.monotonic() + 20
        while not (found := Checkpoints(tmp_path).newest("warmup")) or found[0].step <= before:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(rng.random() * 0.02)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        found = Checkpoints(tmp_path).newest("warmup")
        assert found is not None and found[0].step > before
        before = found[0].step
        assert torch.equal(
            found[1]["weights"], torch.full((200_000,), float(before))
        )


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(Position("agentic", 1, False), {"x": 1})
    path = kept.save(Position("agentic", 2, True), {"x": 2})
    assert kept.finished("agentic")
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    found = kept.newest("agentic")
    assert found is not None and found[0] == Position("agentic", 1, False)
    assert not kept.finished("agentic")
    path.write_bytes(b"")
    assert (found := kept.newest("agentic")) is not None and found[1] == {"x": 1}
    assert kept.newest("value") is None


def test_only_the_newest_are_kept_and_stages_do_not_mix(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path, keep=2)
    kept.save(Position("value", 1, True), {})
    for step in (1, 2, 9, 10):
        kept.save(Position("warmup", step, False), {})
    names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
    assert names == ["value-00000001.pt", "warmup-00000009.pt", "warmup-00000010.pt"]


def test_a_full_disk_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(Position("warmup", 1, False), {"x": 1})

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_file", full)
    with pytest.raises(OutputError, match=r"warmup-00000002.pt cannot be written \(No space"):
        kept.save(Position("warmup", 2, False), {"x": 2})
    found = kept.newest("warmup")
    assert found is not None and found[1] == {"x": 1}
