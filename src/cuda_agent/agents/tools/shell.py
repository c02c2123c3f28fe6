"""A bash that lives behind walls and lasts: folder, variables and functions stay from one command
to the next. No network, no file outside the work folder can be written, no other process is seen.

Walls: those around candidates (evaluation/sandbox.py), without exception: where the kernel lacks
one there is no shell. A command that overruns its time, or prints without end, ends the whole
shell with all that it started; the next command gets a new one.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_agent.agents.tools.folder import Folder, PathRefused
from cuda_agent.errors import CudaAgentError
from cuda_agent.evaluation.process import child_environment

SCRATCH = ".scratch"
MAX_OUTPUT = 16 << 20  # characters that one command may print
MIN_FREE = 1 << 30
"""Bytes of disk that a command must leave free."""

_MAX_LINE = 4 << 20
_ANSWER_S = 20.0
# What bash may do to a terminal that shows it is taken off: control sequences and characters.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)|[^\S\n\t ]|"
                      r"[\x00-\x08\x0e-\x1f\x7f-\x9f]")  # fmt: skip

OnOutput = Callable[[str], None]


class ShellUnavailable(CudaAgentError):
    """No shell can be offered here: the sentence says which wall is missing."""


class _Gone(Exception):
    """The other side has ended."""


class _Full(Exception):
    """The disk is nearly full."""


@dataclass(frozen=True)
class Ran:
    """`code` is None where the command was stopped, and `note` then says why."""

    text: str
    code: int | None
    seconds: float
    note: str = ""


class Shell:
    """`protected`: absolute paths inside the folder that stay as they are. One caller at a time;
    `halted` and `close` from any thread."""

    def __init__(self, folder: Folder, protected: Sequence[str] = (), threads: int = 1) -> None:
        self.folder = folder
        self._protected = [*protected]
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._heard: collections.deque[dict[str, Any]] = collections.deque()
        self._news = threading.Condition()
        self._held = 0  # characters in `_heard`
        self._halted = self._gone = False
        self._paused_s = 0.0
        self._number = 0
        self._read: dict[int, int] = {}  # job: bytes that were shown

    def run(self, command: str, timeout_s: float = 120.0, tell: OnOutput | None = None) -> Ran:
        """Waits for the end of `command`. Raises ShellUnavailable."""
        start = time.monotonic()
        self._number += 1
        number, parts, total = self._number, [], 0
        code, note = None, ""
        try:
            self._send({"run": number, "text": command})
            for event in self._events(start + timeout_s):
                if isinstance(said := event.get("out"), str):
                    said = _CONTROL.sub("", said)
                    parts.append(said)
                    total += len(said)
                    if tell is not None:
                        tell(said)
                    if total > MAX_OUTPUT:
                        note = f"stopped: it printed more than {MAX_OUTPUT >> 20} MiB"
                        break
                elif event.get("end") == number:
                    code = _integer(event.get("code"))
                    break
                elif "died" in event:
                    code, note = _integer(event["died"]), "the shell itself ended"
                    break
            else:
                note = f"stopped after {timeout_s:g} s"
        except _Gone:
            note = "the shell was ended"
        except _Full:
            note = f"stopped: less than {MIN_FREE >> 20} MiB of disk are left; remove what is large"
        if note:
            self.close()
            note += "; all that it had started is ended too, and the next command gets a new shell"
        return Ran("".join(parts), code, time.monotonic() - start, note)

    # --- jobs in the background -----------------------------------------------------------------

    def start(self, command: str) -> int:
        """Its number. Raises ShellUnavailable."""
        self._number += 1
        number = self._number
        try:
            self._send({"job": number, "text": command})
            for event in self._events(time.monotonic() + _ANSWER_S):
                if event.get("started") == number:
                    self._read[number] = 0
                    return number
        except (_Gone, _Full):
            pass
        self.close()
        raise ShellUnavailable("the shell did not start the job and was ended; try again")

    def look(self, job: int, limit: int = 1 << 20) -> tuple[str, str]:
        """(what it printed since the last look, "running", "ended" or "ended with status n").

        Raises KeyError for a job that this shell did not start.
        """
        seen, text, state = self._read[job], "", "running"
        with contextlib.suppress(PathRefused, FileNotFoundError):
            data = self.folder.read(f"{SCRATCH}/jobs/{job}.out", limit, seen)
            self._read[job] = seen + len(data)
            text = _CONTROL.sub("", data.decode(errors="replace"))
        with contextlib.suppress(PathRefused, FileNotFoundError):
            code = self.folder.read(f"{SCRATCH}/jobs/{job}.code", 16).decode(errors="replace")
            state = f"ended with status {code.strip()}" if code.strip().isdigit() else "ended"
        if state == "running" and not self.alive:
            state = "ended with its shell"
        return text, state

    def kill(self, job: int) -> None:
        """End a job with what it started in its group. Raises KeyError."""
        _ = self._read[job]
        with contextlib.suppress(_Gone):
            self._send({"kill": job})

    # --- life -----------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def halted(self) -> Iterator[None]:
        """Nothing that the shell started runs meanwhile: no job may slow what is timed. A shell
        that cannot be halted is ended."""
        if not self.alive:
            yield
            return
        start = time.monotonic()
        self._halt(True)
        try:
            yield
        finally:
            self._paused_s += time.monotonic() - start  # not charged to a command
            if self.alive:
                self._halt(False)

    def _halt(self, halt: bool) -> None:
        with contextlib.suppress(_Gone):
            self._send({"halt": halt})
            with self._news:
                self._news.wait_for(lambda: self._halted is halt or self._gone, _ANSWER_S)
                if self._halted is halt:
                    return
        self.close()

    def close(self) -> None:
        """End the shell and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()  # the outer process then ends the inside, and waits for it
        try:
            process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _ensure(self) -> subprocess.Popen[bytes]:
        if self.alive:
            assert self._process is not None
            return self._process
        self.close()
        scratch = self.folder.root / SCRATCH
        try:
            self.folder.make_folder(f"{SCRATCH}/jobs")
        except PathRefused:  # a command has put a link in its place
            with contextlib.suppress(OSError):
                self.folder.remove(SCRATCH)
            raise ShellUnavailable(f"{SCRATCH} was no folder; try again") from None
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        environment = {
            **child_environment(self._threads), "PATH": path, "HOME": str(scratch),
            "TMPDIR": str(scratch), "XDG_CACHE_HOME": str(scratch), "LANG": "C.UTF-8",
            "TERM": "dumb",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cuda_agent.agents.tools.inside",
             str(self.folder.root), *self._protected],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment, cwd="/", start_new_session=True,
        )  # fmt: skip
        self._heard.clear()
        self._held, self._halted, self._gone = 0, False, False
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        with contextlib.suppress(_Gone, _Full):
            for event in self._events(time.monotonic() + _ANSWER_S):
                if event.get("ready"):
                    return self._process
                if "refused" in event:
                    self.close()
                    raise ShellUnavailable(f"no shell here: {str(event['refused'])[:300]}")
        self.close()
        raise ShellUnavailable("no shell here: its walls could not be built")

    # --- messages -------------------------------------------------------------------------------

    def _send(self, message: Mapping[str, object]) -> None:
        pipe = self._ensure().stdin
        assert pipe is not None
        try:
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()
        except OSError:
            raise _Gone from None

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Takes in what one process says, until its end; nobody need be waiting."""
        assert process.stdout is not None
        while line := process.stdout.readline(_MAX_LINE):
            try:
                event = json.loads(line)
            except ValueError:
                continue
            with self._news:
                if self._process is not process or not isinstance(event, dict):
                    continue
                if isinstance(event.get("halted"), bool):
                    self._halted = event["halted"]
                elif self._held <= MAX_OUTPUT or "out" not in event:  # more is not kept
                    self._held += len(str(event.get("out", "")))
                    self._heard.append(event)
                self._news.notify_all()
        process.stdout.close()
        with self._news:
            self._gone = self._gone or self._process in (process, None)
            self._news.notify_all()

    def _events(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Messages until the deadline, which waits while the shell is halted. Raises _Gone at the
        end of the other side."""
        before = self._paused_s
        while True:
            with self._news:
                while not self._heard:
                    left = deadline + self._paused_s - before - time.monotonic()
                    if self._gone or self._process is None:
                        raise _Gone
                    if left <= 0 and not self._halted:
                        return
                    self._news.wait(max(0.02, min(left, 0.5)))
                    if shutil.disk_usage(self.folder.root).free < MIN_FREE:
                        raise _Full
                event = self._heard.popleft()
                self._held -= len(str(event.get("out", "")))
            yield event


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None
