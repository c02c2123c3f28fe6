"""How a verdict reads in a terminal."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from agents_fakes import verdict
from rich.console import Console

from cuda_agent.cli.verdict import show_verdict
from cuda_agent.evaluation.guard.meanings import MEANINGS
from cuda_agent.records import Activity, Finding, KernelUse, Roofline, Sanitizer, Verdict


def shown(what: Verdict, width: int = 100) -> str:
    out = io.StringIO()
    show_verdict(what, Console(file=out, width=width))
    return out.getvalue()


FULL = dataclasses.replace(
    verdict(0.5),
    findings=(Finding("weights-in-init", "[bold]said"),),
    activity=Activity(0.42, 2, 1, {"fused": 1, "copy": 1}),
    kernels=(KernelUse("fused", 64, 1024, 0, 12, 256, False, 0.5, "registers"),),
    roofline=Roofline(4_000_000, 0, 2e12, 0.0, 4e12, None, "memory", 0.25, 0.5),
    energy_mj=3.5, external_ops=("aten.mm",),
)


def test_every_part_is_there() -> None:
    out = shown(FULL)
    for text in (
        ": ok  (", "weights-in-init (a remark: weights are prepared", "[bold]said",
        "relative error", "2000 GB/s of 4000; bound by memory", "2 launches on 1 streams",
        "0.420 ms of work: fused ×1", "3.50 mJ", "aten.mm", "this solution", "PyTorch eager",
        "│ fused", "64", "1024", "12", "50%", "256 (assumed)", "registers",
    ):
        assert text in out, text


def test_what_is_missing_leaves_no_line() -> None:
    bare = shown(dataclasses.replace(verdict(0, "timeout"), feedback="no answer", error=None))
    assert bare.splitlines()[0].split()[1] == "timeout" and "no answer" in bare
    for text in ("error ", "roofline", "device", "Kernels", "Times", "None"):
        assert text not in bare.replace("timeout", "")


def test_a_caret_stays_under_its_place() -> None:
    said = "fused.cu:3:9: error: no\n    float x = missing;\n              ^"
    lines = shown(dataclasses.replace(verdict(0, "compile_error"), feedback=said)).splitlines()
    i = next(i for i, line in enumerate(lines) if "missing" in line)
    assert lines[i].index("missing") == lines[i + 1].index("^")


def test_every_rule_has_a_meaning() -> None:
    text = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text()
    listed = re.findall(r"^\| ([A-F]\d+) \|", text, re.M)
    assert len(listed) >= 83 and set(listed) <= set(MEANINGS)
    assert all(MEANINGS.values())


@pytest.mark.parametrize("width", [40, 200])
def test_any_width(width: int) -> None:
    assert "fused" in shown(FULL, width)


def test_sanitizers() -> None:
    found = Sanitizer("asan", "", (Finding("address", "read of 4 bytes in fused"),))
    for run, says in (
        (found, "address: read of 4 bytes in fused"), (Sanitizer("asan"), "asan found nothing"),
        (Sanitizer("asan", "no libasan"), "no run: no libasan"),
    ):
        assert f"sanitizer {says}" in shown(dataclasses.replace(verdict(0.5), sanitizer=run))
