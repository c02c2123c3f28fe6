"""What a run measured of itself: one JSON line for each step, and TensorBoard where installed.

    DIR/metrics.jsonl      {"stage": "warmup", "step": 12, "seconds": 3.1, "reward": 1.4, ...}
    DIR/tensorboard/       the same, as scalars "warmup/reward"
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.errors import OutputError
from cuda_agent.store import write_file

FILE = "metrics.jsonl"


class Metrics:
    """Lines behind a checkpoint are dropped when a run continues from it, and written again."""

    def __init__(self, root: Path) -> None:
        self.path = root / FILE
        self._board = _board(root / "tensorboard")

    def resume(self, stage: str, step: int) -> None:
        """`step` steps of `stage` are done; what was written of later ones is dropped."""
        if not self.path.exists():
            return
        kept = [
            line for line in read(self.path) if line["stage"] != stage or line["step"] <= step
        ]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        self._guarded(lambda: write_file(self.path, text.encode()))

    def write(self, stage: str, step: int, values: Mapping[str, float]) -> None:
        """Raises OutputError. NaN, which JSON has not, becomes null."""
        finite = {n: _short(v) if math.isfinite(v) else None for n, v in values.items()}
        line = json.dumps({"stage": stage, "step": step, **finite}) + "\n"

        def append() -> None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(line)

        self._guarded(append)
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{stage}/{name}", value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be written ({error.strerror or error}); the last checkpoint "
                "is kept, and the run continues from it."
            ) from error


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Whole lines; a last one that a kill cut short is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
