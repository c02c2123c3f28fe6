"""A candidate's C++ under AddressSanitizer and UndefinedBehaviorSanitizer, in a run of its own.

Built with `-fsanitize` behind the same walls, loaded in place of the ordinary binary, and run once
on each input set. Python itself is not instrumented, so the sanitizer's library is loaded before
anything else; inputs and outputs then are allocations that it watches. Never in the timed path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_agent import runtime
from cuda_agent.errors import CompileFailure, ContestantFailure
from cuda_agent.evaluation import compile as building
from cuda_agent.evaluation import forms
from cuda_agent.evaluation.builder import build_behind_walls
from cuda_agent.evaluation.entrant import Entrant
from cuda_agent.evaluation.handover import Staged
from cuda_agent.evaluation.process import Pool
from cuda_agent.records import Candidate, Finding, Sanitizer
from cuda_agent.targets.base import Build

if TYPE_CHECKING:
    from cuda_agent.evaluation.judge import Judge

TOOL = "AddressSanitizer and UndefinedBehaviorSanitizer"
_SLOWER = 20  # times, for deadlines
_CAUSES = "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"
_UNDEFINED = re.compile(r"([\w.+-]+):(\d+):\d+: runtime error: (.*)")
_ADDRESS = re.compile(r"ERROR: AddressSanitizer: ([\w-]+)")
_ACCESS = re.compile(r"^(READ|WRITE) of size (\d+)", re.M)
_FRAME = re.compile(r"#\d+ 0x\w+ in (\S+).*?/?([\w.+-]+):(\d+)")


def flags() -> tuple[str, ...]:
    """Of the ordinary build, with -O1 so that line numbers hold."""
    kept = tuple(flag for flag in runtime.FLAGS["cpp"] if flag != "-O3")
    return (*kept, "-O1", "-g", "-fno-omit-frame-pointer", *_CAUSES)


def libraries() -> str:
    """The value of LD_PRELOAD, "" where the compiler has no sanitizers."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        command = [runtime.compiler("cpp"), f"-print-file-name={name}"]
        path = Path(subprocess.run(command, capture_output=True, text=True).stdout.strip())
        if not path.is_absolute() or not path.exists():
            return ""
        found.append(str(path.resolve()))
    return " ".join(found)


def sanitize(judge: Judge, candidate: Candidate) -> Sanitizer:
    """Findings of one run over the judge's input sets; `missing` where there can be none."""
    if judge.target.name != "cpu":
        tool = "compute-sanitizer"
        where = "is not on the PATH" if not shutil.which(tool) else "is not run behind the walls"
        return Sanitizer(tool, f"{tool} {where}")
    sources = forms.kernel_sources(candidate.files)
    form = forms.detect_form(candidate.files)
    if form != "native" or not sources:
        return Sanitizer(TOOL, "only C++ sources in kernels/ can be built with a sanitizer")
    if not (preload := libraries()):
        return Sanitizer(TOOL, f"{runtime.compiler('cpp')} has no libasan and libubsan")
    folder = Path(tempfile.mkdtemp(prefix="sanitized-", dir=judge.work))
    variables = {
        "LD_PRELOAD": preload, "UBSAN_OPTIONS": "print_stacktrace=0",
        "ASAN_OPTIONS": "detect_leaks=0:print_legend=0:exitcode=77:detect_odr_violation=0",
    }
    try:
        staged = _staged(judge, candidate, form, sources, folder)
        with Pool("cpu", judge.threads, None, spares=0, variables=variables) as pool:
            return Sanitizer(TOOL, "", _run(judge, pool, staged, sources))
    except CompileFailure as failure:
        return Sanitizer(TOOL, f"the sanitized build failed: {str(failure)[:200]}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _staged(
    judge: Judge, candidate: Candidate, form: forms.Form, sources: Mapping[str, str], folder: Path
) -> Staged:
    """As for any contestant, with each binary replaced by its sanitized twin."""
    seconds = judge.settings.compile_deadline_s
    build: Build = building.compile_candidate(
        candidate, form, judge.target, judge.cache, judge.pool, seconds
    )
    cache = building.stage(candidate, judge.problem, build, folder, judge.target, judge.cache)
    twins = folder / "twins"
    twins.mkdir()
    build_behind_walls(sources, judge.target, twins, judge.pool, seconds, flags())
    for name, path in build.binaries.items():
        (twin,) = (twins / "builds").glob(f"{Path(name).stem}-*.so")
        shutil.copyfile(twin, cache / "builds" / Path(path).name)
    entry = forms.entry_of(candidate.files)
    return Staged(
        folder / "candidate", entry, forms.CLASS_NAME, form, cache, folder / "problem.py"
    )


def _run(
    judge: Judge, pool: Pool, staged: Staged, sources: Mapping[str, str]
) -> tuple[Finding, ...]:
    checked = judge.draw_sets()
    deadline = _SLOWER * float(judge.settings.deadline_s or 10.0)
    entrant = Entrant(pool.fresh(), judge.target, deadline)
    try:
        judge.handover.confine(entrant.client, staged, deadline)
        for i, made in enumerate(checked):
            entrant.place_inputs(i, made.tree, made.tensors, private=True)
        entrant.place_outputs(checked[0].outputs, 1)
        judge.handover.load(entrant.client, staged, judge.reference.state(), deadline)
        for i in range(len(checked)):
            entrant.run(i)
    except ContestantFailure as failure:
        found = parse(failure.log or str(failure), sources)
        return found or (Finding(failure.status, str(failure).splitlines()[0][:200]),)
    finally:
        entrant.client.kill()
        entrant.forget()
    return ()


def parse(log: str, sources: Mapping[str, str]) -> tuple[Finding, ...]:
    """What a sanitizer said, each with the candidate's line."""
    own = {name.rpartition("/")[2]: text.splitlines() for name, text in sources.items()}
    found = []
    for file, line, said in _UNDEFINED.findall(log):
        found.append(Finding("undefined", f"{said}, {_line(file, int(line), own)}"))
    if kind := _ADDRESS.search(log):
        access = _ACCESS.search(log, kind.end())
        what = f"{kind[1]}, {access[1].lower()} of {access[2]} bytes" if access else kind[1]
        frames = _FRAME.finditer(log, kind.end())
        where = next((f for f in frames if f[2] in own), None)
        at = f" in {where[1]}, {_line(where[2], int(where[3]), own)}" if where else ""
        found.append(Finding("address", what + at))
    return tuple(dict.fromkeys(found))


def _line(file: str, number: int, own: Mapping[str, list[str]]) -> str:
    lines = own.get(file, [])
    text = f": {lines[number - 1].strip()[:120]}" if 0 < number <= len(lines) else ""
    return f"{file}:{number}{text}"
