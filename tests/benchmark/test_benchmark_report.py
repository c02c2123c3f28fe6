"""The page of a run: self-contained, complete, escaped; and its small charts."""

from __future__ import annotations

import dataclasses
import re
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from agents_fakes import PROBLEM, SPACE, FakePlanner, verdict

from cuda_agent.benchmark import plots
from cuda_agent.benchmark.report import (
    ReportData,
    describe_plan,
    from_store,
    headline,
    region_rows,
    render,
)
from cuda_agent.policies import Step, apply_plan
from cuda_agent.records import Candidate, Finding, Interval, Run
from cuda_agent.store import Store

RUN = Run("run-1", "optimize", PROBLEM, {"seed": 0, "minutes": None}, "2026-01-01", {"torch": "2"})
VOID = {"meta", "br", "line", "path", "rect", "circle", "link", "img", "input"}


class Checker(HTMLParser):
    """Fails on tags that do not nest and on anything loaded from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe"), tag
        assert not any(name in ("src", "href") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def page(**changes: Any) -> str:
    candidate = FakePlanner().assemble(SPACE.default())
    tried = SPACE.complete({"regions": {"r0": {"skill": "torch"}}})
    final = verdict(0.5, candidate=candidate.hash, tier="audit")
    data = ReportData(
        RUN, final, candidate,
        [
            Step(apply_plan(SPACE.default()), "ok", verdict(0.5, candidate=candidate.hash)),
            Step(apply_plan(tried), "wrong", verdict(0, "wrong")),
            Step(apply_plan(tried), "invalid_plan", None, "no <such> skill"),
        ],
        [final], FakePlanner().regions(), "solutions/toy",
    )
    text = render(dataclasses.replace(data, **changes))
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return text


def test_page_has_everything_and_loads_nothing() -> None:
    text = page()
    for part in (
        "2.00× PyTorch eager", "1.80× torch.compile", "not measured", "1.20e-07 against float64",
        "run-1", "solutions/toy", "made up", "normalization", "vector=4", "add, native_layer_norm",
        "class ModelNew", "kernels/r0.cpp", "r0: torch", "it is wrong", "aten.mm", PROBLEM.hash,
        "physical floor 0.200 ms", "prefers-color-scheme: dark", 'name="viewport"',
    ):
        assert part in text, part
    assert "http" not in text
    assert "no &lt;such&gt; skill" in text and "<such>" not in text


def test_page_of_a_run_without_a_solution() -> None:
    failed = dataclasses.replace(
        verdict(0, "cheating"), findings=(Finding("G-timer", "patched <the> clock"),)
    )
    text = page(verdict=failed, candidate=None)
    assert "No correct solution: cheating" in text and "G-timer" in text
    assert "patched &lt;the&gt; clock" in text
    assert "No candidate has been measured" in page(verdict=None, candidate=None, steps=[])


def test_a_screen_figure_is_marked_as_preliminary() -> None:
    assert "preliminary" in page(verdict=verdict(0.5)) and "preliminary" not in page()


def test_rendered_again_from_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    candidate: Candidate = FakePlanner().assemble(SPACE.default())
    final = verdict(0.5, candidate=candidate.hash, tier="audit")
    store.put_run(RUN)
    store.put_candidate(RUN.id, candidate)
    store.put_verdict(RUN.id, final, "audit")
    store.put_note(RUN.id, "regions", FakePlanner().regions())
    assert from_store(store, RUN.id).verdict is None
    store.put_note(
        RUN.id, "result", {"candidate": candidate.hash, "verdict": final.hash, "out": "here"}
    )
    data = from_store(store, RUN.id)
    assert data.verdict == final and data.candidate == candidate and data.audits == [final]
    assert render(data) == render(from_store(Store(tmp_path), RUN.id))


def test_headline_without_baselines() -> None:
    alone = dataclasses.replace(verdict(0.5), speedup={"eager": None})
    assert headline(alone) == "Correct; no baseline could be measured."
    some = dataclasses.replace(verdict(0.5), speedup={"eager": Interval(1.5, 1.4, 1.6)})
    assert headline(some) == "Speed-up: 1.50× PyTorch eager."


def test_plans_are_told_by_their_differences() -> None:
    base = SPACE.default()
    other = SPACE.complete(
        {
            "graph": {"cuda_graph": True},
            "regions": {"r0": {"skill": "torch"}, "r1": {"skill": "pointwise",
                                                         "knobs": {"vector": 8}}},
        }
    )
    assert describe_plan(other, base) == "cuda_graph=True, r0: torch, r1.vector=8"
    assert describe_plan(base, base) == "the same plan"
    assert describe_plan(base, other).startswith("cuda_graph=False, r0: normalization")


def test_region_rows_shorten_long_lists() -> None:
    region = {"id": "r0", "kind": "pointwise", "ops": [f"op{i}" for i in range(12)], "space": [4]}
    (row,) = region_rows([region], None)
    assert row["ops"].endswith("… (12 ops)") and row["skill"] == "torch"


def test_bars_are_to_scale_and_valid_xml() -> None:
    text = plots.bars(
        [plots.Bar("a & b", 1.0, 0.9, 1.1), plots.Bar("ours", 0.5, 0.5, 0.5, True)], "ms", 0.25
    )
    root = ET.fromstring(text)
    widths = [float(r.get("width", "0")) for r in root.iter("rect")]
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert plots.bars([], "ms") == ""


def test_progress_line_never_falls() -> None:
    values = [0.8, None, 1.2, 1.0, 1.9]
    text = plots.progress([plots.Point(i, v, f"<{i}>") for i, v in enumerate(values, 1)])
    root = ET.fromstring(text)
    assert len(list(root.iter("circle"))) == 4
    (path,) = [p.get("d", "") for p in root.iter("path")]
    heights = [float(y) for y in re.findall(r"V([\d.]+)", path)]
    assert heights == sorted(heights, reverse=True) and len(heights) == 2
    assert plots.progress([plots.Point(1, None, "")]) == ""
    assert ET.fromstring(plots.progress([plots.Point(1, 1.0, "one")])) is not None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.5, "1234"), (12.345, "12.3"), (0.012345, "0.0123"), (1e-9, "1.00e-09")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert plots.number(value) == text


def test_ticks_are_round_and_inside() -> None:
    assert plots.ticks(0.31, 2.7) == [0.5, 1.0, 1.5, 2.0, 2.5]
    for low, high in ((0.999, 1.001), (1, 300), (0.1, 0.2)):
        marks = plots.ticks(low, high)
        assert 2 <= len(marks) <= 11 and low <= marks[0] and marks[-1] <= high
