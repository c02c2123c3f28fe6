"""Before anything runs: what the text of a candidate gives away. After: what its numbers do.

Every rule has an id of docs/threat-model.md. A rule fires on a construct that has no honest use in
a kernel's host code, never on a word: strings, comments and defensive code are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuda_agent.evaluation import forms
from cuda_agent.evaluation.guard import native, python
from cuda_agent.evaluation.guard.sources import Sources
from cuda_agent.records import Candidate, Finding, Problem, Track

# What a grader lives by. A candidate's folder comes last on the path, so that nothing is shadowed
# in fact; a helper called profile.py or queue.py has no such intention.
_SHADOWING = {
    "torch", "numpy", "triton", "cuda", "cuda_agent", "sitecustomize", "usercustomize", "builtins",
    "time", "timeit", "datetime", "sys", "os", "io", "gc", "random", "secrets", "socket", "select",
    "struct", "json", "pickle", "ctypes", "subprocess", "threading", "multiprocessing", "importlib",
    "inspect", "traceback", "statistics", "tempfile", "signal", "resource", "hashlib", "math",
    "pathlib", "shutil", "contextlib", "functools", "collections", "dataclasses", "typing", "types",
}
# What the paper's rule lets a library do, and operators that move or fill data but compute nothing.
_LIBRARY_OPS = re.compile(
    r"aten\.(mm|bmm|addmm|baddbmm|convolution|_convolution|cudnn_convolution\w*|"
    r"mkldnn_convolution|copy_|_to_copy|clone|zero_|fill_|zeros|zeros_like|ones|ones_like|full|"
    r"full_like|new_zeros|new_full|new_ones|arange|scalar_tensor|cat|stack|_pin_memory|"
    r"constant_pad_nd|lift|record_stream)$"
)


@dataclass
class Review:
    """`findings` make the verdict `cheating`; `external` is not the candidate's own work."""

    findings: list[Finding] = field(default_factory=list)
    external: list[str] = field(default_factory=list)


def review(candidate: Candidate, problem: Problem, track: Track) -> Review:
    """Static rules over every file that is not a verbatim copy of our runtime or the problem."""
    found = Review()
    foreign = forms.foreign_python(candidate, problem)
    trees: dict[str, ast.Module] = {}
    for name, text in foreign.items():
        try:
            trees[name] = forms.parse_python(name, text)
        except (SyntaxError, ValueError, RecursionError):
            continue  # a compile error, reported as such
    sources = Sources(trees, problem.source)
    for name in trees:
        seen = python.inspect(name, sources, track)
        found.findings += seen.findings
        found.external += seen.external
    kernels = forms.kernel_sources(candidate.files)
    for name, text in candidate.files.items():
        if name.endswith(forms.KERNEL_SUFFIXES):
            found.findings += native.inspect(name, text, track)
            found.external += native.external(text)
    found.findings += _shadowing(candidate.files)
    found.findings += _decoy(kernels, foreign)
    found.external = sorted(set(found.external))
    return found


def _shadowing(files: Mapping[str, str]) -> list[Finding]:
    names = {name.partition("/")[0].removesuffix(".py") for name in files if name.endswith(".py")}
    bad = sorted(names & _SHADOWING)
    return [Finding("C12", f"{name}.py would shadow the module {name}") for name in bad]


def _decoy(kernels: Mapping[str, str], foreign: Mapping[str, str]) -> list[Finding]:
    """Kernels that no line of Python names are never launched."""
    exported = native.exported(kernels)
    text = "\n".join(foreign.values())
    if re.search(r"getattr\(|getattr__\(|attrgetter\(|methodcaller\(", text):  # put together
        return []
    if exported and not any(_named(name, text) for name in exported):
        names = ", ".join(sorted(exported)[:4])
        return [Finding("E2", f"no Python file calls any of the candidate's kernels ({names})")]
    return []


def _named(name: str, text: str) -> bool:
    """In full, or begun in a text that goes on with something else: `kernels[f"fused_{kind}"]`."""
    if re.search(rf"\b{re.escape(name)}\b", text):
        return True
    begun = re.findall(r"\[\s*f?[\"'](\w{3,})[{\"'%]", text)
    return any(name.startswith(start) for start in begun)


def operators(ops: Sequence[str], track: Track) -> list[Finding]:
    """After a recorded forward: under the kernels track only library products, convolutions and
    data movement may be torch's."""
    if track != "kernels":
        return []
    computing = [op for op in ops if not _LIBRARY_OPS.match(op)]
    return [
        Finding("E1", f"forward computes with {op}; the kernels track wants a kernel of its own")
        for op in computing
    ]
