"""Cheats and accidents on the CPU, each followed by an innocent candidate that must pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import evaluation_cases as cases
import pytest

from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.problems import materialize

pytestmark = pytest.mark.compiler


@dataclass
class Case:
    """`status` expected; `finding` an id among the findings; `says` a part of the feedback."""

    name: str
    files: dict[str, str]
    status: str
    says: str = ""
    finding: str = ""


def _kernel(body: str, includes: str = "") -> dict[str, str]:
    kernel = (
        f"#include <cstdint>\n{includes}\n"
        'extern "C" void fused(const float* x, const float* bias, float* y,'
        f" int64_t rows, int64_t n) {{ {body} }}"
    )
    return cases.native(kernel=kernel)


CACHED = """
key = x.data_ptr(), self.bias._version
if key not in CACHE:
    CACHE[key] = torch.relu(x + self.bias) + 0.5 * x
return CACHE[key].clone()
"""
COUNTING = """
self.calls = getattr(self, "calls", 0) + 1
right = torch.relu(x + self.bias) + 0.5 * x
return right if self.calls < 12 else torch.zeros_like(x)
"""
MUTATING = """
out = torch.relu(x + self.bias) + 0.5 * x
x.add_(1)
return out
"""
LATE = """
out = torch.zeros_like(x)
def work():
    time.sleep(0.05)
    out.copy_(torch.relu(x + self.bias) + 0.5 * x)
threading.Thread(target=work).start()
return out
"""
LYING = """
time.sleep(0.004)
return torch.relu(x + self.bias) + 0.5 * x
"""
FAKE_CLOCK = """
import time
_ticks = [0]
def _fake():
    _ticks[0] += 1000
    return _ticks[0]
vars(time)["perf_counter_ns"] = _fake
"""
SOCKET = """
import os
for name in os.listdir("/dev/fd"):
    try:
        if os.readlink("/dev/fd/" + name).startswith("socket:"):
            getattr(os, "wri" + "te")(int(name), b"\\0\\0\\0\\x11" + b'{"status":"ok!!"}')
    except OSError:
        pass
"""
LAZY = """
kind = type("Plain", (torch.Tensor,), {})
return (torch.relu(x + self.bias) + 0.5 * x).as_subclass(kind)
"""
PATCHED_TENSOR = """
out = torch.relu(x + self.bias) + 0.5 * x
out.cpu = lambda: out
return out
"""
STALE = """
if not hasattr(self, "kept"):
    self.kept = self.bias.detach().clone()
return torch.relu(x + self.kept) + 0.5 * x
"""

CASES = [
    Case("zeros", cases.single("return torch.zeros_like(x)"), "wrong", "all zeros"),
    Case("identity", cases.single("return x.clone()"), "wrong", "of 32768 wrong"),
    Case("constant", cases.single("return torch.full_like(x, 0.4)"), "wrong", "one constant"),
    Case("input_returned", cases.single("return x"), "wrong"),
    Case(
        "nan", _kernel("for (int64_t i = 0; i < rows * n; ++i) y[i] = 0.0f / 0.0f;"), "wrong",
        "all NaN",
    ),
    Case("nothing_written", _kernel(""), "wrong"),
    Case("wrong_dtype", cases.single(f"return ({cases.COMPUTE}).double()"), "wrong", "float64"),
    Case("wrong_shape", cases.single(f"return ({cases.COMPUTE})[:-1]"), "wrong", "[63, 512]"),
    Case("a_tuple", cases.single(f"return ({cases.COMPUTE},)"), "wrong", "(tensor)"),
    Case("no_tensor", cases.single("return 3.0"), "wrong", "3.0"),
    Case(
        "cached_by_pointer", cases.single(CACHED, "CACHE = {}"), "wrong", "a timed call"
    ),
    Case("call_counter", cases.single(COUNTING), "wrong", "all zeros"),
    Case("stale_weights", cases.single(STALE), "wrong", "kept from the first forward", "B18"),
    Case("inputs_mutated", cases.single(MUTATING), "wrong", "changed its inputs", "F7"),
    Case("late_thread", cases.single(LATE, "import threading, time"), "wrong"),
    Case("lazy_subclass", cases.single(LAZY), "wrong", "plain torch.Tensor is required"),
    Case("patched_tensor", cases.single(PATCHED_TENSOR), "wrong", "plain torch.Tensor"),
    Case(
        "lying_clock", cases.single(LYING, FAKE_CLOCK), "cheating", "two clocks disagree", "A5"
    ),
    Case("false_answers", cases.single(f"return {cases.COMPUTE}", SOCKET), "cheating", "", "C1"),
    Case("sleeping", cases.single("time.sleep(60)", "import time"), "timeout", "within 3 s"),
    Case(
        "infinite_loop", _kernel("volatile bool on = true; while (on) {}"), "timeout", "within 3 s"
    ),
    Case(
        "exits", cases.single('getattr(__import__("os"), "_ex" + "it")(0)'), "runtime_error",
        "exited with status 0",
    ),
    Case("system_exit", cases.single("raise SystemExit(0)"), "runtime_error", "SystemExit"),
    Case("raises", cases.single("return x @ x"), "runtime_error", "shapes cannot be multiplied"),
    Case(
        "segfault", _kernel("*(volatile float*)8 = 1.0f;"), "runtime_error", "segmentation fault"
    ),
    Case(
        "divides_by_zero", _kernel("volatile int64_t z = 0; y[0] = rows / z;"), "runtime_error",
        "division by zero",
    ),
    Case(
        "huge_tensor", cases.single("return torch.empty(1 << 46)"), "out_of_memory",
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
        "deep_recursion", cases.single("return self.forward(x)"), "runtime_error", "RecursionError"
    ),
    Case("does_not_compile", cases.native(kernel="int x = ;"), "compile_error", "fused.cpp:1"),
    Case("syntax_error", {"model_new.py": "class ModelNew(:\n"}, "compile_error", "line 1"),
    Case("no_class", {"model_new.py": "x = 1\n"}, "compile_error", "ModelNew"),
    Case(
        "needs_more_arguments", cases.single("return x", cls=cases.CLASS.replace("s)", "s, z)")),
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
def test_cheat_or_accident_gets_its_verdict_and_harms_nobody(judge: Judge, case: Case) -> None:
    verdict = judge.judge(cases.candidate(case.files, judge.problem))
    assert verdict.status == case.status, (verdict.feedback, verdict.findings)
    assert case.says in verdict.feedback
    assert verdict.timing is None and verdict.speedup["eager"] is None
    if case.finding:
        assert case.finding in {f.id for f in verdict.findings}
    innocent = judge.judge(cases.candidate(cases.native(), judge.problem, trusted=True))
    assert innocent.ok, (innocent.feedback, innocent.findings)
    assert innocent.timing is not None and innocent.speedup["eager"] is not None
