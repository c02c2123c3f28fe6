"""Each pattern of a mismatch: an error that makes it, and near ones that must not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import cases
from cuda_agent.evaluation import Judge, patterns
from cuda_agent.records import Verdict

Damage = Callable[[torch.Tensor], torch.Tensor | None]


def described(damage: Damage, *shape: int, seed: int = 0) -> str:
    """What is said of a random output after `damage`, which changes it in place or returns it."""
    generator = torch.Generator().manual_seed(seed)
    want = torch.randn(shape, dtype=torch.float64, generator=generator) + 0.01
    got = want.float().clone()
    changed = damage(got)
    got = got if changed is None else changed
    wrong = ~torch.isclose(got.double(), want, 1e-4, 1e-4)
    return patterns.describe(got, want, wrong)


def noise(t: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(t.shape, generator=generator)
    return values + values.sign()  # never near zero


def at(*index: object, by: float = 1.0) -> Damage:
    """Something random added to a part of the output."""

    def damage(t: torch.Tensor) -> None:
        t[index] += by * noise(t)[index]

    return damage


def flat(part: slice) -> Damage:
    def damage(t: torch.Tensor) -> None:
        t.view(-1)[part] += noise(t).view(-1)[part]

    return damage


def tiles(t: torch.Tensor) -> None:
    t[16:32, 32:48] += noise(t)[16:32, 32:48]
    t[48:64, 0:16] += noise(t)[48:64, 0:16]


def border(t: torch.Tensor) -> None:
    inner = t[..., 1:-1, 1:-1].clone()
    t += noise(t)
    t[..., 1:-1, 1:-1] = inner


def scattered(t: torch.Tensor) -> None:
    generator = torch.Generator().manual_seed(5)
    places = torch.randperm(t.numel(), generator=generator)[: t.numel() // 7]
    t.view(-1)[places] += noise(t).view(-1)[places]


ALL = slice(None)


@pytest.mark.parametrize(
    ("damage", "shape", "says"),
    [
        (at(slice(4, 9)), (32, 64), "rows 4 to 8 of 32"),
        (at(31), (32, 64), "row 31 of 32 (the last)"),
        (at(slice(0, 3)), (32, 64), "rows 0 to 2 of 32 (the first)"),
        (at(ALL, slice(60, 64)), (32, 64), "columns 60 to 63 of 64 (the tail)"),
        (at(ALL, slice(1, None, 4)), (32, 64), "every 4th column from 1 on, 16 of 64"),
        (at(ALL, 3), (2, 8, 9, 10), "channel 3 of 8"),
        (at(1), (4, 8, 9), "batch item 1 of 4"),
        (at(slice(2, 5), slice(8, 16)), (32, 64), "rows 2 to 4 of 32 × columns 8 to 15 of 64"),
        (at([1, 5, 6]), (32, 64), "3 of 32 rows (1, 5, 6)"),
        (at(slice(100, 128)), (128,), "elements 100 to 127 of 128 (the tail)"),
        (flat(slice(-100, None)), (32, 64), "everything from flat index 1948 on, the tail of 100"),
        (flat(slice(0, 100)), (32, 64), "the first 100 elements"),
        (flat(slice(50, 200)), (32, 64), "flat indices 50 to 199"),
        (flat(slice(3, None, 7)), (32, 64), "every 7th element from flat index 3 on"),
        (tiles, (64, 64), "2 of 16 whole 16×16 tiles, the first at row 16, column 32"),
        (lambda t: t + noise(t).triu(1), (3, 16, 16), "everything above the diagonal"),
        (lambda t: t + noise(t).triu().tril(), (16, 16), "the diagonal"),
        (lambda t: t + noise(t).triu().tril(), (2, 16, 16), "the diagonal"),
        (border, (2, 3, 16, 16), "only the border of the last two dimensions, up to 1 wide"),
        (scattered, (32, 64), "292 scattered elements, 14%"),
        (lambda t: t + noise(t), (32, 64), "every element"),
    ],
)
def test_where(damage: Damage, shape: tuple[int, ...], says: str) -> None:
    found = described(damage, *shape)
    assert found.startswith(says), found
    assert ": " not in found, "random errors have no cause that can be named"


def test_rows_of_which_some_elements_are_wrong() -> None:
    def damage(t: torch.Tensor) -> None:
        part = t[4:9]
        scattered(part)

    assert described(damage, 32, 64).startswith("in rows 4 to 8 of 32 × ")
    assert "% of the elements there" in described(damage, 32, 64)


def neighbours(t: torch.Tensor) -> torch.Tensor:
    return t.view(-1).roll(1).view(t.shape)


def unwritten(t: torch.Tensor) -> None:
    t[4:9] = 0


@pytest.mark.parametrize(
    ("damage", "shape", "says"),
    [
        (lambda t: t.zero_(), (32, 64), "every element: the output is all zeros"),
        (unwritten, (32, 64), "rows 4 to 8 of 32: zeros (not written?)"),
        (lambda t: t.fill_(0.25), (32, 64), "every element: the constant 0.25"),
        (lambda t: t.clamp(min=0), (32, 64), "zero wherever a negative value is expected"),
        (lambda t: t * 2, (32, 48), "every element: 2 times the expected value"),
        (lambda t: t * 64, (32, 64), "64 times the expected value (the size of dim 1 is 64: not"),
        (lambda t: t / 32, (32, 64), "(the size of dim 0 is 32: divided once too often?)"),
        (lambda t: -t, (32, 64), "the sign is flipped"),
        (lambda t: t + 3, (32, 64), "3 too large"),
        (lambda t: t.mT.contiguous(), (3, 16, 16), "the transpose of the last two dimensions"),
        (lambda t: t.mT.reshape(t.shape), (8, 24), "laid out as the transpose"),
        (neighbours, (32, 64), "shifted by one: the value of the column later than it belongs"),
        (lambda t: t.roll(-1, 0), (32, 64), "shifted by one: the value of the row earlier"),
        (lambda t: t.roll(2, 1), (4, 8, 6), "shifted by two: the value of the row later"),
        (lambda t: t.bfloat16().float(), (32, 64), "rounded to bfloat16"),
        (lambda t: t.fill_(math.inf), (32, 64), "infinite"),
    ],
)
def test_what(damage: Damage, shape: tuple[int, ...], says: str) -> None:
    assert says in described(damage, *shape)


def test_a_part_may_have_its_own_cause() -> None:
    def damage(t: torch.Tensor) -> None:
        t[:, 60:] *= 3

    assert described(damage, 32, 64) == (
        "columns 60 to 63 of 64 (the tail): 3 times the expected value"
    )


def test_a_missing_clamp() -> None:
    want = torch.randn(32, 64, dtype=torch.float64)
    got = want.float()
    found = patterns.describe(got, want.relu(), want < 0)
    assert found.endswith(": negative values where 0 is expected (a missing clamp or mask?)")


def test_nan_and_what_else_is_wrong() -> None:
    def damage(t: torch.Tensor) -> None:
        t[3] = math.nan
        t[7, 5] = 9.0

    found = described(damage, 32, 64)
    assert found == "64 NaN: row 3 of 32; 1 other elements are wrong as well"
    assert described(lambda t: t.fill_(math.nan), 4, 4) == "all NaN"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", [(5,), (3, 3), (17, 31), (2, 3, 4, 5), (1, 64), (64, 1)])
def test_random_values_have_no_cause(shape: tuple[int, ...], seed: int) -> None:
    def damage(t: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(100 + seed)
        return torch.randn(t.shape, generator=generator) * 2 + 5

    assert described(damage, *shape, seed=seed) == "every element"


@pytest.mark.parametrize("factor", [1.5, -0.5])
def test_a_scale_with_noise_is_no_scale(factor: float) -> None:
    assert described(lambda t: factor * t + 0.3 * noise(t), 32, 64) == "every element"


def slightly(error: Callable[[torch.Tensor], torch.Tensor]) -> str:
    want = torch.randn(32, 64, dtype=torch.float64)
    return patterns.describe(error(want), want, torch.zeros(32, 64, dtype=torch.bool))


def test_many_small_errors() -> None:
    found = slightly(lambda w: (w + 1e-5 * torch.randn_like(w)).float())
    assert "every element is slightly off" in found and "reduced precision" in found
    assert "almost all above" in slightly(lambda w: (w + 1e-3).float())
    assert "rounded to bfloat16" in slightly(lambda w: w.bfloat16().float())
    assert "above" not in slightly(lambda w: (w + 1e-3 * torch.randn_like(w)).float())


@pytest.mark.parametrize("kind", [torch.int64, torch.bool, torch.complex64])
def test_other_types(kind: torch.dtype) -> None:
    want = (torch.arange(60).view(6, 10) % 7).to(kind)
    got = want.clone()
    got[2:4] = (got[2:4] + 1).to(kind) if kind != torch.bool else ~got[2:4]
    assert patterns.describe(got, want, got != want).startswith("rows 2 to 3 of 6")


def test_outputs_of_one_element_or_none() -> None:
    one = torch.ones(1)
    assert patterns.describe(one * 3, one.double(), torch.tensor([True])) == "the only element"
    scalar = torch.tensor(3.0)
    assert patterns.describe(scalar, scalar.double() + 1, torch.tensor(True)) == "the only element"
    none = torch.ones(0)
    assert "slightly" in patterns.describe(none, none, torch.ones(0, dtype=torch.bool))


def test_a_few_nans_among_many_wrong_elements_do_not_hide_where() -> None:
    want = torch.randn(64, 32, dtype=torch.float64)
    got = want.float().clone()
    got[61:] = 1e-42
    got[61, 3] = float("nan")
    wrong = torch.zeros(64, 32, dtype=torch.bool)
    wrong[61:] = True
    said = patterns.describe(got, want, wrong)
    assert said.startswith("rows 61 to 63 of 64 (the tail)") and said.endswith("1 of them NaN")


# --- through the judge --------------------------------------------------------------------------


def feedback(judge_for: Callable[..., Judge], kernel: str) -> Verdict:
    judge = judge_for(cases.problem())
    return judge.judge(cases.candidate(cases.native(kernel=kernel), judge.problem))


@pytest.mark.compiler
def test_the_judge_says_where_and_on_which_inputs(judge_for: Callable[..., Judge]) -> None:
    tail = cases.KERNEL.replace("i < rows", "i < rows - 3")
    verdict = feedback(judge_for, tail)
    assert verdict.status == "wrong" and verdict.error is not None
    assert "rows 61 to 63 of 64 (the tail)" in verdict.feedback
    assert "first at [61, 0]: got " in verdict.feedback
    assert "random" in verdict.error.wrong_on


@pytest.mark.compiler
def test_what_is_wrong_for_one_kind_of_input_only_says_so(
    judge_for: Callable[..., Judge],
) -> None:
    large = cases.KERNEL.replace("(v > 0 ? v : 0)", "(v > 20 ? 20 : v > 0 ? v : 0)")
    verdict = feedback(judge_for, large)
    assert verdict.status == "wrong" and verdict.error is not None
    assert set(verdict.error.wrong_on) == {"large", "mixed"}
    assert "random" in verdict.error.right_on
    assert "wrong on large and mixed inputs, right on negative, random and zeros" in (
        verdict.feedback
    )
