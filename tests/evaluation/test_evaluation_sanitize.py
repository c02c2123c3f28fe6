"""C++ candidates under sanitizers: what passes the judge and reads past its buffers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import cases
from cuda_agent.evaluation import Judge
from cuda_agent.evaluation.sanitize import libraries, parse, sanitize
from cuda_agent.records import Sanitizer

SOURCES = {"kernels/fused.cpp": "int f(int* y, int n) {\n    return y[n];\n}\n"}
ADDRESS = """==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x50 at pc 0x7
READ of size 4 at 0x50 thread T0
    #0 0x7f in memcpy (/lib/libasan.so.8+0x1)
    #1 0x7f in f(int*, int) fused.cpp:2
    #2 0x7f in ffi_call (/lib/libffi.so+0x1)
"""


def test_what_sanitizers_say() -> None:
    (found,) = parse(ADDRESS, SOURCES)
    assert found.id == "address"
    assert found.detail.startswith("heap-buffer-overflow, read of 4 bytes in f")
    assert found.detail.endswith("fused.cpp:2: return y[n];")
    said = "fused.cpp:2:12: runtime error: signed integer overflow: 1 + 2\n"
    (undefined,) = parse(said * 3, SOURCES)
    assert undefined.id == "undefined" and "fused.cpp:2: return y[n];" in undefined.detail
    assert parse("all is well", SOURCES) == ()


@pytest.mark.compiler
class TestOnACpu:
    def run(self, judge_for: Callable[..., Judge], kernel: str) -> Sanitizer:
        if not libraries():
            pytest.skip("the C++ compiler has no sanitizers")
        judge = judge_for(cases.problem())
        return sanitize(judge, cases.candidate(cases.native(kernel=kernel), judge.problem))

    def test_an_honest_kernel_has_no_findings(self, judge_for: Callable[..., Judge]) -> None:
        found = self.run(judge_for, cases.KERNEL)
        assert found.findings == () and found.missing == ""

    def test_a_read_behind_the_end(self, judge_for: Callable[..., Judge]) -> None:
        """One element too many is read; the output is right all the same."""
        late = cases.KERNEL.replace("+ bias[j];", "+ bias[j] + 0 * x[i * n + j + 1];")
        (found,) = self.run(judge_for, late).findings
        assert found.id == "address" and "read of 4 bytes in fused, fused.cpp:6" in found.detail

    def test_a_write_behind_the_end(self, judge_for: Callable[..., Judge]) -> None:
        late = cases.KERNEL.replace("j < n;", "j <= n;").replace("bias[j]", "bias[j % n]")
        (found,) = self.run(judge_for, late.replace("x[i * n + j]", "x[0]")).findings
        assert "write of 4 bytes" in found.detail

    def test_an_overflow(self, judge_for: Callable[..., Judge]) -> None:
        late = "int b = 2147483647; b += (int)rows; float v = 0.0f * b + "
        over = cases.KERNEL.replace("float v = ", late)
        (found,) = self.run(judge_for, over).findings
        assert found.id == "undefined" and "signed integer overflow" in found.detail

    def test_what_cannot_be_built_so_says_why(self, judge_for: Callable[..., Judge]) -> None:
        judge = judge_for(cases.problem())
        files = cases.python(f"return {cases.RIGHT}")
        found = sanitize(judge, cases.candidate(files, judge.problem))
        assert found.findings == () and "only C++ sources" in found.missing
