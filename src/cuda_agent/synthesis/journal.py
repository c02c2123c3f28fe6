"""DIR/journal.jsonl: what became of each draw, a line each, so that a killed run goes on.

A line is written when a draw is settled, in the order in which that happens. A kill leaves at most
a torn last line, which the next run cuts off. `run.json` beside it holds what the draws depend on;
another run in the same folder must agree.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.store import write_file

JOURNAL = "journal.jsonl"


@dataclass(frozen=True)
class Draw:
    """One draw. `rejected` names a filter, or is "" for one that passed (or has yet to be run).

    `key` tells structures apart; `code` is kept of what passed; `similarity` is the largest to a
    problem to be avoided; `seconds` of the execution filters.
    """

    index: int
    rejected: str = ""
    detail: str = ""
    source: str = "torch"
    ops: tuple[str, ...] = ()
    combination: str = ""
    key: str = ""
    structure: str = ""
    layout: str = ""
    dtype: str = "float32"
    code: str = ""
    similarity: float = 0.0
    eager_ms: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`torch#12`, as the published set names its rows."""
        return f"{self.source}#{self.index}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Draw:
        return cls(**{**data, "ops": tuple(data["ops"])})


class Journal:
    """The draws of one folder, held by one process at a time."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Raises SettingsError where the folder belongs to a run with other settings or is in use;
        OutputError where it cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / JOURNAL, "ab+")  # noqa: SIM115
        except OSError as error:
            raise OutputError(f"{folder} cannot be written ({error.strerror}).") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise SettingsError(f"another run is at work in {folder}; wait for its end.") from error
        self._agree(folder, dict(settings))
        self.draws: dict[int, Draw] = {}
        self.rejected: Counter[str] = Counter()
        for draw in self._read():
            self._note(draw)

    def _agree(self, folder: Path, settings: dict[str, Any]) -> None:
        file = folder / "run.json"
        if not file.exists():
            write_file(file, json.dumps(settings, indent=1).encode())
            return
        known = json.loads(file.read_text(encoding="utf-8"))
        plain = json.loads(json.dumps(settings))
        for name in plain:
            if plain[name] != known.get(name):
                raise SettingsError(
                    f"{folder} was begun with {name} = {json.dumps(known.get(name))}, not "
                    f"{json.dumps(plain[name])}; give another folder."
                )

    def _read(self) -> Iterator[Draw]:
        self._file.seek(0)
        good = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            yield Draw.from_json(json.loads(line))
            good += len(line)
        os.ftruncate(self._file.fileno(), good)
        self._file.seek(0, os.SEEK_END)

    def append(self, draw: Draw) -> None:
        self._file.write(json.dumps(asdict(draw)).encode() + b"\n")
        self._file.flush()
        self._note(draw)

    def _note(self, draw: Draw) -> None:
        self.draws[draw.index] = draw
        self.rejected[draw.rejected] += 1

    def admitted(self, below: int | None = None) -> list[Draw]:
        """In order of their index; only those below an index, if given."""
        passed = [d for d in self.draws.values() if not d.rejected]
        chosen = [d for d in passed if below is None or d.index < below]
        return sorted(chosen, key=lambda d: d.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
