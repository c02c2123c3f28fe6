"""Accidents on the CPU, each followed by an innocent candidate that must pass. The cheats are in
tests/adversarial/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import cases
from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.problems import materialize

pytestmark = pytest.mark.compiler


@dataclass
class Case:
    """`status` expected; `says` a part of the feedback."""

    name: str
    files: dict[str, str]
    status: str
    says: str = ""


def _kernel(body: str, includes: str = "") -> dict[str, str]:
    kernel = (
        f"#include <cstdint>\n{includes}\n"
        'extern "C" void fused(const float* x, const float* bias, float* y,'
        f" int64_t rows, int64_t n) {{ {body} }}"
    )
    return cases.native(kernel=kernel)


CASES = [
    Case("constant", cases.python("return torch.full_like(x, 0.4)"), "wrong", "the constant 0.4"),
    Case(
        "nan", _kernel("for (int64_t i = 0; i < rows * n; ++i) y[i] = 0.0f / 0.0f;"), "wrong",
        "all NaN",
    ),
    Case("nothing_written", _kernel(""), "wrong"),
    Case("wrong_dtype", cases.python(f"return ({cases.RIGHT}).double()"), "wrong", "float64"),
    Case("wrong_shape", cases.python(f"return ({cases.RIGHT})[:-1]"), "wrong", "[63, 512]"),
    Case("a_tuple", cases.python(f"return ({cases.RIGHT},)"), "wrong", "(tensor)"),
    Case("no_tensor", cases.python("return 3.0"), "wrong", "3.0"),
    Case("sleeping", cases.python("time.sleep(60)", "import time"), "timeout", "within 3 s"),
    Case(
        "infinite_loop", _kernel("volatile bool on = true; while (on) {}"), "timeout", "within 3 s"
    ),
    Case("system_exit", cases.python("raise SystemExit(0)"), "runtime_error", "SystemExit"),
    Case("raises", cases.python("return x @ x"), "runtime_error", "shapes cannot be multiplied"),
    Case(
        "segfault", _kernel("*(volatile float*)8 = 1.0f;"), "runtime_error", "segmentation fault"
    ),
    Case(
        "divides_by_zero", _kernel("volatile int64_t z = 0; y[0] = rows / z;"), "runtime_error",
        "division by zero",
    ),
    Case(
        "huge_tensor", cases.python("return torch.empty(1 << 46)"), "out_of_memory",
        "out of memory",
    ),
    Case(
        "huge_vector",
        _kernel(
            "std::vector<float> v(std::size_t(1) << 40, 1.0f); y[0] = v[n];",
            "#include <cstddef>\n#include <vector>",
        ),
        "out_of_memory", "out of memory",
    ),
    Case(
        "deep_recursion", cases.python("return self.forward(x)"), "runtime_error", "RecursionError"
    ),
    Case("does_not_compile", cases.native(kernel="int x = ;"), "compile_error", "fused.cpp:1"),
    Case("syntax_error", {"model_new.py": "class ModelNew(:\n"}, "compile_error", "model_new.py:1"),
    Case("no_class", {"model_new.py": "x = 1\n"}, "compile_error", "ModelNew"),
    Case(
        "needs_more_arguments", cases.python("return x", cls=cases.CLASS.replace("s)", "s, z)")),
        "runtime_error", "missing 1 required positional argument",
    ),
]


@pytest.fixture(scope="module")
def judge(pool: Pool, cache_dir: Path) -> Iterator[Judge]:
    problem = cases.problem()
    settings = Settings(
        target="cpu", baselines=("eager",), threads=1, deadline_s=3.0, compile_deadline_s=3.0,
        time_limit_s=0.2,
    )
    with Judge(
        problem, materialize(problem, "cpu"), settings, cache_dir=cache_dir, pool=pool
    ) as made:
        yield made


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_accident_gets_its_verdict_and_harms_nobody(judge: Judge, case: Case) -> None:
    verdict = judge.judge(cases.candidate(case.files, judge.problem))
    assert verdict.status == case.status, (verdict.feedback, verdict.findings)
    assert case.says in verdict.feedback
    assert verdict.timing is None and verdict.speedup["eager"] is None
    innocent = judge.judge(cases.candidate(cases.native(), judge.problem, trusted=True))
    assert innocent.ok, (innocent.feedback, innocent.findings)
    assert innocent.timing is not None and innocent.speedup["eager"] is not None
