"""What a verdict tells whoever writes the next attempt: short, the most important first, and the
same for the same numbers. Policies read it as it stands, so no line holds a path of this machine.
"""

from __future__ import annotations

from cuda_agent.records import ErrorReport


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


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.7g}"


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
