"""A tool: a name, a sentence, a JSON schema, and what it does. The same for every policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cuda_agent.errors import CandidateError

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,),
    "array": (list,), "object": (dict,),
}


class Misuse(CandidateError):
    """A call that cannot be carried out; one sentence that tells the model how to mend it."""


@dataclass(frozen=True)
class Answer:
    """What a call led to. `text` is what the model reads.

    `status` is "ok", "error" for a call that could not be carried out, or the verdict's; hashes
    where a candidate was judged. `final`: the model has ended its work.
    """

    text: str
    status: str = "ok"
    candidate_hash: str | None = None
    verdict_hash: str | None = None
    final: bool = False


Tell = Callable[[str], None]


@dataclass(frozen=True)
class Tool:
    """`properties` are JSON schemas by argument; all but `optional` must be given.

    `run` gets checked arguments by name, and `tell`, which passes on output while it comes.
    """

    name: str
    description: str
    run: Callable[..., Answer]
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    optional: tuple[str, ...] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return {
            "type": "object", "properties": {k: dict(v) for k, v in self.properties.items()},
            "required": [n for n in self.properties if n not in self.optional],
            "additionalProperties": False,
        }

    def check(self, arguments: Any) -> dict[str, Any]:
        """The arguments, if they fit. Raises Misuse."""
        if not isinstance(arguments, dict):
            raise Misuse(f"{self.name} takes an object of arguments: {self.usage()}")
        for name in arguments:
            if name not in self.properties:
                raise Misuse(f"{self.name} has no argument {str(name)[:60]!r}: {self.usage()}")
        for name, schema in self.properties.items():
            if name in arguments:
                _check(f"{self.name}: {name}", arguments[name], schema)
            elif name not in self.optional:
                raise Misuse(f"{self.name} needs {name!r}: {self.usage()}")
        return arguments

    def usage(self) -> str:
        """E.g. "read(path: string, offset: integer?)"."""
        parts = [
            f"{n}: {s['type']}{'?' if n in self.optional else ''}"
            for n, s in self.properties.items()
        ]
        return f"{self.name}({', '.join(parts)})"


def _check(what: str, value: Any, schema: Mapping[str, Any]) -> None:
    kind = schema["type"]
    right: bool = isinstance(value, _TYPES[kind])
    if not right or (isinstance(value, bool) and kind != "boolean"):
        raise Misuse(f"{what} must be of type {kind}, not {type(value).__name__}")
    if kind == "string" and any("\ud800" <= character <= "\udfff" for character in value):
        raise Misuse(f"{what} holds characters that are not Unicode")
    if "enum" in schema and value not in schema["enum"]:
        raise Misuse(f"{what} must be one of {', '.join(schema['enum'])}")
    if "minimum" in schema and value < schema["minimum"]:
        raise Misuse(f"{what} must be at least {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        raise Misuse(f"{what} must be at most {schema['maximum']}")
    if kind == "array":
        for index, item in enumerate(value):
            _check(f"{what}[{index}]", item, schema["items"])
    if kind == "object" and "properties" in schema:
        for name, inner in schema["properties"].items():
            if name in value:
                _check(f"{what}.{name}", value[name], inner)
            elif name in schema.get("required", ()):
                raise Misuse(f"{what} needs {name!r}")
