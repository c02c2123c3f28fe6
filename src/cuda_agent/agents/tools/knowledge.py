"""todo, list_skills, read_skill: what the model notes for itself, and what it can look up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.agents.tools.base import Answer, Misuse, Tell, Tool
from cuda_agent.skills.reading import documents

_STATES = ("open", "doing", "done", "dropped")
_ITEM: Mapping[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "state": {"type": "string", "enum": list(_STATES)}},
    "required": ["text", "state"], "additionalProperties": False,
}  # fmt: skip


class Knowledge:
    def __init__(self) -> None:
        self.items: list[Mapping[str, Any]] = []

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "todo", "Your plan of work, all of it; it replaces the one before and is shown "
                "again when old turns are dropped.", self.todo,
                {"items": {"type": "array", "items": _ITEM}},
            ),
            Tool("list_skills", "The kernel skills that can be read.", self.list_skills),
            Tool(
                "read_skill", "One skill: when it applies, what it gains, pitfalls.",
                self.read_skill, {"name": {"type": "string"}},
            ),
        ]

    def todo(self, items: Sequence[Mapping[str, Any]], tell: Tell) -> Answer:
        self.items = list(items)
        return Answer(self.shown() or "nothing to do")

    def shown(self) -> str:
        return "\n".join(f"[{item['state']}] {item['text']}" for item in self.items)

    def list_skills(self, tell: Tell) -> Answer:
        return Answer("\n".join(
            f"{d.name}{' (apply_plan writes it)' if d.writes else ''}: {d.description}"
            for d in documents().values()
        ))  # fmt: skip

    def read_skill(self, name: str, tell: Tell) -> Answer:
        if name not in documents():
            raise Misuse(f"there is no skill {name[:60]!r}; there are {', '.join(documents())}")
        return Answer(documents()[name].text)
