"""The maths of right and wrong, without processes."""

from __future__ import annotations

import math

import pytest
import torch

from cuda_agent.evaluation import verify
from cuda_agent.evaluation.precision import flags, tolerance
from cuda_agent.records import Precision

EXACT = None


def judged(
    got: torch.Tensor, reference: torch.Tensor, eager: torch.Tensor | None = None,
    precision: Precision = "strict",
) -> verify.Comparison:
    eager = reference.to(got.dtype) if eager is None else eager
    floating = got.dtype.is_floating_point or got.dtype.is_complex
    limit = tolerance(precision, got.dtype) if floating else EXACT
    return verify.compare(got, verify.expect(reference, eager, limit), limit, 0.0)


def noisy(reference: torch.Tensor, relative: float) -> torch.Tensor:
    """With gaussian error whose norm is `relative` times the norm of the reference."""
    noise = torch.randn_like(reference)
    noise *= relative * reference.norm() / noise.norm()
    return (reference + noise).float()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def product() -> torch.Tensor:
    """Like a row block of a 4096-cube product, in float64."""
    return 64 * torch.randn(256, 1024, dtype=torch.float64)


# Measured against float64 on an H200 at 4096^3: cuBLAS float32 1.1e-6, three TF32 products of
# split operands 9.7e-6, plain TF32 2.9e-4, bf16 about 2.6e-3.
@pytest.mark.parametrize(
    ("error", "precision", "passes"),
    [
        (1.1e-6, "strict", True), (9.7e-6, "strict", True), (2.9e-4, "strict", False),
        (2.9e-4, "matched", True), (2.6e-3, "matched", False), (9.7e-6, "matched", True),
        (1e-3, "strict", False),
    ],
)
def test_split_tf32_passes_strict_and_plain_tf32_does_not(
    product: torch.Tensor, error: float, precision: Precision, passes: bool
) -> None:
    eager = noisy(product, 1.1e-6)
    assert judged(noisy(product, error), product, eager, precision).ok is passes


def test_paper_lets_one_percent_pass_as_published() -> None:
    reference = torch.randn(64, 64, dtype=torch.float64)
    assert judged(noisy(reference, 2e-3), reference, precision="paper").ok
    assert not judged(noisy(reference, 2e-2), reference, precision="paper").ok


@pytest.mark.parametrize("precision", ["strict", "matched", "paper"])
@pytest.mark.parametrize(
    "reference",
    [
        torch.softmax(torch.randn(64, 4096, dtype=torch.float64), -1),  # all below 1e-2
        1e-5 * torch.randn(1000, dtype=torch.float64),
        torch.randn(1000, dtype=torch.float64) / 4096,
        torch.tensor([3e-4], dtype=torch.float64),
        5.0 + 1e-3 * torch.randn(1000, dtype=torch.float64),
    ],
    ids=["softmax", "tiny", "mean", "scalar", "offset"],
)
def test_zeros_never_pass_and_the_mean_neither(
    precision: Precision, reference: torch.Tensor
) -> None:
    zeros = torch.zeros_like(reference).float()
    assert not judged(zeros, reference, precision=precision).ok
    assert judged(reference.float(), reference, precision=precision).ok
    if reference.numel() > 1:
        constant = torch.full_like(reference, float(reference.mean())).float()
        assert not judged(constant, reference, precision=precision).ok


def test_a_reference_of_zeros_wants_zeros() -> None:
    zeros = torch.zeros(10, dtype=torch.float64)
    assert judged(torch.zeros(10), zeros).ok
    assert judged(torch.full((10,), 1e-8), zeros).ok
    assert not judged(torch.full((10,), 1e-3), zeros).ok


def test_a_constant_reference_is_compared_with_its_norm() -> None:
    ones = torch.ones(100, dtype=torch.float64)
    assert judged(torch.full((100,), 1.0 + 1e-6), ones).ok
    assert not judged(torch.full((100,), 1.001), ones).ok


def test_one_wrong_element_among_millions_fails() -> None:
    reference = torch.randn(1 << 20, dtype=torch.float64)
    got = reference.float()
    got[123_456] += 0.01
    found = judged(got, reference)
    assert found.relative < 2e-5 and found.outliers == 1 and not found.ok


def test_what_eager_misses_itself_a_candidate_may_miss_as_well() -> None:
    """Rounding flips of a quantised output: a few elements are a whole step off."""
    reference = torch.randint(-8, 8, (10_000,)).double()
    eager, got = reference.float(), reference.float()
    eager[:5] += 1
    got[5:12] += 1
    assert judged(got, reference, eager).ok
    got[:200] += 1
    assert not judged(got, reference, eager).ok


def test_the_bound_grows_with_eagers_error_but_zeros_stay_out() -> None:
    reference = torch.randn(10_000, dtype=torch.float64)
    eager = noisy(reference, 2e-5)
    assert judged(noisy(reference, 1e-4), reference, eager).relative < 3.2e-4
    assert not judged(torch.zeros(10_000), reference, noisy(reference, 0.02)).ok


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [(torch.bfloat16, 3e-3, 5e-2), (torch.float16, 5e-4, 1e-2), (torch.float64, 1e-13, 1e-8)],
)
def test_every_dtype_has_its_own_bound(dtype: torch.dtype, good: float, bad: float) -> None:
    reference = torch.randn(100, 100, dtype=torch.float64)
    noise = torch.randn_like(reference)
    eager = reference.to(dtype)
    assert judged((reference + good * noise).to(dtype), reference, eager).ok
    assert not judged((reference + bad * noise).to(dtype), reference, eager).ok


def test_nan_and_infinities_must_lie_where_eager_has_them() -> None:
    reference = torch.randn(100, dtype=torch.float64)
    eager = reference.float()
    eager[3], eager[4], eager[5] = math.nan, math.inf, -math.inf
    assert judged(eager.clone(), reference, eager).ok
    for i, value in ((3, 0.0), (4, -math.inf), (5, 0.0), (6, math.nan), (7, math.inf)):
        got = eager.clone()
        got[i] = value
        found = judged(got, reference, eager)
        assert not found.ok and "other positions" in found.structural


def test_nan_where_all_is_finite_fails() -> None:
    reference = torch.randn(100, dtype=torch.float64)
    got = reference.float()
    got[50] = math.nan
    assert not judged(got, reference).ok


def test_integers_are_exact_but_near_ties_may_go_either_way() -> None:
    eager = torch.tensor([1, 2, 3, 4])
    precise = torch.tensor([1, 2, 9, 4])
    assert judged(torch.tensor([1, 2, 9, 4]), precise, eager).ok
    assert judged(torch.tensor([1, 2, 3, 4]), precise, eager).ok
    assert not judged(torch.tensor([1, 2, 5, 4]), precise, eager).ok
    assert not judged(torch.tensor([True, False]), torch.tensor([True, True])).ok


def test_complex_outputs() -> None:
    reference = torch.randn(50, dtype=torch.complex128)
    got = reference.to(torch.complex64)
    assert judged(got, reference, got).ok
    assert not judged(got.conj().resolve_conj(), reference, got).ok


def test_empty_outputs_pass() -> None:
    assert judged(torch.zeros(0), torch.zeros(0, dtype=torch.float64)).ok


# --- structure ----------------------------------------------------------------------------------


def answer(tree: object, *specs: dict[str, object], copied: bool = True) -> dict[str, object]:
    return {"tree": tree, "specs": list(specs), "copied": copied}


SPEC: dict[str, object] = {"shape": [2], "dtype": "float32", "type": "Tensor", "device": "cpu"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (answer({"tensor": 0}, SPEC), ""),
        (answer({"tuple": [{"tensor": 0}]}, SPEC), "(tensor)"),
        (answer({"list": [{"tensor": 0}]}, SPEC), "[tensor]"),
        (answer({"dict": [["a", {"tensor": 0}]]}, SPEC), "'a': tensor"),
        (answer({"value": 3}), "returned 3"),
        (answer({"tensor": 0}, {**SPEC, "shape": [3]}), "shape [3]"),
        (answer({"tensor": 0}, {**SPEC, "dtype": "float64"}), "dtype float64"),
        (answer({"tensor": 0}, {**SPEC, "device": "cuda"}), "cuda"),
        (answer({"tensor": 0}, SPEC, SPEC), "2 tensors"),
        (answer({"tensor": 0}, SPEC, copied=False), "could not be copied"),
        (answer({"odd": 1, "keys": 2}, SPEC), "?"),
    ],
)
def test_structure(given: dict[str, object], says: str) -> None:
    found = verify.structure_error(given, {"tensor": 0}, [torch.zeros(2)], "cpu")
    assert (found == "") if says == "" else (says in found)


def test_a_deep_tree_does_not_recurse_away() -> None:
    tree: object = {"tensor": 0}
    for _ in range(5000):
        tree = {"tuple": [tree]}
    assert verify.structure_error(answer(tree, SPEC), {"tensor": 0}, [torch.zeros(2)], "cpu")


# --- the first mismatch -------------------------------------------------------------------------


def damaged(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    reference = torch.randn(32, 64, dtype=torch.float64) + 0.01
    got = reference.float().clone()
    if kind == "tail":
        got.view(-1)[-100:] = 9.0
    elif kind == "row tail":
        got[:, 60:] = 9.0
    elif kind == "steps":
        got.view(-1)[3::7] += 1
    elif kind == "rows":
        got[4:9] += 1
    elif kind == "scaled":
        got *= 2
    elif kind == "shifted":
        got = got.view(-1).roll(1).view(32, 64)
    elif kind == "nan":
        got[2, 5] = math.nan
    elif kind == "zeros":
        got.zero_()
    elif kind == "slightly":
        got = (reference + 4e-5 * torch.randn_like(reference).sign()).float()
    return reference, got


@pytest.mark.parametrize(
    ("kind", "says", "index"),
    [
        ("tail", "the tail of 100", (30, 28)), ("row tail", "columns 60 to 63", (0, 60)),
        ("steps", "every 7th", (0, 3)), ("rows", "rows 4 to 8 of 32", (4, 0)),
        ("scaled", "2 times", (0, 0)), ("shifted", "shifted by one", (0, 0)),
        ("nan", "1 NaN", (2, 5)), ("zeros", "all zeros", (0, 0)), ("slightly", "slightly", None),
    ],
)
def test_the_first_mismatch_and_its_pattern(
    kind: str, says: str, index: tuple[int, ...] | None
) -> None:
    reference, got = damaged(kind)
    limit = tolerance("strict", torch.float32)
    expected = verify.expect(reference, reference.float(), limit)
    assert not verify.compare(got, expected, limit, 0.0).ok
    found = verify.mismatch("output 0", got, expected, limit)
    assert says in found.pattern, found
    if index is not None:
        assert found.index == index
        assert found.expected == pytest.approx(float(reference[index]), rel=1e-6)
    if kind == "nan":
        assert found.got == "nan"


def test_flags_come_back() -> None:
    before = torch.backends.cudnn.allow_tf32
    with flags("matched"):
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        with flags("strict"):
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
