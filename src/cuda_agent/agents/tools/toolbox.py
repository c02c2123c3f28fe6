"""All tools of one episode on one work folder: a call in, an answer out, whatever the call."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cuda_agent.agents.tools.base import Answer, Misuse, Tell, Tool
from cuda_agent.agents.tools.files import Files
from cuda_agent.agents.tools.folder import Folder, PathRefused
from cuda_agent.agents.tools.judging import Bench, Judging
from cuda_agent.agents.tools.knowledge import Knowledge
from cuda_agent.agents.tools.shell import Shell, ShellUnavailable
from cuda_agent.agents.tools.terminal import Terminal
from cuda_agent.agents.tools.workfolder import FROZEN, restore
from cuda_agent.errors import UserError

HEAD, TAIL = 5000, 3000
"""Of a long answer, so many characters are shown; all of it lies in a file."""

OUTPUTS = "outputs"


class Toolbox:
    """`root` is a folder made by workfolder.prepare. `call` raises nothing that a model caused."""

    def __init__(self, root: Path, bench: Bench, author: str, threads: int = 1) -> None:
        self.folder = Folder(root)
        self.bench = bench
        present = [n for n in FROZEN if (self.folder.root / n).exists()]
        self.shell = Shell(self.folder, [str(self.folder.root / n) for n in present], threads)
        bench.shells.append(self.shell)
        self.files = Files(self.folder, FROZEN)
        self.knowledge = Knowledge()
        self.judging = Judging(bench, self.folder, self.files, author)
        found = [
            *Terminal(self.shell).tools(), *self.files.tools(), *self.knowledge.tools(),
            *self.judging.tools(),
        ]
        self.tools: dict[str, Tool] = {tool.name: tool for tool in found}

    def call(self, name: str, arguments: Any, tell: Tell = lambda text: None) -> Answer:
        """`tell` gets a command's output while it comes."""
        try:
            if name not in self.tools:
                raise Misuse(f"there is no tool {name[:60]!r}; there are {', '.join(self.tools)}")
            tool = self.tools[name]
            checked = tool.check(arguments)
            restore(self.folder, self.bench)
            answer = tool.run(**checked, tell=tell)
        except (UserError, ShellUnavailable, FileNotFoundError) as error:
            answer = Answer(str(error), "error")
        except OSError as error:  # a full disk, a name that is too long
            answer = Answer(f"{name} failed: {error.strerror or error}", "error")
        except (RecursionError, MemoryError) as error:  # folders within folders without end
            answer = Answer(f"{name} failed: {type(error).__name__}", "error")
        return self._cut(name, answer)

    def _cut(self, name: str, answer: Answer) -> Answer:
        text = answer.text
        if len(text) <= HEAD + TAIL or name in ("read", "read_skill"):  # these limit themselves
            return answer
        where = self._keep(name, text)
        left = len(text) - HEAD - TAIL
        cut = f"{text[:HEAD]}\n[... {left} characters left out; all of it: {where} ...]\n"
        return Answer(
            cut + text[-TAIL:], answer.status, answer.candidate_hash, answer.verdict_hash,
            answer.final,
        )

    def _keep(self, name: str, text: str) -> str:
        path = f"{OUTPUTS}/{len(self.folder.glob(f'{OUTPUTS}/*')) + 1:03d}-{name[:20]}.txt"
        try:
            self.folder.write(path, text)
        except (PathRefused, OSError, UnicodeEncodeError):
            return "could not be written"
        return path

    def recall(self, calls: Iterable[tuple[str, Any]]) -> None:
        """Takes up what an episode that goes on had seen and noted: its calls that succeeded."""
        for name, arguments in calls:
            if name == "todo":
                self.knowledge.items = arguments["items"]
            elif name in ("read", "write", "edit", "multi_edit"):
                self.files.take_note(arguments["path"])
            elif name == "apply_plan":
                for path in ("model_new.py", *self.folder.glob("kernels/**")):
                    self.files.take_note(path)

    def schemas(self) -> list[dict[str, Any]]:
        """As chat endpoints take them."""
        return [
            {
                "type": "function",
                "function": {
                    "name": t.name, "description": t.description, "parameters": t.parameters,
                },
            }
            for t in self.tools.values()
        ]

    def manual(self) -> str:
        """The tools as a text, for models that take none."""
        return "\n".join(
            f"- {t.usage()}\n  {t.description}\n  {json.dumps(t.parameters['properties'])}"
            for t in self.tools.values()
        )

    def close(self) -> None:
        self.bench.shells.remove(self.shell)
        self.shell.close()
