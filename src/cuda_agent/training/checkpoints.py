"""Checkpoints of one run: whole or not there, and the newest whole one wins.

    DIR/checkpoints/warmup-00000012.pt      a SHA-256 of the rest (32 bytes), then torch.save

A file is written beside its place, flushed to the disk and renamed, so a kill at any moment leaves
the one before. A file that a full disk or a broken copy has damaged fails its digest and the next
older one is taken.
"""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cuda_agent.errors import OutputError
from cuda_agent.store import write_file

_NAME = re.compile(r"(\w+)-(\d{8})\.pt")
_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Position:
    """Where a run stands: `step` steps of `stage` are done; `finished` when all of them are."""

    stage: str
    step: int
    finished: bool


class Checkpoints:
    """The checkpoints under `root`. Keeps the newest `keep` of each stage."""

    def __init__(self, root: str | Path, keep: int = 2) -> None:
        self.root = Path(root) / "checkpoints"
        self.keep = keep

    def save(self, position: Position, state: dict[str, Any]) -> Path:
        """`state` holds tensors, numbers, strings and containers of them, such as state_dicts. No
        generator's state: each step of a stage draws from a seed of its own. Raises OutputError;
        what was saved before is kept then."""
        buffer = io.BytesIO()
        torch.save({"position": vars(position), "state": state}, buffer)
        payload = buffer.getvalue()
        path = self.root / f"{position.stage}-{position.step:08d}.pt"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            write_file(path, hashlib.sha256(payload).digest() + payload)
            for old in self._files(position.stage)[self.keep :]:
                old.unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(
                f"{path} cannot be written ({error.strerror or error}); the checkpoint before it "
                "is kept."
            ) from error
        return path

    def newest(self, stage: str, device: str | torch.device = "cpu") -> tuple[Position, Any] | None:
        """(position, state) of the newest whole checkpoint of a stage; None where there is none."""
        for path in self._files(stage):
            data = _read(path, device)
            if data is not None:
                return Position(**data["position"]), data["state"]
        return None

    def finished(self, stage: str) -> bool:
        found = self.newest(stage)
        return found is not None and found[0].finished

    def _files(self, stage: str) -> list[Path]:
        """Newest first."""
        if not self.root.is_dir():
            return []
        named = [(m, p) for p in self.root.iterdir() if (m := _NAME.fullmatch(p.name))]
        mine = [(int(m[2]), p) for m, p in named if m[1] == stage]
        return [path for _, path in sorted(mine, reverse=True)]


def _read(path: Path, device: str | torch.device) -> dict[str, Any] | None:
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    payload = raw[_DIGEST_BYTES:]
    if hashlib.sha256(payload).digest() != raw[:_DIGEST_BYTES]:
        return None
    data: dict[str, Any] = torch.load(io.BytesIO(payload), map_location=device, weights_only=True)
    return data
