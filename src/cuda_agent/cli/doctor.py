"""`cuda-agent doctor`: which targets work, why others do not, and this device's measured peaks."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from cuda_agent import runtime, targets
from cuda_agent.errors import UserError
from cuda_agent.evaluation import sandbox
from cuda_agent.targets import calibration
from cuda_agent.targets.calibrate import calibrate

_HARDWARE = ("cuda", "cpu")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="which targets work here, why others do not, and the measured peaks",
        description=__doc__,
    )
    parser.add_argument(
        "--calibrate", action="store_true",
        help="measure bandwidth, matrix rates and launch overhead of every available target",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when some hardware target works, else 1."""
    progress = Console(stderr=True)
    report: dict[str, Any] = {
        "targets": {name: _examine(name, args.calibrate, progress) for name in _HARDWARE},
        "tools": _tools(),
        "isolation": sandbox.probe(),
    }
    if args.json:
        json.dump(report, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(report, Console())
    return 0 if any(t["available"] for t in report["targets"].values()) else 1


def _examine(name: str, measure: bool, progress: Console) -> dict[str, Any]:
    target = targets.get(name)
    reason = target.unavailable()
    found: dict[str, Any] = {
        "available": reason is None, "reason": reason, "environment": {}, "facts": None,
        "calibration": None,
    }
    if reason is not None:
        return found
    if measure:
        progress.print(f"measuring {name} ...")
        try:
            calibrate(target)
        except UserError as error:
            found["reason"] = f"calibration: {error}"
    facts = target.facts()
    stored = calibration.load(facts)
    found["environment"] = target.environment()
    found["facts"] = vars(facts)
    found["calibration"] = None if stored is None else vars(stored)
    return found


def _tools() -> dict[str, str]:
    """Compilers by what they are for, each with its version or why it is missing."""
    tools = {}
    for kind, name in (("cpp", "C++ compiler"), ("host", "nvcc")):
        try:
            path = runtime.compiler(kind)
            lines = [x for x in runtime.toolchain(kind).splitlines() if x and "Copyright" not in x]
            version = next((x for x in lines if "release" in x), lines[0])
            tools[name] = f"{version} ({path})"
        except runtime.ToolMissing as error:
            tools[name] = f"missing: {error}"
    versions = runtime.toolchain("cubin")
    tools["NVRTC"] = versions if "nvrtc" in versions else "missing: pip install 'cuda-agent[cuda]'"
    return tools


def _print(report: dict[str, Any], console: Console) -> None:
    table = Table("target", "state", "device", title="Targets", title_justify="left")
    for name, found in report["targets"].items():
        state = "[green]available" if found["available"] else "[red]no"
        device = found["reason"] or _describe(found["facts"])
        table.add_row(name, state, device)
    console.print(table)
    for name, found in report["targets"].items():
        if found["available"]:
            _print_peaks(name, found["calibration"], console)
    tools = Table("tool", "found", title="Tools", title_justify="left")
    for name, text in {**report["tools"], **report["isolation"]}.items():
        tools.add_row(name, text)
    console.print(tools)


def _describe(facts: dict[str, Any]) -> str:
    return (
        f"{facts['name']}, {facts['arch']}, {facts['units']} units, "
        f"{facts['cache_bytes'] / 2**20:.0f} MiB cache, {facts['memory_bytes'] / 2**30:.0f} GiB"
    )


def _print_peaks(name: str, stored: dict[str, Any] | None, console: Console) -> None:
    if stored is None:
        console.print(
            f"{name}: peaks not measured yet, so `audit` has no physical floors; run "
            "`cuda-agent doctor --calibrate`"
        )
        return
    title = f"Measured peaks of {name} ({stored['date']}, {stored['seconds']:.1f} s)"
    table = Table("quantity", "value", title=title, title_justify="left")
    table.add_row("copy, read + written", f"{stored['copy_bytes_per_s'] / 1e9:,.1f} GB/s")
    table.add_row("read only", f"{stored['read_bytes_per_s'] / 1e9:,.1f} GB/s")
    for precision, rate in stored["matrix_flops_per_s"].items():
        table.add_row(f"matrix product, {precision}", f"{rate / 1e12:,.3f} TFLOP/s")
    table.add_row("launch of an empty kernel", f"{stored['launch_s'] * 1e6:.2f} us")
    console.print(table)
