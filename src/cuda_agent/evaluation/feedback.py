"""What a verdict tells whoever writes the next attempt: short, the most important first, and the
same for the same numbers. Policies read it as it stands, so no line holds a path of this machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuda_agent.evaluation import roofline
from cuda_agent.records import ErrorReport, KernelUse, Roofline

_KERNELS = 8  # that are named


def of_wrong(said: str, report: ErrorReport | None) -> str:
    """`said`: one sentence on what was found to be wrong."""
    if report is None or report.mismatch is None:
        return said
    found = report.mismatch
    lines = [
        f"{said}: {found.output}, {found.wrong_elements} of {found.total_elements} elements wrong",
        f"where: {found.pattern}",
        f"first at {list(found.index)}: got {_value(found.got)}, expected {_value(found.expected)}",
    ]
    if report.wrong_on and report.right_on:
        lines.append(
            f"wrong on {_listed(report.wrong_on)} inputs, right on {_listed(report.right_on)}"
        )
    if report.bound is not None and report.relative < 1.0:
        lines.append(f"relative error {report.relative:.2g}, allowed {report.bound:.2g}")
    return "\n".join(lines)


def complete(said: str, kernels: Sequence[KernelUse], measured: Roofline | None) -> str:
    """`said`, the roofline's line where the candidate was timed, and a line for each kernel, those
    that spill or fill the device least first."""
    ordered = sorted(kernels, key=lambda k: (-k.spill_bytes, k.occupancy, k.name))
    lines = [said] if said else []
    lines += [roofline.describe(measured)] if measured is not None else []
    lines += map(of_kernel, ordered[:_KERNELS])
    if len(ordered) > _KERNELS:
        lines.append(f"and {len(ordered) - _KERNELS} other kernels")
    return "\n".join(lines)


def of_kernel(used: KernelUse) -> str:
    spills = f"{used.spill_bytes} bytes spilled" if used.spill_bytes else "no spills"
    block = f"{used.block} threads a block" + ("" if used.bounded else " (assumed)")
    limit = "" if used.occupancy == 1 else f", limited by {used.limited_by}"
    return (
        f"kernel {used.name}: {used.registers} registers, {used.shared_bytes} bytes shared, "
        f"{spills}; occupancy {used.occupancy:.0%} at {block}{limit}"
    )


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.7g}"


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
