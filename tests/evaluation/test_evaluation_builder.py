"""Compilers of foreign sources: behind walls, within a time, and one cause for each failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import cases
from cuda_agent import targets
from cuda_agent.errors import CompileFailure
from cuda_agent.evaluation import Judge, Pool, builder, sandbox

pytestmark = pytest.mark.compiler

GOOD = 'extern "C" int answer() { return 42; }\n'
# Every instance makes two more: no compiler ends.
ENDLESS = """
template <long N, int M> struct Bomb {
    static constexpr long value = Bomb<2 * N, M - 1>::value + Bomb<2 * N + 1, M - 1>::value;
};
template <long N> struct Bomb<N, 0> { static constexpr long value = N; };
extern "C" long answer() { return Bomb<1, 26>::value; }
"""


@pytest.fixture
def compile_foreign(pool: Pool, tmp_path: Path) -> Iterator[Callable[..., builder.Build]]:
    def call(text: str, seconds: float = 60.0) -> builder.Build:
        return builder.compile_foreign(
            {"answer.cpp": text}, targets.get("cpu"), tmp_path, pool, seconds
        )

    yield call
    assert not [p for p in (tmp_path / "builds").iterdir() if p.name.startswith(".")]


def test_the_binary_lies_in_the_cache_and_is_found_again(
    compile_foreign: Callable[..., builder.Build], tmp_path: Path
) -> None:
    first = compile_foreign(GOOD)
    (path,) = map(Path, first.binaries.values())
    assert path.parent == tmp_path / "builds" and path.exists() and not first.cached
    again = compile_foreign(GOOD)
    assert again.cached and again.binaries == first.binaries


def test_an_error_is_the_compilers_own(compile_foreign: Callable[..., builder.Build]) -> None:
    with pytest.raises(CompileFailure, match=r"not declared|undeclared") as failure:
        compile_foreign(GOOD.replace("42", "fortytwo"))
    assert "answer.cpp" in failure.value.log


def test_a_compiler_that_does_not_end_is_stopped(
    compile_foreign: Callable[..., builder.Build]
) -> None:
    start = time.monotonic()
    with pytest.raises(CompileFailure, match=r"compiler (was stopped after 3 s|failed)"):
        compile_foreign(ENDLESS, 3.0)
    assert time.monotonic() - start < 20
    assert compile_foreign(GOOD).binaries


@pytest.mark.skipif(
    not sandbox.probe()["Landlock"].startswith("works"), reason="no Landlock in this kernel"
)
@pytest.mark.parametrize(
    "text", ['#include "{}"\n', 'asm(".incbin \\"{}\\"");\n'], ids=["include", "incbin"]
)
def test_a_source_cannot_read_files_of_whoever_judges(
    compile_foreign: Callable[..., builder.Build], tmp_path: Path, text: str
) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("// hunter2\nconstexpr int hunter2 = bad;\n")
    with pytest.raises(CompileFailure) as failure:
        compile_foreign(text.format(secret) + GOOD)
    assert "hunter2" not in failure.value.log and "hunter2" not in str(failure.value)


def test_the_verdict_of_an_endless_compilation(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem(), compile_deadline_s=3.0)
    files = cases.native(kernel=ENDLESS + cases.KERNEL)
    verdict = judge.judge(cases.candidate(files, judge.problem))
    assert verdict.status == "compile_error" and "compiler" in verdict.feedback
    assert judge.judge(cases.candidate(cases.native(), judge.problem)).ok
