"""What the device's tracer tells, and what is made of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_evaluation_cuda import KERNEL, SOURCE, native

import cases
from cuda_agent import targets
from cuda_agent.evaluation import Judge, Pool, Settings, activity, protocol
from cuda_agent.evaluation.activity import Work
from cuda_agent.problems import materialize
from cuda_agent.records import Activity, Verdict

_REASON = targets.get("cuda").unavailable()
on_a_gpu = [
    pytest.mark.gpu, pytest.mark.skipif(_REASON is not None, reason=f"no GPU: {_REASON}"),
]


def test_overlapping_work_counts_once_and_every_launch_is_named() -> None:
    seen = activity.summary([
        Work("b", 7, 5.0, 15.0), Work("a", 7, 0.0, 10.0), Work("a", 9, 2.0, 3.0),
        Work("a", 7, 20.0, 25.0),
    ])
    assert seen == {
        "device_ms": pytest.approx(0.020), "launches": 4, "streams": 2, "kernels": {"a": 3, "b": 1}
    }
    assert activity.summary([])["device_ms"] == 0.0


def test_a_long_trace_stays_within_what_the_judge_reads() -> None:
    seen = activity.summary(Work(f"{'k' * 300}{i}", 0, i, i + 1) for i in range(300))
    assert sum(seen["kernels"].values()) == 300
    many = activity.summary(Work(f"k{i}", 0, i, i + 1) for i in range(300))
    assert many["kernels"]["(others)"] == 300 - 64
    for fields in (seen, many, {}):
        protocol.check_reply("trace", 3, {"seq": 3, "activity": fields})


@pytest.mark.parametrize(
    "fields",
    [
        {"device_ms": -1.0, "launches": 0, "streams": 0, "kernels": {}},
        {"device_ms": 1.0, "launches": 1, "streams": 1, "kernels": {"k": "many"}},
        {"device_ms": 1.0, "launches": 1, "streams": 1},
        {"device_ms": 1.0, "launches": 1, "streams": 1, "kernels": {f"k{i}": 1 for i in range(99)}},
        None,
    ],
)
def test_a_false_trace_is_refused(fields: object) -> None:
    with pytest.raises(protocol.ProtocolError, match="bad activity"):
        protocol.check_reply("trace", 3, {"seq": 3, "activity": fields})


@pytest.mark.parametrize(
    ("kernel", "shown"),
    [
        ("fused", "fused"), ("fused", "fused(float const*, float*)"),
        ("_Z5fusedIfEvPKfPf", "void fused<float>(float const*, float*)"),
        ("_ZN2my5fusedEPf", "my::fused(float*)"),
        ("_ZN39_GLOBAL__N__0a_4_a_cu_b5fusedEPf", "(anonymous namespace)::fused(float*)"),
    ],
)
def test_a_kernel_is_known_by_either_name(kernel: str, shown: str) -> None:
    assert activity.launched(kernel, Activity(1.0, 1, 1, {shown: 1}))
    assert not activity.launched("other", Activity(1.0, 1, 1, {shown: 1}))


def test_accusations() -> None:
    busy = Activity(1.0, 3, 2, {"fused": 1, "copy": 2})
    assert activity.check(None, 0.1, ["fused"]) == []
    assert activity.check(busy, 0.95, ["fused", "other"]) == []
    (hidden,) = activity.check(busy, 0.1, ["fused"])
    assert hidden.id == "A1" and "1 ms" in hidden.detail
    (decoy,) = activity.check(busy, 0.95, ["other"])
    assert decoy.id == "E2" and "other" in decoy.detail


def test_torchs_kernels_are_for_the_library_track() -> None:
    relu = "void at::native::vectorized_elementwise_kernel<4, at::native::relu>(int)"
    copied = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
    filled = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >"
    for name, found in ((relu, ["E1"]), ("triton_poi_fused_add_0", ["E1"]), (copied, []),
                        (filled, []), ("ampere_sgemm_128x64_tn", []), ("Memcpy DtoD", [])):
        seen = Activity(0.1, 2, 1, {"fused": 1, name: 1})
        assert [f.id for f in activity.check(seen, 0.1, ["fused"], "kernels")] == found
        assert activity.check(seen, 0.1, ["fused"], "library") == []


def test_a_cpu_has_no_tracer(judge_for: Callable[..., Judge]) -> None:
    judge = judge_for(cases.problem(), tier="audit", time_limit_s=0.2)
    verdict = judge.judge(cases.candidate(cases.native(), judge.problem))
    assert verdict.ok and verdict.activity is None


# --- on a GPU -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def audit(cache_dir: Path) -> Iterator[Callable[[dict[str, str]], Verdict]]:
    problem = cases.problem("cuda_bias_relu", SOURCE)
    settings = Settings(target="cuda", tier="audit", baselines=("eager",), time_limit_s=1.0)
    with Pool("cuda", threads=4) as pool, Judge(
        problem, materialize(problem, "cuda"), settings, cache_dir=cache_dir, pool=pool
    ) as judge:
        yield lambda files: judge.judge(cases.candidate(files, problem))


class TestOnAGpu:
    pytestmark = on_a_gpu

    def test_one_kernel_is_one_launch(self, audit: Callable[[dict[str, str]], Verdict]) -> None:
        verdict = audit(native())
        assert verdict.ok, (verdict.feedback, verdict.findings)
        assert verdict.activity is not None and verdict.timing is not None
        assert verdict.activity.launches == 1 and verdict.activity.streams == 1
        assert list(verdict.activity.kernels.values()) == [1]
        assert "fused" in next(iter(verdict.activity.kernels))
        ratio = verdict.activity.device_ms / verdict.timing.median_ms
        assert 0.7 < ratio < 1.25

    def test_a_kernel_that_never_runs_is_a_decoy(
        self, audit: Callable[[dict[str, str]], Verdict]
    ) -> None:
        forward = (
            "if x.dim() > 5:\n"
            "    kernels.fused(1, 256, x, self.bias, x, x.numel(), x.shape[-1])\n"
            f"return {cases.RIGHT}"
        )
        verdict = audit(native(KERNEL, forward))
        assert verdict.status == "cheating", verdict.feedback
        assert "E2" in {f.id for f in verdict.findings}
