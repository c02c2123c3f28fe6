"""Choosing a target, the null target, and what both sides of the protocol promise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent import targets
from cuda_agent.errors import CompileFailure, TargetUnavailable
from cuda_agent.targets.base import DeviceFacts
from cuda_agent.targets.building import ptxas_resources


def members(protocol: type) -> set[str]:
    return {n for n in (*vars(protocol), *protocol.__annotations__) if not n.startswith("_")}


@pytest.mark.parametrize("name", targets.NAMES)
def test_every_target_has_every_member(name: str) -> None:
    target = targets.get(name)
    missing = [m for m in members(targets.Target) if not hasattr(target, m)]
    assert not missing
    assert target.name == name
    reason = target.unavailable()
    assert reason is None or (reason and "\n" not in reason)


def test_unknown_and_broken_names() -> None:
    with pytest.raises(TargetUnavailable, match="no target 'tpu'; there are auto, cuda, cpu, null"):
        targets.get("tpu")
    with pytest.raises(TargetUnavailable, match="cannot be imported"):
        targets.get("no_such_module:Target")
    assert targets.get("cuda_agent.targets.null:NullTarget").name == "null"


def test_auto_never_picks_null_and_explicit_is_never_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, cpu = targets.get("cuda"), targets.get("cpu")
    monkeypatch.setattr(gpu, "unavailable", lambda: "no driver", raising=True)
    monkeypatch.setattr(cpu, "unavailable", lambda: None)
    assert targets.resolve("auto") is cpu
    with pytest.raises(TargetUnavailable, match="target cuda is not available: no driver"):
        targets.resolve("cuda")
    monkeypatch.setattr(cpu, "unavailable", lambda: "no compiler")
    with pytest.raises(TargetUnavailable, match=r"cuda .* no driver; target cpu .* no compiler"):
        targets.resolve("auto")
    monkeypatch.setattr(gpu, "unavailable", lambda: None)
    assert targets.resolve() is gpu


def test_null_target_says_that_it_is_simulated(tmp_path: Path) -> None:
    null = targets.resolve("null")
    assert null.environment()["simulated"] == "true" and "simulated" in null.timer_note
    built = null.compile({"a.cu": "anything"}, tmp_path)
    assert built.binaries == {} and not list(tmp_path.iterdir())
    with pytest.raises(CompileFailure):
        null.compile({"a.cu": "#error no"}, tmp_path)
    arena = null.arena(64)
    arena.tensor(0, (4,), (1,), torch.float32).fill_(2)
    assert arena.tensor(4, (2,), (1,), torch.float32).tolist() == [2, 2]


def test_peak_bandwidth_is_the_faster_way() -> None:
    facts = DeviceFacts("cpu", "x", "y", 1, 16, 1, 1)
    assert facts.peak_bytes_per_s is None
    assert DeviceFacts(**{**vars(facts), "copy_bytes_per_s": 2.0}).peak_bytes_per_s == 2.0
    both = DeviceFacts(**{**vars(facts), "copy_bytes_per_s": 2.0, "read_bytes_per_s": 3.0})
    assert both.peak_bytes_per_s == 3.0


def test_ptxas_log_is_read_kernel_by_kernel() -> None:
    log = """
ptxas info    : Compiling entry function 'g' for 'sm_90a'
ptxas info    : Function properties for g
ptxas         .     256 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 256 bytes cumulative stack size, 400 bytes smem
ptxas info    : Function properties for helper
ptxas         .     9 bytes stack frame, 9 bytes spill stores, 9 bytes spill loads
ptxas info    : Compiling entry function 'f' for 'sm_90a'
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers
"""
    assert ptxas_resources(log) == {
        "g": {"stack_bytes": 256, "spill_bytes": 8, "registers": 32, "shared_bytes": 400},
        "f": {"stack_bytes": 0, "spill_bytes": 0, "registers": 12, "shared_bytes": 0},
    }
