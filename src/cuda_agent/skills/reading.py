"""Skills as texts, in the Agent Skills format: what any language model can read."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

GUIDE = "cuda-agent"
"""Name of the guide to the whole work, which lies above the skills."""


@dataclass(frozen=True)
class Document:
    """`text` is the whole SKILL.md, front matter included; `writes` whether `apply_plan` can have
    this skill write kernels."""

    name: str
    description: str
    text: str
    writes: bool


@functools.cache
def documents() -> dict[str, Document]:
    """Every skill by name, the guide first."""
    here = Path(__file__).parent
    found = [_document(here / "SKILL.md")]
    found += [_document(path) for path in sorted(here.glob("*/SKILL.md"))]
    return {document.name: document for document in found}


def _document(path: Path) -> Document:
    text = path.read_text(encoding="utf-8")
    match = re.match(r"---\n(.*?)\n---\n", text, re.S)
    fields = dict(
        line.split(": ", 1) for line in (match[1] if match else "").splitlines() if ": " in line
    )
    return Document(
        fields["name"].strip(), fields["description"].strip(), text,
        (path.parent / "skill.py").exists(),
    )
