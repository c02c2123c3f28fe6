"""The CPU target: compile, facts, and an arena that two processes share."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_agent import targets
from cuda_agent.errors import CompileFailure, TargetUnavailable
from cuda_agent.targets.cpu import CpuTarget, machine
from cuda_agent.targets.cpu.arena import MemoryArena

CHILD = """
import json, os, socket, sys, torch
from cuda_agent.targets.cpu import CpuTarget
link = socket.socket(fileno=int(sys.argv[1]))
message, fds, _, _ = socket.recv_fds(link, 4096, 1)
arena = CpuTarget().open_arena(json.loads(message), fds[0])
x = arena.tensor(64, (2, 3), (1, 2), torch.bfloat16)
assert x.tolist() == [[0, 1, 2], [3, 4, 5]], x
x.mul_(2)
for size in (0, 1 << 20):
    try:
        os.ftruncate(fds[0], size)
    except PermissionError:
        continue
    sys.exit("the file was resized")
link.send(b"done")
"""


@pytest.fixture
def target() -> CpuTarget:
    return CpuTarget()


def test_arena_round_trip_into_a_child(target: CpuTarget) -> None:
    arena = target.arena(100)
    x = arena.tensor(64, (2, 3), (1, 2), torch.bfloat16)
    x.copy_(torch.arange(6.0).view(2, 3))
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    ) as child:
        assert arena.fd is not None
        socket.send_fds(ours, [json.dumps(arena.handle()).encode()], [arena.fd])
        theirs.close()
        assert ours.recv(16) == b"done"
    assert child.returncode == 0
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]
    arena.close()
    arena.close()  # twice is no error
    with pytest.raises(ValueError, match="closed"):
        arena.tensor(0, (1,), (1,), torch.uint8)


def test_views_stay_inside_the_arena() -> None:
    arena = MemoryArena(64)
    assert arena.tensor(32, (8,), (1,), torch.float32).shape == (8,)
    assert arena.tensor(0, (5, 16), (0, 1), torch.float32).stride() == (0, 1)
    assert arena.tensor(64, (0, 4), (4, 1), torch.float32).numel() == 0
    assert arena.tensor(3, (), (), torch.bool).shape == ()
    for offset, shape, stride, dtype in (
        (33, (1,), (1,), torch.float32),  # not aligned
        (64, (1,), (1,), torch.uint8),
        (0, (9,), (2,), torch.float32),
        (-4, (1,), (1,), torch.float32),
        (32, (4,), (-1,), torch.float32),
    ):
        with pytest.raises(ValueError, match=r"do not suit|outside"):
            arena.tensor(offset, shape, stride, dtype)


def test_descriptors_are_given_back(target: CpuTarget) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        arena = target.arena(1 << 16)
        arena.tensor(0, (4,), (1,), torch.float32).zero_()
        arena.close()
        del arena
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.compiler
def test_compile_is_cached_and_reports_the_log(target: CpuTarget, tmp_path: Path) -> None:
    sources = {"k.cpp": '#include "k.h"\nextern "C" void f(float* x) { x[0] = VALUE; }'}
    sources["k.h"] = "#define VALUE 3"
    first, second = target.compile(sources, tmp_path), target.compile(sources, tmp_path)
    assert not first.cached and second.cached and set(first.binaries) == {"k.cpp"}
    assert Path(first.binaries["k.cpp"]).is_relative_to(tmp_path)
    with pytest.raises(CompileFailure, match="error") as caught:
        target.compile({"bad.cpp": "int f() { return y; }"}, tmp_path)
    assert "bad.cpp" in caught.value.log
    with pytest.raises(CompileFailure, match=r"a\.cu: this target builds \.cpp, \.cc files only"):
        target.compile({"a.cu": ""}, tmp_path)


def test_no_compiler_is_said_in_one_sentence(
    target: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cuda_agent import runtime

    def missing(kind: str) -> str:
        raise runtime.ToolMissing("no C++ compiler found")

    monkeypatch.setattr(runtime, "compiler", missing)
    assert "install g++" in str(target.unavailable())
    assert target.environment()["compiler"] == "none"
    monkeypatch.setattr(runtime, "toolchain", missing)
    with pytest.raises(TargetUnavailable):
        target.compile({"k.cpp": ""}, tmp_path)


def test_facts_describe_this_machine(target: CpuTarget) -> None:
    facts = target.facts()
    assert 1 <= facts.units <= (os.cpu_count() or 1)
    assert facts.vector_bytes in (16, 32, 64)
    assert 1 << 18 <= facts.cache_bytes <= 1 << 31
    assert 0 < target.free_memory_bytes() <= facts.memory_bytes


def test_one_core_by_affinity_or_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert machine.physical_cores() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    texts = {"cpu.max": "250000 100000", "core_id": ""}
    monkeypatch.setattr(machine, "read", lambda path: texts.get(path.name, ""))
    assert machine.physical_cores() == 2
    texts["cpu.max"] = "max 100000"
    assert machine.physical_cores() == 4


def test_flush_touches_twice_the_cache(target: CpuTarget) -> None:
    target.flush_cache()
    assert target._flush is not None
    assert target._flush.nbytes >= 2 * target.facts().cache_bytes - 4
    before = target._flush[0].item()
    target.flush_cache()
    assert target._flush[0].item() == before + 1, "it must write, not only read"


def test_resolve_gives_this_target(monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets.get("cpu") is targets.get("cpu")
