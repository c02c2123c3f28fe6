"""Verdicts as a model reads them: first what counts, then what helps."""

from __future__ import annotations

from cuda_agent.evaluation import counters, roofline
from cuda_agent.evaluation.apart import Compiled, Examined
from cuda_agent.evaluation.guard.meanings import MEANINGS
from cuda_agent.records import Finding, KernelUse, Verdict

_KERNELS = 12


def compiled(found: Compiled) -> str:
    if found.error:
        return f"compile_error\n{found.error}"
    lines = [f"compiles ({found.form}, {found.seconds:.2f} s)", *_kernels(found.kernels)]
    if found.findings:
        lines.append("but it would be refused as cheating:")
    return "\n".join([*lines, *_findings(found.findings)])


def correctness(verdict: Verdict) -> str:
    """Status, error and where it is wrong; no times."""
    lines: list[str] = [verdict.status]
    if not verdict.ok and verdict.feedback.strip():
        lines.append(verdict.feedback.strip())
    if verdict.error is not None:
        error = verdict.error
        allowed = "" if error.bound is None else f", {error.bound:.1e} allowed"
        lines.append(
            f"relative error {error.relative:.1e} against {error.against}{allowed}; "
            f"{error.inputs_checked} input sets"
        )
        if error.wrong_on:
            right = ", ".join(error.right_on) or "none"
            lines.append(f"wrong on inputs: {', '.join(error.wrong_on)}; right on: {right}")
    return "\n".join([*lines, *_findings(verdict.findings)])


def times(verdict: Verdict) -> str:
    """Correctness where it fails, else times, speed-ups, the floor, kernels."""
    if not verdict.ok or verdict.timing is None:
        return correctness(verdict)
    timing = verdict.timing
    lines = [
        f"ok: {timing.median_ms:.4g} ms a call [{timing.low_ms:.4g}, {timing.high_ms:.4g}]"
    ]
    for name, interval in verdict.speedup.items():
        if interval is not None:
            lines.append(
                f"{interval.value:.3f}x {name} [{interval.low:.3f}, {interval.high:.3f}]"
            )
    if verdict.roofline is not None:
        lines.append(f"roofline: {roofline.describe(verdict.roofline)}")
    if verdict.activity is not None:
        seen = verdict.activity
        names = ", ".join(f"{n[:60]} x{c}" for n, c in [*seen.kernels.items()][:_KERNELS])
        lines.append(f"device: {seen.launches} launches, {seen.device_ms:.4g} ms of work: {names}")
    lines += _kernels(verdict.kernels)
    if verdict.external_ops:
        lines.append(f"computed by torch or libraries: {', '.join(verdict.external_ops)}")
    return "\n".join([*lines, *_findings(verdict.findings)])


def examined(found: Examined) -> str:
    lines = []
    if found.counters is not None:
        lines.append(f"counters: {counters.describe(found.counters)}")
    if found.sanitizer is not None:
        run = found.sanitizer
        seen = [f"{f.id}: {f.detail}" for f in run.findings] or [f"{run.tool} found nothing"]
        lines += [f"memory: {text}" for text in ([run.missing] if run.missing else seen)]
    return "\n".join(lines)


def _kernels(used: tuple[KernelUse, ...]) -> list[str]:
    return [
        f"kernel {k.name}: {k.registers} registers, {k.shared_bytes} B shared, {k.spill_bytes} B "
        f"spilled, occupancy {k.occupancy:.0%} at {k.block} threads"
        f"{'' if k.bounded else ' (assumed)'}, limited by {k.limited_by}"
        for k in used[:_KERNELS]
    ]


def _findings(findings: tuple[Finding, ...]) -> list[str]:
    return [
        f"{f.id}{f' ({MEANINGS[f.id]})' if f.id in MEANINGS else ''}: {f.detail}" for f in findings
    ]
