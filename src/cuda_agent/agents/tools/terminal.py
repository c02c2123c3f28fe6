"""bash and grep, in the shell behind walls."""

from __future__ import annotations

import shlex
from typing import Any

from cuda_agent.agents.tools.base import Answer, Misuse, Tell, Tool
from cuda_agent.agents.tools.shell import SCRATCH, Shell, ShellUnavailable

DEFAULT_S, MAX_S = 120, 600
_GREP_S = 20


class Terminal:
    """One shell for the whole episode."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def tools(self) -> list[Tool]:
        """Empty where the kernel lacks a wall."""
        try:
            self.shell.run("true")
        except ShellUnavailable:
            return []
        number: dict[str, Any] = {"type": "integer", "minimum": 1}
        return [
            Tool(
                "bash",
                "Run a command in a lasting bash, in the work folder; no network, and nothing "
                "outside the folder can be written. With background=true it becomes a job: see "
                "what it printed since with job=N, end it with job=N and kill=true.",
                self.bash,
                {
                    "command": {"type": "string"},
                    "timeout_s": {
                        "type": "number", "minimum": 0.1, "maximum": MAX_S,
                        "description": f"default {DEFAULT_S}; then the shell is ended",
                    },
                    "background": {"type": "boolean"}, "job": number, "kill": {"type": "boolean"},
                },
                ("command", "timeout_s", "background", "job", "kill"),
            ),
            Tool(
                "grep", "Lines that match an extended regular expression, with file and number.",
                self.grep,
                {
                    "pattern": {"type": "string"},
                    "path": {"type": "string", "description": "file or folder; default: all"},
                    "ignore_case": {"type": "boolean"},
                },
                ("path", "ignore_case"),
            ),
        ]

    def bash(
        self, tell: Tell, command: str | None = None, timeout_s: float = DEFAULT_S,
        background: bool = False, job: int | None = None, kill: bool = False,
    ) -> Answer:
        if (command is None) == (job is None):
            raise Misuse("bash takes a command, or the number of a job")
        if job is not None:
            return self._job(job, kill)
        assert command is not None
        if background:
            number = self.shell.start(command)
            return Answer(f"job {number} runs in the background; bash(job={number}) shows it")
        ran = self.shell.run(command, timeout_s, tell)
        parts = [ran.text.rstrip("\n"), ran.note and f"({ran.note})"]
        if ran.code:
            parts.append(f"(exit status {ran.code})")
        return Answer("\n".join(p for p in parts if p) or "(no output)")

    def _job(self, job: int, kill: bool) -> Answer:
        try:
            if kill:
                self.shell.kill(job)
            text, state = self.shell.look(job)
        except KeyError:
            raise Misuse(f"there is no job {job}") from None
        said = "killed" if kill else state
        return Answer(f"{text.rstrip()}\n(job {job}: {said})".lstrip("\n"))

    def grep(
        self, pattern: str, tell: Tell, path: str = ".", ignore_case: bool = False
    ) -> Answer:
        clean = self.shell.folder.clean(path)
        words = ["command", "grep", "-rnIE", "-m", "200", f"--exclude-dir={SCRATCH}"]
        words += ["-i"] if ignore_case else []
        # In a shell of its own state: the folder may be another one by now.
        place = [] if clean == "." else [clean]
        root = shlex.quote(str(self.shell.folder.root))
        ran = self.shell.run(
            f"(cd {root} && {shlex.join([*words, '-e', pattern, '--', *place])})", _GREP_S
        )
        if ran.code not in (0, 1) or ran.note:
            raise Misuse(f"grep: {(ran.text or ran.note).strip()[:300]}")
        return Answer(ran.text.rstrip("\n") or "no line matches")
