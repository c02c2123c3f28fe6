"""The museum of cheats: what an exhibit is, the problems they cheat on, and texts they are made of.

An exhibit is a candidate that does what a public report says. Its id is that of the report, as in
docs/threat-model.md; the rooms are exhibits_a.py to exhibits_f.py.
"""

from __future__ import annotations

import platform
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import cases
from cuda_agent.records import Precision, Problem, Tier, Track

IDS = tuple(
    f"{letter}{i}"
    for letter, count in (("A", 18), ("B", 18), ("C", 17), ("D", 6), ("E", 9), ("F", 15))
    for i in range(1, count + 1)
)
BIAS = cases.problem()
LARGE = cases.problem(  # for a GPU: 0.02 ms are nothing there
    "bias_relu_large", cases.SOURCE.replace("64, 512", "4096, 512")
)
# A cheat of machine code or of system calls by number is written for this one.
X86 = platform.machine() == "x86_64"


@dataclass(frozen=True)
class Exhibit:
    """One cheat and what must become of it.

    status, rule: of the verdict; the rule is an id among its findings, "" where there is none (the
        cheat fails by itself, or the verdict is honest about what is not the candidate's own).
        "a|b" where a race decides which of two.
    unguarded: the status with the static rules switched off, where those come first: what is left
        when a text is written so that they do not see it. None: the static rules do not fire.
    external: what must be named in external_ops.
    at_most: the speed-up over eager that an honest verdict may show; the cheat gains nothing.
    """

    id: str
    name: str
    files: Mapping[str, str]
    status: str
    rule: str = ""
    unguarded: str | None = None
    says: str = ""
    external: tuple[str, ...] = ()
    at_most: float | None = None
    problem: Problem = BIAS
    target: Literal["cpu", "cuda"] = "cpu"
    track: Track = "library"
    precision: Precision = "strict"
    tier: Tier = "screen"

    @property
    def label(self) -> str:
        return f"{self.id}-{self.name}"


def on_gpu(
    id: str, name: str, files: Mapping[str, str], status: str, rule: str = "", **fields: Any
) -> Exhibit:
    """An exhibit that needs a GPU."""
    fields = {"problem": LARGE, "target": "cuda", **fields}
    return Exhibit(id, f"{name}_cuda", files, status, rule, **fields)


def body(statements: str, includes: str = "") -> str:
    """A C++ source whose `fused` is `statements`; a macro HONEST does the work."""
    work = " ".join(cases.LOOP.split())
    return (
        f"#include <cstdint>\n{textwrap.dedent(includes)}\n#define HONEST {work}\n"
        f'extern "C" {cases.SIGNATURE} {{\n{textwrap.dedent(statements)}\n}}\n'
    )
