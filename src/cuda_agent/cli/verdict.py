"""How a verdict reads in a terminal: status, what to do about it, times, device, kernels."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cuda_agent.benchmark.plots import number
from cuda_agent.benchmark.report import speedup_rows
from cuda_agent.evaluation import counters, roofline
from cuda_agent.evaluation.guard.meanings import MEANINGS
from cuda_agent.records import Activity, KernelUse, Sanitizer, Verdict

_SHOWN = 16  # kernels in a table
_SAID = ("output", "timed-output", "form")  # the feedback says it already


def show_verdict(verdict: Verdict, console: Console) -> None:
    """Each part only where the verdict holds it. Long lines wrap where they must: a caret stays
    under its place unless the terminal is narrower than the line."""
    colour = "green" if verdict.ok else "red"
    said = [verdict.target, verdict.dtype, verdict.precision, verdict.track, verdict.tier]
    console.print(
        f"{escape(verdict.problem)}: [bold {colour}]{verdict.status}[/]  ({', '.join(said)})",
        highlight=False,
    )
    if not verdict.ok and verdict.feedback.strip():
        console.print(escape(verdict.feedback.strip()), highlight=False, soft_wrap=True)
    for finding in verdict.findings:
        if finding.id in _SAID:
            continue
        meaning = MEANINGS.get(finding.id)
        console.print(
            f"[yellow]{escape(finding.id)}[/]{f' ({meaning})' if meaning else ''}: "
            f"{escape(finding.detail)}", highlight=False,
        )
    for name, text in _facts(verdict):
        console.print(f"[bold]{name:<9}[/] {escape(text)}", highlight=False, soft_wrap=True)
    for text in _sanitized(verdict.sanitizer):
        console.print(f"[bold]sanitizer[/] {escape(text)}", highlight=False, soft_wrap=True)
    if verdict.timing is not None:
        console.print(_times(verdict))
    if verdict.kernels:
        console.print(_kernels(verdict.kernels))


def _facts(verdict: Verdict) -> list[tuple[str, str]]:
    """(what, one line) of everything but times and kernels."""
    facts = [("error", describe_error(verdict))] if verdict.error is not None else []
    if verdict.roofline is not None:
        facts.append(("roofline", roofline.describe(verdict.roofline)))
    if verdict.activity is not None:
        facts.append(("device", _activity(verdict.activity)))
    if verdict.counters is not None:
        facts.append(("counters", counters.describe(verdict.counters)))
    if verdict.energy_mj is not None:
        facts.append(("energy", f"{number(verdict.energy_mj)} mJ a call"))
    if verdict.external_ops:
        facts.append(("not ours", ", ".join(verdict.external_ops)))
    return facts


def _sanitized(run: Sanitizer | None) -> list[str]:
    if run is None:
        return []
    if run.missing:
        return [f"no run: {run.missing}"]
    found = [f"{finding.id}: {finding.detail}" for finding in run.findings]
    return found or [f"{run.tool} found nothing"]


def describe_error(verdict: Verdict) -> str:
    error = verdict.error
    if error is None:
        return "error not measured"
    own = [] if error.eager is None else [f"eager itself: {error.eager:.1e}"]
    own += [] if error.bound is None else [f"allowed: {error.bound:.1e}"]
    beside = f" ({', '.join(own)})" if own else ""
    return (
        f"relative error {error.relative:.1e} against {error.against}{beside}, "
        f"{error.inputs_checked} inputs checked"
    )


def _activity(seen: Activity) -> str:
    kernels = ", ".join(f"{name[:60]} ×{count}" for name, count in [*seen.kernels.items()][:6])
    return (
        f"{seen.launches} launches on {seen.streams} streams, {number(seen.device_ms)} ms of work: "
        f"{kernels}"
    )


def _times(verdict: Verdict) -> Table:
    table = Table("version", title="Times", title_justify="left")
    for name in ("median ms", "95% interval", "speed-up", "95% interval"):
        table.add_column(name, justify="right")
    for row in speedup_rows(verdict):
        timing, speedup = row["timing"], row["speedup"]
        table.add_row(
            f"[bold]{row['label']}" if row["ours"] else row["label"],
            "not measured" if timing is None else number(timing.median_ms),
            "" if timing is None else f"{number(timing.low_ms)} – {number(timing.high_ms)}",
            "" if speedup is None else f"{speedup.value:.3f}×",
            "" if speedup is None else f"{speedup.low:.3f} – {speedup.high:.3f}",
        )
    return table


def _kernels(kernels: tuple[KernelUse, ...]) -> Table:
    table = Table("kernel", title="Kernels (theoretical occupancy)", title_justify="left")
    for name in ("registers", "shared B", "spilled B", "occupancy", "at threads"):
        table.add_column(name, justify="right")
    table.add_column("limited by")
    for used in kernels[:_SHOWN]:
        table.add_row(
            escape(used.name), str(used.registers), str(used.shared_bytes),
            f"[red]{used.spill_bytes}[/]" if used.spill_bytes else "0", f"{used.occupancy:.0%}",
            str(used.block) + ("" if used.bounded else " (assumed)"), used.limited_by,
        )
    return table
