"""read, write, edit, multi_edit, glob: files of the work folder."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.agents.tools.base import Answer, Misuse, Tell, Tool
from cuda_agent.agents.tools.folder import Folder, PathRefused
from cuda_agent.records import content_hash

MAX_LINES = 2000
MAX_SHOWN = 20_000
"""Characters that one reading shows at most; the rest is read with an offset."""

_LONG_LINE = 2000
_PATH = {"type": "string", "description": "inside the work folder"}
_OLD = {"type": "string", "description": "exact text, with its indentation"}
_NEW = {"type": "string", "description": "what takes its place"}
_ALL = {"type": "boolean", "description": "replace every occurrence; default: there must be one"}
_EDIT = {
    "type": "object", "properties": {"old": _OLD, "new": _NEW, "all": _ALL},
    "required": ["old", "new"], "additionalProperties": False,
}  # fmt: skip


class Files:
    """A file that exists is overwritten or edited only as the model last saw it: what a command
    has changed meanwhile must be read first. `frozen` files are never written."""

    def __init__(self, folder: Folder, frozen: Sequence[str]) -> None:
        self.folder = folder
        self.frozen = tuple(frozen)
        self._seen: dict[str, str] = {}  # path: hash of the text as read or written

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "read", f"A text file with line numbers, {MAX_LINES} lines at most.", self.read,
                {
                    "path": _PATH,
                    "offset": {"type": "integer", "minimum": 1, "description": "first line"},
                    "lines": {"type": "integer", "minimum": 1, "maximum": MAX_LINES},
                },
                ("offset", "lines"),
            ),
            Tool(
                "write", "Make a file, or overwrite one that was read before.", self.write,
                {"path": _PATH, "text": {"type": "string", "description": "the whole file"}},
            ),
            Tool(
                "edit", "Replace a text that occurs once in a file.", self.edit,
                {"path": _PATH, "old": _OLD, "new": _NEW, "all": _ALL}, ("all",),
            ),
            Tool(
                "multi_edit", "Several edits of one file, in order: all of them or none.",
                self.multi_edit, {"path": _PATH, "edits": {"type": "array", "items": _EDIT}},
            ),
            Tool(
                "glob", "Names of files that match, e.g. kernels/*.cu or **/*.md.", self.glob,
                {"pattern": {"type": "string"}},
            ),
        ]

    def read(self, path: str, tell: Tell, offset: int = 1, lines: int = MAX_LINES) -> Answer:
        text = self.folder.text(path)
        self._remember(path, text)
        every = text.splitlines()
        shown = every[offset - 1 : offset - 1 + lines]
        if not shown:
            return Answer(f"{path} has {len(every)} lines, none from {offset} on")
        numbered, size = [], 0
        for number, line in enumerate(shown, offset):
            cut = line[:_LONG_LINE] + (" [line cut]" if len(line) > _LONG_LINE else "")
            numbered.append(f"{number:5d}  {cut}")
            size += len(numbered[-1]) + 1
            if size > MAX_SHOWN:
                break
        left = len(every) - (offset - 1 + len(numbered))
        if left > 0:
            numbered.append(f"({left} more lines, from offset {offset + len(numbered)})")
        return Answer("\n".join(numbered))

    def write(self, path: str, text: str, tell: Tell) -> Answer:
        self._refuse_frozen(path)
        if self.folder.exists(path):
            self._current(path)
        self._put(path, text)
        return Answer(f"wrote {path}, {len(text.splitlines())} lines")

    def edit(self, path: str, old: str, new: str, tell: Tell, all: bool = False) -> Answer:
        return self.multi_edit(path, [{"old": old, "new": new, "all": all}], tell)

    def multi_edit(self, path: str, edits: Sequence[Mapping[str, Any]], tell: Tell) -> Answer:
        self._refuse_frozen(path)
        if not edits:
            raise Misuse("multi_edit: there is no edit in the list")
        text = self._current(path)
        count = 0
        for number, edit in enumerate(edits, 1):
            which = f"edit {number} of {len(edits)}: " if len(edits) > 1 else ""
            found = text.count(edit["old"]) if edit["old"] else 0
            if not edit["old"]:
                raise Misuse(f"{which}'old' is empty; use write for a new file")
            if found == 0:
                raise Misuse(f"{which}'old' does not occur in {path}; nothing was changed")
            if found > 1 and not edit.get("all", False):
                raise Misuse(
                    f"{which}'old' occurs {found} times in {path}; give more of its surroundings, "
                    "or all=true; nothing was changed"
                )
            text = text.replace(edit["old"], edit["new"])
            count += found
        self._put(path, text)
        return Answer(f"changed {path} in {count} place{'s' if count > 1 else ''}")

    def glob(self, pattern: str, tell: Tell) -> Answer:
        return Answer("\n".join(self.folder.glob(pattern)) or "no file matches")

    # --- what was seen --------------------------------------------------------------------------

    def take_note(self, path: str) -> None:
        """The model knows this file's present text, e.g. because a tool wrote it for it. Nothing
        where there is none."""
        with contextlib.suppress(PathRefused, FileNotFoundError):
            self._remember(path, self.folder.text(path))

    def _remember(self, path: str, text: str) -> None:
        self._seen[self.folder.clean(path)] = content_hash(text)

    def _current(self, path: str) -> str:
        text = self.folder.text(path)
        seen = self._seen.get(self.folder.clean(path))
        if seen is None:
            raise Misuse(f"{path} exists; read it before you change it")
        if seen != content_hash(text):
            raise Misuse(f"{path} has changed since you read it; read it again")
        return text

    def _put(self, path: str, text: str) -> None:
        self.folder.write(path, text)
        self._remember(path, text)

    def _refuse_frozen(self, path: str) -> None:
        clean = self.folder.clean(path)
        for frozen in self.frozen:
            if clean == frozen or clean.startswith(f"{frozen}/"):
                raise Misuse(f"{path} is read-only; write model_new.py and files in kernels/")
