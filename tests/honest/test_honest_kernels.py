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
from cuda_agent.evaluation import Judge, guard
from judging import Judges

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
    """judge_of(kernel): one judge for each problem, target and track."""
    judges = Judges(tmp_path_factory.mktemp("cache"), threads=2)
    yield lambda kernel: judges.get(
        PROBLEMS[kernel.problem, kernel.target], kernel.target, track=kernel.track
    )
    judges.close()


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
