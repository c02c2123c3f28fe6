"""The judge on a GPU: honest, wrong, hanging and faulty kernels, and what comes after them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cases
from cuda_agent import targets
from cuda_agent.evaluation import Judge, Pool, Settings
from cuda_agent.problems import live_instance, materialize
from cuda_agent.records import Candidate, Verdict

_REASON = targets.get("cuda").unavailable()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(_REASON is not None, reason=f"no GPU: {_REASON}"),
]

SOURCE = cases.SOURCE.replace("64, 512", "4096, 4096").replace("[512]", "[4096]")
KERNEL = """
extern "C" __global__ void fused(const float* x, const float* bias, float* y,
                                 long long total, long long columns) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= total) return;
    float v = x[i] + bias[i % columns];
    y[i] = fmaxf(v, 0.0f) + 0.5f * x[i];
}
"""
HOST = """
#include <cuda_runtime.h>
__global__ void k(const float* x, const float* bias, float* y, long long total, long long columns) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < total) y[i] = fmaxf(x[i] + bias[i % columns], 0.0f) + 0.5f * x[i];
}
extern "C" void fused(const float* x, const float* bias, float* y, long long total,
                      long long columns, long long stream) {
    k<<<(total + 255) / 256, 256, 0, (cudaStream_t)stream>>>(x, bias, y, total, columns);
}
"""
HOST_LAUNCH = """
x = x.contiguous()
out = torch.empty_like(x)
kernels.fused(x, self.bias, out, x.numel(), x.shape[-1], runtime.current_stream())
return out
"""


def native(kernel: str = KERNEL, forward: str = cases.CUDA_LAUNCH) -> dict[str, str]:
    return cases.cuda(kernel, forward)


def with_statement(statement: str) -> dict[str, str]:
    return native(KERNEL.replace("if (i >= total) return;", f"if (i >= total) return; {statement}"))


@pytest.fixture(scope="module")
def cuda_pool() -> Iterator[Pool]:
    with Pool("cuda", threads=4) as made:
        yield made


@pytest.fixture(scope="module")
def judge(cuda_pool: Pool, cache_dir: Path) -> Iterator[Judge]:
    problem = cases.problem("cuda_bias_relu", SOURCE)
    settings = Settings(target="cuda", baselines=("eager",), deadline_s=8.0)
    instance = materialize(problem, "cuda")
    with Judge(problem, instance, settings, cache_dir=cache_dir, pool=cuda_pool) as made:
        yield made


def verdict_of(judge: Judge, files: dict[str, str], trusted: bool = False) -> Verdict:
    return judge.judge(cases.candidate(files, judge.problem, trusted))


def test_an_honest_native_candidate_is_ok_and_faster_than_eager(judge: Judge) -> None:
    verdict = verdict_of(judge, native())
    assert verdict.ok, (verdict.feedback, verdict.findings)
    assert verdict.speedup["eager"] is not None and verdict.speedup["eager"].value > 1.2
    assert verdict.timing is not None and "CUDA events" in verdict.timing.method
    assert verdict.external_ops == () and "registers" in verdict.feedback
    assert verdict.error is not None and verdict.error.against == "float64 eager"


def test_a_host_launcher_is_ok(judge: Judge) -> None:
    if targets.get("cuda").environment()["nvcc"] == "none":
        pytest.skip("no nvcc")
    verdict = verdict_of(judge, native(HOST, HOST_LAUNCH))
    assert verdict.ok, verdict.feedback


FAULTS = {
    "wrong": (with_statement("if (i > 1000000) return;"), "wrong", "wrong"),
    "zeros": (cases.python("return torch.zeros_like(x)"), "wrong", "all zeros"),
    "hang": (
        with_statement("long long t = clock64(); while (clock64() - t < (1ll << 62)) {}"),
        "timeout", "within 8 s",
    ),
    "illegal_access": (
        with_statement("((volatile float*)y)[1ll << 40] = 1.0f;"), "runtime_error",
        "illegal memory access",
    ),
    "misaligned": (
        with_statement("*(volatile double*)((char*)y + 4) = 1.0;"), "runtime_error",
        "misaligned address",
    ),
    "trap": (with_statement("if (i == 5) __trap();"), "runtime_error", ""),
    "too_much_shared": (
        native(forward=cases.CUDA_LAUNCH.replace("x.shape[-1])", "x.shape[-1], shared=1 << 20)")),
        "runtime_error", "",
    ),
    "bad_block": (
        native(forward=cases.CUDA_LAUNCH.replace("256, x, ", "4096, x, ")), "runtime_error", ""
    ),
    "out_of_memory": (
        cases.python("return torch.empty(1 << 42, device='cuda')"), "out_of_memory", "out of memory"
    ),
    "not_compiled": (native(KERNEL.replace("fmaxf", "fmaxxf")), "compile_error", "fused.cu:"),
    "mutating": (
        cases.python(f"out = {cases.RIGHT}\nx.mul_(2)\nreturn out"), "wrong", "changed its inputs"
    ),
    "cached_by_pointer": (
        cases.python(
            "key = x.data_ptr(), self.bias._version\nif key not in CACHE:\n"
            f"    CACHE[key] = {cases.RIGHT}\nreturn CACHE[key].clone()",
            "CACHE = {}",
        ),
        "wrong", "a timed call",
    ),
    "tf32_of_its_own": (
        cases.python(
            f"torch.backends.cuda.matmul.allow_tf32 = True\neye = torch.eye(4096, device='cuda')\n"
            f"return ({cases.RIGHT}) @ eye"
        ),
        "wrong", "",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_gets_its_verdict_and_the_innocent_next_one_is_ok(judge: Judge, name: str) -> None:
    files, status, says = FAULTS[name]
    verdict = verdict_of(judge, files)
    assert verdict.status == status, (verdict.feedback, verdict.findings)
    assert says in verdict.feedback
    innocent = verdict_of(judge, native(), trusted=True)
    assert innocent.ok, (innocent.feedback, innocent.findings)


def test_a_trusted_candidate_that_faults_takes_its_process_with_it(judge: Judge) -> None:
    files, status, _ = FAULTS["illegal_access"]
    assert verdict_of(judge, files, trusted=True).status == status
    assert verdict_of(judge, native(), trusted=True).ok


def test_work_on_a_side_stream_is_counted(judge: Judge) -> None:
    """Joined afterwards: right, and no faster than eager. Not joined: found by looking early."""
    body = (
        "s = torch.cuda.Stream()\ns.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(s):\n"
        f"    for _ in range(20):\n        out = {cases.RIGHT}\n"
        "torch.cuda.current_stream().wait_stream(s)\nreturn out"
    )
    honest = verdict_of(judge, cases.python(body))
    assert honest.ok and honest.speedup["eager"] is not None
    assert honest.speedup["eager"].value < 0.3
    unjoined = body.replace("torch.cuda.current_stream().wait", "s.wait")
    hidden = verdict_of(judge, cases.python(unjoined))
    assert hidden.status == "cheating" and hidden.findings[0].id == "A1"


def test_the_screen_is_quick_and_repeatable(judge: Judge) -> None:
    for _ in range(2):
        assert verdict_of(judge, native(), trusted=True).ok
    verdicts = [verdict_of(judge, native(), trusted=True) for _ in range(10)]
    assert all(v.ok for v in verdicts)
    assert statistics.median(v.seconds["total"] for v in verdicts) < 1.0
    values = [v.speedup["eager"].value for v in verdicts if v.speedup["eager"] is not None]
    assert statistics.stdev(values) / statistics.mean(values) < 0.03


def test_audit(cuda_pool: Pool, cache_dir: Path) -> None:
    problem = cases.problem("cuda_bias_relu", SOURCE)
    settings = Settings(target="cuda", tier="audit", baselines=("eager",), time_limit_s=5.0)
    instance = materialize(problem, "cuda")
    with Judge(problem, instance, settings, cache_dir=cache_dir, pool=cuda_pool) as judge:
        verdict = verdict_of(judge, native(), trusted=True)
        assert verdict.ok, (verdict.feedback, verdict.findings)
        assert verdict.timing is not None and "5 placements" in verdict.timing.method
        interval = verdict.speedup["eager"]
        assert interval is not None and (interval.high - interval.low) / interval.value < 0.05


MATMUL = """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, a, b):
        return a @ b
def get_inputs():
    return [torch.randn(1024, 1024), torch.randn(1024, 1024)]
"""


@pytest.mark.parametrize(
    ("precision", "kind", "status"),
    [
        ("strict", "tf32x3", "ok"), ("strict", "tf32", "wrong"), ("strict", "fp32", "ok"),
        ("matched", "tf32", "ok"),
    ],
)
def test_products_by_precision(
    cuda_pool: Pool, cache_dir: Path, precision: str, kind: str, status: str
) -> None:
    problem = cases.problem("matmul", MATMUL)
    text = cases.PREAMBLE.replace("kernels = runtime.load(__file__)\n", "") + (
        "class ModelNew(nn.Module):\n    def forward(self, a, b):\n"
        f"        return runtime.matmul(a, b, precision={kind!r})\n"
    )
    files = {"model_new.py": text}
    for name in ("runtime.py", "runtime_gemm.py"):
        files[name] = (Path(targets.__file__).parents[1] / name).read_text()
    settings = Settings(target="cuda", baselines=("eager",), precision=precision)  # type: ignore[arg-type]
    instance = materialize(problem, "cuda")
    with Judge(problem, instance, settings, cache_dir=cache_dir, pool=cuda_pool) as judge:
        verdict = judge.judge(cases.candidate(files, problem))
        assert verdict.status == status, (verdict.feedback, verdict.error)


def test_a_live_module_on_the_gpu(cuda_pool: Pool, cache_dir: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda()
    problem, instance = live_instance(module, [torch.randn(64, 256, device="cuda")])
    text = (
        "import torch\nfrom torch import nn\nclass ModelNew(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.add_module('0', nn.Linear(256, 256, device='meta'))\n"
        "    def forward(self, x):\n        layer = getattr(self, '0')\n"
        "        return torch.relu(nn.functional.linear(x, layer.weight, layer.bias))\n"
    )
    settings = Settings(target="cuda", baselines=("eager",))
    with Judge(problem, instance, settings, cache_dir=cache_dir, pool=cuda_pool) as judge:
        verdict = judge.judge(Candidate(problem.hash, {"model_new.py": text}))
        assert verdict.ok, (verdict.feedback, verdict.findings)


@pytest.mark.slow
def test_all_baselines_beside_a_candidate(cuda_pool: Pool, cache_dir: Path) -> None:
    problem = cases.problem("cuda_bias_relu", SOURCE)
    settings = Settings(target="cuda", tier="audit", time_limit_s=5.0)
    instance = materialize(problem, "cuda")
    with Judge(problem, instance, settings, cache_dir=cache_dir, pool=cuda_pool) as judge:
        verdict = verdict_of(judge, native())
        assert verdict.ok, (verdict.feedback, verdict.findings)
        missing = {k: v for k, v in verdict.environment.items() if k.startswith("missing_")}
        assert all(verdict.speedup.values()), missing
