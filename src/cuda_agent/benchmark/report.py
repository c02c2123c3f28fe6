"""A run as a page: rendered from stored records alone, so that it can be rendered again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jinja2

from cuda_agent import runtime
from cuda_agent.agents.loop import steps_of
from cuda_agent.benchmark import plots
from cuda_agent.benchmark.plots import Bar, Point, number
from cuda_agent.policies import Plan, Step
from cuda_agent.records import BASELINES, Candidate, Finding, Run, Verdict
from cuda_agent.store import Store

LABELS = {
    "eager": "PyTorch eager",
    "compile_default": "torch.compile",
    "compile_reduce_overhead": "torch.compile reduce-overhead",
    "compile_max_autotune": "torch.compile max-autotune",
}


@dataclass(frozen=True)
class ReportData:
    """`steps` in order; `audits` are the verdicts of the audit tier; `regions` as in
    Planner.regions; `solution` the folder's path as the user gave it."""

    run: Run
    verdict: Verdict | None
    candidate: Candidate | None
    steps: Sequence[Step] = ()
    audits: Sequence[Verdict] = ()
    regions: Sequence[Mapping[str, Any]] = field(default_factory=list)
    solution: str = ""


def from_store(store: Store, run_id: str) -> ReportData:
    """Raises SettingsError for an unknown run. A run without a result yet has no verdict."""
    run = store.run(run_id)
    result = store.note(run_id, "result") or {}
    episode = store.episode(run_id)
    verdict_hash, candidate_hash = result.get("verdict"), result.get("candidate")
    if not result and episode is not None:
        verdict_hash, candidate_hash = episode.best_verdict_hash, episode.best_candidate_hash
    return ReportData(
        run=run,
        verdict=store.verdict_by_hash(verdict_hash) if verdict_hash else None,
        candidate=store.candidate(candidate_hash) if candidate_hash else None,
        steps=steps_of(episode, store) if episode is not None else (),
        audits=[v for v in store.verdicts(run_id) if v.tier == "audit"],
        regions=store.note(run_id, "regions") or [],
        solution=result.get("out", ""),
    )


def environment() -> jinja2.Environment:
    """Of all pages: templates/*.j2 with one style sheet."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("cuda_agent.benchmark", "templates"),
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters["number"] = number
    return made


def render(data: ReportData) -> str:
    """One self-contained HTML page."""
    verdict = data.verdict
    return environment().get_template("report.html.j2").render(
        data=data,
        verdict=verdict,
        headline=headline(verdict),
        speedups=speedup_rows(verdict),
        time_plot=_time_plot(verdict),
        progress_plot=_progress_plot(data.steps),
        rows=_evaluation_rows(data),
        regions=region_rows(data.regions, data.candidate),
        graph_choices=_graph_choices(data.candidate),
        findings=_findings(data),
        sources=_sources(data.candidate),
        settings={k: v for k, v in data.run.settings.items() if v is not None},
    )


def headline(verdict: Verdict | None) -> str:
    """One sentence for a person in a hurry."""
    if verdict is None:
        return "No candidate has been measured."
    if not verdict.ok:
        return f"No correct solution: {verdict.status.replace('_', ' ')}."
    parts = [
        f"{interval.value:.2f}× {LABELS[name]}"
        for name in ("eager", "compile_default")
        if (interval := verdict.speedup.get(name)) is not None
    ]
    if not parts:
        return "Correct; no baseline could be measured."
    # At a loose precision baselines race at their defaults against reduced accuracy: never unsaid.
    at = "" if verdict.precision == "strict" else f" (at {verdict.precision} precision)"
    return f"Speed-up: {', '.join(parts)}{at}."


def speedup_rows(verdict: Verdict | None) -> list[dict[str, Any]]:
    """A row for the solution and for each baseline; speed-ups are None where not measured."""
    if verdict is None or verdict.timing is None:
        return []
    rows = [{"label": "this solution", "timing": verdict.timing, "speedup": None, "ours": True}]
    rows += [
        {
            "label": LABELS[name], "timing": verdict.baselines.get(name),
            "speedup": verdict.speedup.get(name), "ours": False,
        }
        for name in BASELINES
    ]
    return rows


def region_rows(
    regions: Sequence[Mapping[str, Any]], candidate: Candidate | None
) -> list[dict[str, Any]]:
    """What each region is, and which skill with which knobs won it; no skill ("–") where the
    candidate was not made from a plan."""
    planned = candidate is None or candidate.plan is not None
    chosen = ((candidate.plan if candidate else None) or {}).get("regions", {})
    rows = []
    for region in regions:
        choice = chosen.get(region["id"], {})
        knobs = ", ".join(f"{k}={v}" for k, v in choice.get("knobs", {}).items())
        ops = list(dict.fromkeys(region["ops"]))
        shown = ", ".join(ops[:8]) + (f", … ({len(region['ops'])} ops)" if len(ops) > 8 else "")
        rows.append(
            {
                "id": region["id"], "kind": region["kind"], "ops": shown,
                "space": "×".join(map(str, region["space"])),
                "skill": choice.get("skill", "torch") if planned else "–", "knobs": knobs,
            }
        )
    return rows


def _time_plot(verdict: Verdict | None) -> str:
    rows = [
        Bar(r["label"], t.median_ms, t.low_ms, t.high_ms, r["ours"])
        for r in speedup_rows(verdict)
        if (t := r["timing"]) is not None
    ]
    return plots.bars(rows, "ms", verdict.floor_ms if verdict else None)


def _progress_plot(steps: Sequence[Step]) -> str:
    points = []
    for i, step in enumerate(steps, start=1):
        interval = step.verdict.speedup.get("eager") if step.verdict is not None else None
        value = interval.value if interval is not None else None
        shown = step.status if value is None else f"{value:.2f}×"
        points.append(Point(i, value, f"evaluation {i}: {shown}"))
    return plots.progress(points)


def _evaluation_rows(data: ReportData) -> list[dict[str, Any]]:
    first = next((step.plan for step in data.steps if step.plan is not None), None)
    winner = data.candidate.hash if data.candidate else None
    rows = []
    for i, step in enumerate(data.steps, start=1):
        verdict = step.verdict
        rows.append(
            {
                "index": i, "status": step.status, "verdict": verdict,
                "note": _note(step, first, i),
                "detail": "" if verdict is not None and verdict.ok else _first_line(step),
                "won": verdict is not None and verdict.candidate_hash == winner,
            }
        )
    return rows


def _note(step: Step, first: Plan | None, index: int) -> str:
    if step.plan is None:
        return f"by {step.call.name}"
    return describe_plan(step.plan, first) if index > 1 else "defaults of the skills"


def describe_plan(plan: Plan | None, base: Plan | None) -> str:
    """In which choices `plan` differs from `base`."""
    if plan is None or base is None:
        return ""
    changes = [
        f"{name}={value}" for name, value in plan.get("graph", {}).items()
        if base.get("graph", {}).get(name) != value
    ]
    for region, choice in plan.get("regions", {}).items():
        old = base.get("regions", {}).get(region, {})
        if choice["skill"] != old.get("skill"):
            changes.append(f"{region}: {choice['skill']}")
        before = old.get("knobs", {})
        knobs = choice.get("knobs", {})
        changes += [f"{region}.{k}={v}" for k, v in knobs.items() if before.get(k) != v]
    return ", ".join(changes) or "the same plan"


def _first_line(step: Step) -> str:
    text = step.detail or (step.verdict.feedback if step.verdict is not None else "")
    return text.strip().split("\n")[0][:300]


def _graph_choices(candidate: Candidate | None) -> str:
    plan = (candidate.plan if candidate else None) or {}
    return ", ".join(f"{k}={v}" for k, v in plan.get("graph", {}).items())


def _findings(data: ReportData) -> list[tuple[str, Finding]]:
    """Of the final verdict and of every other that had one, once each."""
    labelled: dict[tuple[str, str], tuple[str, Finding]] = {}
    for finding in data.verdict.findings if data.verdict is not None else ():
        labelled[finding.id, finding.detail] = ("solution", finding)
    for i, step in enumerate(data.steps, start=1):
        for finding in step.verdict.findings if step.verdict is not None else ():
            labelled.setdefault((finding.id, finding.detail), (f"evaluation {i}", finding))
    return list(labelled.values())


def _sources(candidate: Candidate | None) -> list[tuple[str, str]]:
    """Written for this problem; what ships with every solution is left out."""
    if candidate is None:
        return []
    shown_apart = {*runtime.FILES, "reference.py"}
    files = {n: t for n, t in candidate.files.items() if n not in shown_apart}
    return sorted(files.items(), key=lambda item: (item[0] != "model_new.py", item[0]))
