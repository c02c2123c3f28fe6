"""Every evaluation kept: an append-only index and content-addressed blobs, in one folder.

    runs/index.jsonl      one line a fact: which blob holds which record of which run
    runs/blobs/ab/cdef…   the records, named by their SHA-256
    runs/lock             held while a line is appended
    runs/held/RUN         held by the process that works on RUN

A blob is on disk before the line that names it. A kill at any point leaves at most an unnamed blob
or a torn last line; readers skip that line and the next writer cuts it off. The folder is made by
the first write.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.records import Candidate, Episode, Run, Verdict

_Fact = dict[str, Any]


def new_run_id(name: str) -> str:
    """Sorts by time, tells the problem, and does not repeat: 20260131-142501-softmax-3fa9."""
    short = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{short}-{secrets.token_hex(2)}"


class Store:
    """Records of runs under `root`. Several processes may read and write at once."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        self._facts: list[_Fact] = []
        self._read = 0

    # --- writing --------------------------------------------------------------------------------

    def put_run(self, run: Run) -> None:
        """Stores `run`, replacing an earlier state of the same id. Raises OutputError."""
        self._put("run", run.to_json(), run=run.id)

    def put_candidate(self, run_id: str, candidate: Candidate) -> str:
        """Returns candidate.hash. Raises OutputError."""
        self._put("candidate", candidate.to_json(), run=run_id, candidate=candidate.hash)
        return candidate.hash

    def put_verdict(self, run_id: str, verdict: Verdict, settings_key: str) -> str:
        """Returns verdict.hash. `settings_key` tells under which settings it was measured."""
        self._put(
            "verdict", verdict.to_json(), run=run_id, verdict=verdict.hash, settings=settings_key,
            problem=verdict.problem_hash, candidate=verdict.candidate_hash,
        )
        return verdict.hash

    def put_episode(self, run_id: str, episode: Episode) -> None:
        """Stores the run's episode as it now stands. Raises OutputError."""
        self._put("episode", episode.to_json(), run=run_id)

    def put_note(self, run_id: str, name: str, data: Any) -> None:
        """Any JSON value that the report of a run needs, under a name."""
        self._put("note", data, run=run_id, name=name)

    # --- reading --------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run:
        """Raises SettingsError when there is no such run, with the newest ids there are."""
        data = self._newest("run", run=run_id)
        if data is None:
            known = [run.id for run in self.runs()][-3:]
            have = f"the newest are {', '.join(known)}" if known else "it holds none"
            raise SettingsError(f"there is no run {run_id!r} in {self.root}; {have}.")
        return Run.from_json(data)

    def runs(self) -> list[Run]:
        """Every run, oldest first."""
        self._refresh()
        ids = dict.fromkeys(fact["run"] for fact in self._facts if fact["kind"] == "run")
        return [self.run(run_id) for run_id in ids]

    def candidate(self, candidate_hash: str) -> Candidate | None:
        data = self._newest("candidate", candidate=candidate_hash)
        return None if data is None else Candidate.from_json(data)

    def verdict(
        self, problem_hash: str, candidate_hash: str, settings_key: str
    ) -> Verdict | None:
        """The newest verdict of a candidate under these settings."""
        data = self._newest(
            "verdict", problem=problem_hash, candidate=candidate_hash, settings=settings_key
        )
        return None if data is None else Verdict.from_json(data)

    def verdict_by_hash(self, verdict_hash: str) -> Verdict | None:
        data = self._newest("verdict", verdict=verdict_hash)
        return None if data is None else Verdict.from_json(data)

    def verdicts(self, run_id: str) -> list[Verdict]:
        """All verdicts of a run, in the order in which they were stored."""
        self._refresh()
        facts = [f for f in self._facts if f["kind"] == "verdict" and f["run"] == run_id]
        return [Verdict.from_json(self._blob(f["blob"])) for f in facts]

    def episode(self, run_id: str) -> Episode | None:
        data = self._newest("episode", run=run_id)
        return None if data is None else Episode.from_json(data)

    def note(self, run_id: str, name: str) -> Any:
        """The newest note of that name, or None."""
        return self._newest("note", run=run_id, name=name)

    # --- locks ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self, run_id: str) -> Iterator[None]:
        """Work on a run alone. The lock dies with its process. Raises SettingsError if taken."""
        path = self.root / "held" / run_id
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        with hold_file(path, f"run {run_id}"):
            yield

    # --- files ----------------------------------------------------------------------------------

    def _put(self, kind: str, data: Any, **keys: str) -> None:
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        with self._writing():
            blob = self._write_blob(text.encode())
            self._append({"kind": kind, "blob": blob, **keys})

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputError(
                f"{self.root} cannot be written ({error.strerror or error}); what was stored "
                "before is kept."
            ) from error

    def _write_blob(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        path = self.root / "blobs" / name[:2] / name[2:]
        if path.exists():
            return name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data)
        return name

    def _append(self, fact: _Fact) -> None:
        line = json.dumps(fact, separators=(",", ":")).encode() + b"\n"
        with open(self.root / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with open(self.root / "index.jsonl", "a+b", buffering=0) as index:
                end = _whole_lines(index)
                index.truncate(end)
                try:
                    if index.write(line) != len(line):
                        raise OSError(28, "No space left on device")
                    os.fsync(index.fileno())
                except OSError:
                    index.truncate(end)
                    raise

    def _refresh(self) -> None:
        """Takes up lines appended since the last look, by anyone."""
        try:
            with open(self.root / "index.jsonl", "rb") as index:
                index.seek(self._read)
                data = index.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                if isinstance(fact, dict) and {"kind", "blob", "run"} <= set(fact):
                    self._facts.append(fact)

    def _newest(self, kind: str, **keys: str) -> Any:
        self._refresh()
        wanted: Mapping[str, str] = {"kind": kind, **keys}
        for fact in reversed(self._facts):
            if all(fact.get(key) == value for key, value in wanted.items()):
                return self._blob(fact["blob"])
        return None

    def _blob(self, name: str) -> Any:
        path = self.root / "blobs" / name[:2] / name[2:]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise OutputError(
                f"{path} is missing or unreadable ({error.strerror}), so this run cannot be read; "
                "restore the folder from a copy or start a new run."
            ) from error
        if hashlib.sha256(data).hexdigest() != name:
            raise OutputError(f"{path} does not hold what was stored there; start a new run.")
        return json.loads(data)


def _whole_lines(index: Any) -> int:
    """Length of the file up to its last newline."""
    end = index.seek(0, os.SEEK_END)
    start = end
    while start > 0:
        step = min(start, 1 << 16)
        start -= step
        index.seek(start)
        found = index.read(step).rfind(b"\n")
        if found >= 0:
            return start + found + 1
    return 0


@contextlib.contextmanager
def hold_file(path: Path, what: str) -> Iterator[None]:
    """Makes this process the only one that holds `path`, until it dies. Raises SettingsError."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"{what} is being worked on by another process; wait for it or stop it."
            ) from None
        yield


def write_file(path: Path, data: bytes) -> None:
    """The whole file or nothing, on disk on return: a temporary file beside it, then a rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
