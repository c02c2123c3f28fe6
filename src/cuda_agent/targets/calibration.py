"""Measured peaks of a device on disk: calibrate.py writes them, facts() of a target reads them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuda_agent.errors import OutputError
from cuda_agent.targets.base import DeviceFacts


@dataclass(frozen=True)
class Calibration:
    """Peaks over buffers larger than the last-level cache; calibrate.py says how.

    `copy_bytes_per_s` counts bytes read and written, `read_bytes_per_s` a pure read,
    `matrix_flops_per_s` 2*m*n*k a second by precision ("fp32" is strict), `launch_s` one call of
    an empty kernel among many. `date` is ISO 8601 in UTC.
    """

    device: str
    date: str
    copy_bytes_per_s: float
    read_bytes_per_s: float
    matrix_flops_per_s: dict[str, float]
    launch_s: float
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)


def path_of(facts: DeviceFacts) -> Path:
    """`$CUDA_AGENT_HOME/calibration/<device>.json`, by default under ~/.cache/cuda-agent. The
    number of units is part of the name: fewer usable cores have other peaks."""
    home = os.environ.get("CUDA_AGENT_HOME")
    root = Path(home) if home else Path.home() / ".cache" / "cuda-agent"
    name = f"{facts.target}-{facts.name}-{facts.arch}-{facts.units}".lower()
    return root / "calibration" / f"{re.sub(r'[^a-z0-9.]+', '-', name).strip('-')}.json"


def load(facts: DeviceFacts) -> Calibration | None:
    """The stored calibration of this device; None when there is none that can be read."""
    try:
        data: dict[str, Any] = json.loads(path_of(facts).read_text())
        return Calibration(**data)
    except (OSError, ValueError, TypeError):
        return None


def save(facts: DeviceFacts, calibration: Calibration) -> Path:
    """Write atomically. Raises OutputError; an older file then stays as it was."""
    path = path_of(facts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            json.dump(dataclasses.asdict(calibration), file, indent=1)
        os.replace(partial, path)
    except OSError as error:
        raise OutputError(f"the calibration could not be written to {path}: {error}") from error
    return path


def apply(facts: DeviceFacts) -> DeviceFacts:
    """`facts` with the stored rates, if there are any."""
    stored = load(facts)
    if stored is None:
        return facts
    return dataclasses.replace(
        facts,
        copy_bytes_per_s=stored.copy_bytes_per_s,
        read_bytes_per_s=stored.read_bytes_per_s,
        matrix_flops_per_s=dict(stored.matrix_flops_per_s),
        launch_s=stored.launch_s,
    )
