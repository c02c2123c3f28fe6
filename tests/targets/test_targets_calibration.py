"""The calibration file, and the measurement itself on the CPU."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from cuda_agent.errors import OutputError, TargetUnavailable
from cuda_agent.targets import calibrate as measuring
from cuda_agent.targets import calibration
from cuda_agent.targets.base import DeviceFacts
from cuda_agent.targets.cpu import CpuTarget
from cuda_agent.targets.null import NullTarget

FACTS = DeviceFacts("cuda", "NVIDIA H200 (SXM)", "sm_90a", 132, 16, 60 << 20, 141 << 30)
STORED = calibration.Calibration(
    device="NVIDIA H200", date="2026-01-01T00:00:00+00:00", copy_bytes_per_s=4.3e12,
    read_bytes_per_s=4.5e12, matrix_flops_per_s={"fp32": 5e13}, launch_s=3e-6, seconds=4.0,
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_AGENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CUDA_AGENT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "home"


def test_facts_carry_the_stored_rates(home: Path) -> None:
    assert calibration.apply(FACTS) == FACTS, "without a file nothing is claimed"
    path = calibration.save(FACTS, STORED)
    assert path == home / "calibration/cuda-nvidia-h200-sxm-sm-90a-132.json"
    assert calibration.load(FACTS) == STORED
    facts = calibration.apply(FACTS)
    assert facts.peak_bytes_per_s == 4.5e12 and facts.matrix_flops_per_s == {"fp32": 5e13}
    fewer = dataclasses.replace(FACTS, units=66)
    assert calibration.load(fewer) is None, "another share of the device has other peaks"
    assert [p.suffix for p in path.parent.iterdir()] == [".json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device": "x"}', '{"unknown": 1}'])
def test_a_broken_file_counts_as_none(text: str) -> None:
    path = calibration.save(FACTS, STORED)
    path.write_text(text)
    assert calibration.load(FACTS) is None


def test_unwritable_home_raises(home: Path) -> None:
    home.write_text("a file where the folder should be")
    with pytest.raises(OutputError, match="could not be written"):
        calibration.save(FACTS, STORED)


def test_null_has_no_peaks() -> None:
    with pytest.raises(TargetUnavailable, match="no peaks"):
        measuring.calibrate(NullTarget())


@pytest.mark.compiler
@pytest.mark.slow
def test_cpu_is_measured_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    threads = torch.get_num_threads()
    # Smaller buffers than the real ones: this tests the plumbing, not the machine.
    monkeypatch.setattr(measuring, "_buffer_bytes", lambda *a: 64 << 20)
    result, path = measuring.calibrate(CpuTarget())
    assert path.exists() and torch.get_num_threads() == threads
    assert 1e8 < result.copy_bytes_per_s < 1e13
    assert 1e8 < result.read_bytes_per_s < 1e13
    assert set(result.matrix_flops_per_s) == {"fp32", "bf16"}
    assert all(1e8 < rate < 1e15 for rate in result.matrix_flops_per_s.values())
    assert 1e-8 < result.launch_s < 1e-2
    assert CpuTarget().facts().copy_bytes_per_s == result.copy_bytes_per_s
    assert os.fspath(path).endswith(".json")


@pytest.mark.nvrtc
def test_cuda_source_compiles_without_spills(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    from cuda_agent.targets.cuda import H200, CudaTarget

    built = CudaTarget(facts=H200).compile({"calibrate.cu": measuring._CUDA_SOURCE}, tmp_path)
    assert set(built.resources) == {"copy", "read", "empty"}
    assert not any(r["spill_bytes"] for r in built.resources.values())
