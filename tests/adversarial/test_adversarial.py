"""Every exhibit of the museum before the real judge."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exhibits_a
import exhibits_b
import exhibits_c
import exhibits_d
import exhibits_e
import exhibits_f
import pytest
from museum import BIAS, IDS, Exhibit

from cases import native
from cuda_agent import runtime, targets
from cuda_agent.evaluation import Judge, guard
from cuda_agent.evaluation.guard import meanings
from cuda_agent.records import Candidate, Verdict

ROOMS = (exhibits_a, exhibits_b, exhibits_c, exhibits_d, exhibits_e, exhibits_f)
EXHIBITS: list[Exhibit] = [e for room in ROOMS for e in room.EXHIBITS]
THREATS = Path(__file__).parents[2] / "docs" / "threat-model.md"
_REASON = targets.get("cuda").unavailable()


def _param(exhibit: Exhibit) -> Any:
    marks = [pytest.mark.compiler]
    if exhibit.target == "cuda":
        marks = [
            pytest.mark.gpu,
            pytest.mark.skipif(_REASON is not None, reason=f"no GPU: {_REASON}"),
        ]
    return pytest.param(exhibit, id=exhibit.label, marks=marks)


def verdict_of(judge: Judge, exhibit: Exhibit) -> Verdict:
    files, problem = dict(exhibit.files), exhibit.problem
    return judge.judge(Candidate(problem_hash=problem.hash, files=files, author="museum"))


@pytest.mark.parametrize("exhibit", [_param(e) for e in EXHIBITS])
def test_a_cheat_gets_its_verdict(judge_of: Callable[[Exhibit], Judge], exhibit: Exhibit) -> None:
    verdict = verdict_of(judge_of(exhibit), exhibit)
    found = {f.id for f in verdict.findings}
    assert verdict.status in exhibit.status.split("|"), (verdict.feedback, verdict.findings)
    assert exhibit.says in verdict.feedback
    assert not exhibit.rule or found & set(exhibit.rule.split("|")), (found, verdict.feedback)
    assert set(exhibit.external) <= set(verdict.external_ops)
    if exhibit.at_most is not None:
        gain = verdict.speedup["eager"]
        assert gain is not None and gain.value < exhibit.at_most
    if not verdict.ok:
        assert verdict.timing is None and verdict.speedup["eager"] is None


@pytest.mark.parametrize(
    "exhibit", [_param(e) for e in EXHIBITS if e.unguarded is not None]
)
def test_what_is_left_of_a_cheat_that_static_rules_do_not_see(
    judge_of: Callable[[Exhibit], Judge], exhibit: Exhibit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "review", lambda *_: guard.Review())
    verdict = verdict_of(judge_of(exhibit), exhibit)
    expected = str(exhibit.unguarded).split("|")
    assert verdict.status in expected, (verdict.feedback, verdict.findings)


def test_an_innocent_passes_after_all_of_them(judge_of: Callable[[Exhibit], Judge]) -> None:
    exhibit = Exhibit("", "innocent", native(), "ok")
    verdict = verdict_of(judge_of(exhibit), exhibit)
    assert verdict.ok, (verdict.feedback, verdict.findings)
    assert verdict.speedup["eager"] is not None and exhibit.problem is BIAS


def test_every_id_is_shown_or_explained() -> None:
    """Each in a row of docs/threat-model.md that names its exhibits, or says why there are none."""
    named: dict[str, list[str]] = {name: [] for name in IDS}
    for exhibit in EXHIBITS:
        named[exhibit.id].append(exhibit.name)
    assert len(IDS) == 83
    rows = {}
    for line in THREATS.read_text().splitlines():
        if re.match(r"\| [A-F]\d+ \|", line):
            id, _, today, exhibits = (cell.strip() for cell in line.strip("|").split("|"))
            rows[id] = re.findall(r"`(\w+)`", exhibits)
            assert rows[id] or "does not apply" in today, line
    assert rows == named


def test_names_are_unique_and_findings_are_explained() -> None:
    assert max(Counter(e.label for e in EXHIBITS).values()) == 1
    rules = {rule for e in EXHIBITS for rule in e.rule.split("|") if rule}
    assert rules - set(meanings.MEANINGS) == set()


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    "exhibit", [e for e in EXHIBITS if any(n.endswith(".cu") for n in e.files)],
    ids=lambda e: e.label,
)
def test_cuda_cheats_compile(tmp_path_factory: pytest.TempPathFactory, exhibit: Exhibit) -> None:
    """They run on a GPU only; here at least their kernels are CUDA, and their Python is Python."""
    pytest.importorskip("cuda.core")
    compile(exhibit.files["model_new.py"], "model_new.py", "exec")
    sources = {n.removeprefix("kernels/"): t for n, t in exhibit.files.items() if "/" in n}
    cache = tmp_path_factory.getbasetemp() / "museum-cuda"
    built = runtime.build(sources, arch="sm_90a", cache=cache)
    assert all(b.kind == "cubin" for b in built.values())
