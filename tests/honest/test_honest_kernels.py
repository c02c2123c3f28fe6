"""No honest kernel may be refused: status ok and no finding, by the real judge."""

from __future__ import annotations

import importlib.util
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import gallery_building
import gallery_native
import gallery_python
import pytest
from gallery import PROBLEMS, HonestKernel

from cuda_agent import targets
from cuda_agent.evaluation import Judge, Pool, Settings, guard
from cuda_agent.problems import materialize

FAMILIES = {
    "building": gallery_building.KERNELS,
    "native": gallery_native.KERNELS,
    "python": gallery_python.KERNELS,
}
KERNELS = [kernel for family in FAMILIES.values() for kernel in family]
LEAST = 46
NO_GPU = targets.get("cuda").unavailable()


def marked(kernel: HonestKernel) -> Any:
    marks = [pytest.mark.compiler]
    if kernel.target == "cuda":
        marks = [pytest.mark.gpu, pytest.mark.skipif(NO_GPU is not None, reason=f"{NO_GPU}")]
    if kernel.slow:
        marks.append(pytest.mark.slow)
    absent = [n for n in kernel.needs if not (importlib.util.find_spec(n) or shutil.which(n))]
    marks.append(pytest.mark.skipif(bool(absent), reason=f"needs {', '.join(absent)}"))
    return pytest.param(kernel, id=kernel.name, marks=marks)


@pytest.fixture(scope="module")
def judge_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Judge]]:
    """judge_of(kernel): one judge for each problem, target and track; one pool for each target."""
    cache = tmp_path_factory.mktemp("cache")
    pools: dict[str, Pool] = {}
    judges: dict[tuple[str, ...], Judge] = {}

    def get(kernel: HonestKernel) -> Judge:
        key = (kernel.problem, kernel.target, kernel.track)
        if key not in judges:
            pool = pools.get(kernel.target) or Pool(kernel.target, threads=2)
            pools[kernel.target] = pool
            problem = PROBLEMS[kernel.problem, kernel.target]
            settings = Settings(
                target=kernel.target, track=kernel.track, baselines=("eager",), threads=2,
                time_limit_s=0.2,
            )
            judges[key] = Judge(
                problem, materialize(problem, kernel.target), settings, cache_dir=cache, pool=pool
            )
        return judges[key]

    yield get
    for judge in judges.values():
        judge.close()
    for pool in pools.values():
        pool.close()


@pytest.mark.parametrize("kernel", [marked(kernel) for kernel in KERNELS])
def test_an_honest_kernel_passes(judge_of: Callable[..., Judge], kernel: HonestKernel) -> None:
    verdict = judge_of(kernel).judge(kernel.candidate())
    assert verdict.status == "ok", (verdict.feedback, verdict.findings)
    assert {f.id for f in verdict.findings} == kernel.remarks
    assert verdict.timing is not None


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_static_rules_accuse_no_honest_kernel(kernel: HonestKernel) -> None:
    """Those that need a GPU as well: their text is read anywhere."""
    problem = PROBLEMS[kernel.problem, kernel.target]
    assert guard.review(kernel.candidate(), problem, kernel.track).findings == []


def test_the_gallery_is_large_and_its_names_are_its_own() -> None:
    assert len(KERNELS) >= LEAST
    assert [n for n, count in Counter(k.name for k in KERNELS).items() if count > 1] == []
    assert all(len(kernel.looks) > 20 for kernel in KERNELS)
