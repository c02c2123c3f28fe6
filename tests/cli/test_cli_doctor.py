"""`cuda-agent doctor`: state of each target, with reasons, as table and as JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from cuda_agent import targets
from cuda_agent.cli import doctor
from cuda_agent.targets import calibration


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_AGENT_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(targets.get("cuda"), "unavailable", lambda: "no NVIDIA driver")
    monkeypatch.setattr(targets.get("cpu"), "unavailable", lambda: None)


def call(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers())
    args = parser.parse_args(["doctor", *argv])
    return args.run(args)


def test_table_says_why_not_and_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    out = capsys.readouterr().out
    assert "no NVIDIA driver" in out and "available" in out
    assert "peaks not measured yet" in out and "doctor --calibrate" in out
    for name in ("namespaces", "Landlock", "seccomp", "C++ compiler", "NVRTC"):
        assert name in out


def test_json_is_one_document_with_the_stored_peaks(capsys: pytest.CaptureFixture[str]) -> None:
    facts = targets.get("cpu").facts()
    stored = calibration.Calibration("x", "2026-01-01", 1e10, 2e10, {"fp32": 1e11}, 1e-6, 1.0)
    calibration.save(facts, stored)
    assert call("--json") == 0
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    assert report["targets"]["cuda"] == {
        "available": False, "reason": "no NVIDIA driver", "environment": {}, "facts": None,
        "calibration": None,
    }
    cpu = report["targets"]["cpu"]
    assert cpu["calibration"]["read_bytes_per_s"] == 2e10
    assert cpu["facts"]["copy_bytes_per_s"] == 1e10
    assert call() == 0
    assert "20.0 GB/s" in capsys.readouterr().out


def test_status_one_where_nothing_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets.get("cpu"), "unavailable", lambda: "no compiler")
    assert call() == 1
    assert "no compiler" in capsys.readouterr().out


def test_calibrate_measures_each_available_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = []
    monkeypatch.setattr(doctor, "calibrate", lambda target: measured.append(target.name))
    assert call("--calibrate", "--json") == 0
    assert measured == ["cpu"]
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "measuring cpu" in captured.err
