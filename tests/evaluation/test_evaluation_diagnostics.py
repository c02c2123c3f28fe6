"""What compilers say, as they say it, and the first cause that is made of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cases
from cuda_agent import runtime
from cuda_agent.evaluation import Judge, diagnostics

CPP = """#include <vector>
#include <algorithm>
struct S {};
extern "C" void fused(float* y) {
\tstd::vector<S> v(3);
\tstd::sort(v.begin(), v.end()); y[0] = missing;
}
"""
CU = """#include "part.cuh"
extern "C" __global__ void fused(const float* x, float* y) {
    y[threadIdx.x] = x[0] + missing;
}
"""
PART = "__device__ float twice(float x) { return 2 * x }\n"
SOURCES = {"kernels/fused.cpp": CPP, "kernels/fused.cu": CU, "kernels/part.cuh": PART}

GXX = """fused.cpp: In function 'void fused(float*)':
fused.cpp:6:47: error: 'missing' was not declared in this scope
    6 |         std::sort(v.begin(), v.end()); y[0] = missing;
      |                                               ^~~~~~~
fused.cpp:7:1: error: expected something else
"""
GXX_TEMPLATE = """In file included from /usr/include/c++/12/bits/stl_algobase.h:71,
                 from fused.cpp:1:
/usr/include/c++/12/bits/stl_algo.h:4820:18:   required from 'void std::sort(_RAIter, _RAIter)'
fused.cpp:6:18:   required from here
/usr/include/c++/12/bits/predefined_ops.h:45:23: error: no match for 'operator<'
   45 |       { return *__it1 < *__it2; }
      |                ~~~~~~~^~~~~~~~
"""
CLANG = """/tmp/build-x8f/fused.cpp:6:47: error: use of undeclared identifier 'missing'
        std::sort(v.begin(), v.end()); y[0] = missing;
                                              ^
1 error generated.
"""
NVRTC = """6: NVRTC_ERROR_COMPILATION, compilation log:

part.cuh(1): error: expected a ";"
  __device__ float twice(float x) { return 2 * x }
                                                 ^

fused.cu(3): error: identifier "missing" is undefined
"""
NVCC = """fused.cu(1): warning #177-D: variable "z" was declared but never referenced
fused.cu(3): error: identifier "missing" is undefined
      y[threadIdx.x] = x[0] + missing;
                              ^

1 error detected in the compilation of "fused.cu".
"""
EDG_TEMPLATE = """fused.cu(3): error: static assertion failed with "N must be a multiple of 4"
  template<int N> struct A { static_assert(N % 4 == 0, "N must be a multiple of 4"); };
                             ^
          detected during instantiation of class "A<N> [with N=3]" at line 3
"""
FATAL = """fused.cu(1): catastrophic error: cannot open source file "part.cuh"
  #include "part.cuh"
                     ^
"""
PTXAS = """ptxas info    : 0 bytes gmem
ptxas error   : Entry function 'fused' uses too much shared data (0x61a80 bytes, 0x38c00 max)
"""
PTX = """ptxas kernel.ptx, line 27; error   : Not a name of any known instruction: 'bogus'
ptxas fatal   : Ptx assembly aborted due to errors
"""
EXTERN = "ptxas fatal   : Unresolved extern function '_Z5twicef'\n"
LINKER = """/usr/bin/ld: /tmp/cc1.o: in function `fused':
fused.cpp:(.text+0x5): undefined reference to `sort'
"""
ASSEMBLER = """fused.cpp: Assembler messages:
fused.cpp:6: Error: no such instruction: `bogus %eax'
"""
NINJA = f"Error building extension 'mine': [1/2] c++ -c main.cpp\nFAILED: main.o\n{CLANG}"


@pytest.mark.parametrize(
    ("log", "place", "message", "caret_at"),
    [
        (GXX, ("fused.cpp", 6, 47), "'missing' was not declared in this scope", "missing;"),
        (GXX_TEMPLATE, ("fused.cpp", 6, 18), "no match for 'operator<'", "(v.begin()"),
        (CLANG, ("fused.cpp", 6, 47), "use of undeclared identifier 'missing'", "missing;"),
        (NINJA, ("fused.cpp", 6, 47), "use of undeclared identifier 'missing'", "missing;"),
        (NVRTC, ("part.cuh", 1, 48), 'expected a ";"', "}"),
        (NVCC, ("fused.cu", 3, 29), 'identifier "missing" is undefined', "missing;"),
        (FATAL, ("fused.cu", 1, 20), 'cannot open source file "part.cuh"', ""),
        (PTXAS, ("fused.cu", 2, 28),
         "Entry function 'fused' uses too much shared data (400000 bytes, 232448 max)", "fused("),
        (EXTERN, ("part.cuh", 1, 18), "Unresolved extern function 'twice'", "twice("),
        (LINKER, ("fused.cpp", 6, 14), "undefined reference to `sort'", "sort("),
        (ASSEMBLER, ("fused.cpp", 6, None), "no such instruction: `bogus %eax'", None),
        (PTX, ("", None, None), "Not a name of any known instruction: 'bogus'", None),
    ],
)
def test_the_first_cause(
    log: str, place: tuple[object, ...], message: str, caret_at: str | None
) -> None:
    found = diagnostics.first_cause(log, SOURCES)
    assert found is not None
    assert (found.file, found.line, found.column) == place
    assert found.message == message
    if caret_at is not None:
        assert found.source[found.caret.index("^") :].startswith(caret_at)
    assert "/tmp" not in diagnostics.render(found) and "/usr" not in diagnostics.render(found)


def test_how_it_reads() -> None:
    found = diagnostics.first_cause(NVCC, SOURCES)
    assert found is not None
    assert diagnostics.render(found) == (
        'fused.cu:3:29: error: identifier "missing" is undefined\n'
        "    y[threadIdx.x] = x[0] + missing;\n"
        "                            ^"
    )
    during = diagnostics.first_cause(EDG_TEMPLATE, SOURCES)
    assert during is not None and "with N=3]\" at line 3" in diagnostics.render(during)
    template = diagnostics.first_cause(GXX_TEMPLATE, SOURCES)
    assert template is not None and "(in predefined_ops.h, required from here)" in (
        diagnostics.render(template)
    )


@pytest.mark.parametrize(
    "log", ["", "all is well", "fused.cu(3): warning #177-D: unused", "0 errors", "^\n^\n"]
)
def test_where_nothing_failed_no_cause_is_made_up(log: str) -> None:
    assert diagnostics.first_cause(log, SOURCES) is None


def test_a_long_line_is_cut_around_its_caret() -> None:
    source = "x" * 3000 + " missing " + "y" * 3000
    log = f"fused.cpp:1:3002: error: no\n    1 | {source}\n      | {' ' * 3001}^~~~\n"
    found = diagnostics.first_cause(log, {})
    assert found is not None and len(found.source) <= 120
    assert found.source[found.caret.index("^") :].startswith("missing")


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ('File "/tmp/cuda-agent-judge-x/candidate-1/candidate/model_new.py", line 3',
         'File "model_new.py", line 3'),
        ("a / b, c//d and x/y stay", "a / b, c//d and x/y stay"),
        ("in /usr/include/c++/12/vector:60,", "in vector:60,"),
        ("shape [3] /5", "shape [3] /5"),
    ],
)
def test_paths_are_cut_to_the_file_name(text: str, short: str) -> None:
    assert diagnostics.shorten(text) == short


# --- compilers that are here --------------------------------------------------------------------


@pytest.mark.compiler
def test_cpp_through_the_judge(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem())
    kernel = cases.KERNEL.replace("+ bias[j];", "+ bais[j];")
    verdict = judge.judge(cases.candidate(cases.native(kernel=kernel), judge.problem))
    assert verdict.status == "compile_error" and verdict.diagnostic is not None
    assert (verdict.diagnostic.file, verdict.diagnostic.line) == ("fused.cpp", 6)
    shown = verdict.feedback.splitlines()
    assert shown[1].strip().startswith("float v = x[i * n + j] + bais[j];")
    assert shown[1][shown[2].index("^") :].startswith("bais")


def test_python_through_the_judge(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem())
    files = cases.python("return torch.relu(x")
    verdict = judge.judge(cases.candidate(files, judge.problem))
    assert verdict.status == "compile_error" and verdict.diagnostic is not None
    assert verdict.diagnostic.file == "model_new.py"
    assert "was never closed" in verdict.feedback and "^" in verdict.feedback


def test_an_exception_names_the_file_and_no_folder(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem())
    verdict = judge.judge(cases.candidate(cases.python("return x + nothing"), judge.problem))
    assert verdict.status == "runtime_error"
    assert 'File "model_new.py"' in verdict.feedback and "/tmp" not in verdict.feedback


@pytest.mark.nvrtc
def test_nvrtc(tmp_path: Path) -> None:
    pytest.importorskip("cuda.core", reason="no cuda-core")
    with pytest.raises(runtime.BuildError) as failed:
        runtime.build({"fused.cu": CU, "part.cuh": PART}, arch="sm_90a", cache=tmp_path)
    found = diagnostics.first_cause(failed.value.log, SOURCES)
    assert found is not None and (found.file, found.line, found.column) == ("part.cuh", 1, 48)


def test_nvcc(tmp_path: Path) -> None:
    try:
        runtime.compiler("host")
    except runtime.ToolMissing as missing:
        pytest.skip(str(missing))
    host = CU.replace('extern "C" ', "").replace('#include "part.cuh"', "")
    with pytest.raises(runtime.BuildError) as failed:
        runtime.build({"fused.cu": host}, arch="sm_90a", cache=tmp_path)
    found = diagnostics.first_cause(failed.value.log, SOURCES)
    assert found is not None and (found.file, found.line, found.column) == ("fused.cu", 3, 29)
