"""Just enough of a C preprocessor to read the names that macros export."""

from __future__ import annotations

import re
from dataclasses import dataclass

_DEFINE = re.compile(r"#\s*define\s+(\w+)(\(([^()]*)\))?(.*)")
_ROUNDS = 4
_LONGEST = 1 << 20  # characters: macros of macros grow without bound


@dataclass(frozen=True)
class Macro:
    """`parameters` is None for one without parentheses."""

    name: str
    parameters: tuple[str, ...] | None
    body: str

    def expand(self, code: str) -> str:
        if self.parameters is None:
            return re.sub(rf"\b{self.name}\b", lambda _: self.body, code)
        pattern = rf"\b{self.name}\s*\(((?:[^()]|\([^()]*\))*)\)"
        return re.sub(pattern, lambda match: self._given(match[1]), code)

    def _given(self, text: str) -> str:
        values = [v.strip() for v in re.split(r",(?![^()]*\))", text)]
        names = self.parameters or ()
        if names and names[-1] == "...":
            names = (*names[:-1], "__VA_ARGS__")
            values[len(names) - 1:] = [", ".join(values[len(names) - 1:])]
        known = dict(zip(names, values))
        body = re.sub(r"\w+", lambda word: known.get(word[0], word[0]), self.body)
        return re.sub(r"\s*##\s*", "", body)


def expanded(code: str) -> str:
    """`code` (without comments) with its own macros expanded and its directives taken out."""
    joined = re.sub(r"\\\n", " ", code)
    macros = [
        Macro(
            found[1],
            tuple(p.strip() for p in found[3].split(",")) if found[2] is not None else None,
            found[4].strip(),
        )
        for found in map(_DEFINE.match, map(str.strip, joined.splitlines())) if found
    ]
    text = re.sub(r"^[ \t]*#[^\n]*", "", joined, flags=re.M)
    for _ in range(_ROUNDS):
        before = text
        for macro in macros:
            text = macro.expand(text)
            if len(text) > _LONGEST:
                return before
        if text == before:
            break
    return text
