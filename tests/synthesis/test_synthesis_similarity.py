"""AST similarity against values computed by hand and by a plain dynamic program."""

from __future__ import annotations

import random

import pytest

from cuda_agent.errors import ProblemError
from cuda_agent.synthesis.similarity import Suite, lcs, read_suites, similarity, tokens


def model(init: str, forward: str) -> str:
    return f"""
class Model(nn.Module):
    '''Text.'''
    def __init__(self, n):
        super().__init__()
        {init}

    def forward(self, x, y):
        {forward}
"""


def test_one_spelling_for_what_computes_the_same() -> None:
    ways = ["F.relu(x)", "torch.relu(x)", "x.relu()", "torch.nn.functional.relu(x)", "relu(y)"]
    assert {tokens(model("pass", f"return {way}")) for way in ways} == {
        ("def", "Pass", "def", "Return", "relu", ".")
    }
    assert tokens(model("self.a = nn.ReLU()", "return self.a(x)")) == (
        "def", "Assign", ".", "relu", "def", "Return", "relu", "."
    )
    assert tokens(model("pass", "return x + y")) == tokens(model("pass", "return torch.add(x, y)"))
    assert tokens(model("pass", "return self.f(x).mean(1)"))[-4:] == ("mean", "f", ".", ".")


def test_names_and_sizes_do_not_count_but_operators_do() -> None:
    a = tokens(model("self.fc = nn.Linear(n, 7)", "h = self.fc(x)\n        return F.gelu(h)"))
    b = tokens(model("self.up = nn.Linear(9, n)", "y = self.up(x)\n        return F.gelu(y)"))
    c = tokens(model("self.up = nn.Linear(9, n)", "y = self.up(x)\n        return F.silu(y)"))
    assert similarity(a, b) == 1.0
    assert similarity(a, c) == (len(a) - 1) / len(a) < 1.0


def slow_lcs(a: list[str], b: list[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        new = [0]
        for j, y in enumerate(b):
            new.append(row[j] + 1 if x == y else max(row[j + 1], new[j]))
        row = new
    return row[-1]


def test_lcs_is_that_of_the_textbook() -> None:
    rng = random.Random(0)
    for _ in range(300):
        a = [rng.choice("abcd") for _ in range(rng.randrange(0, 90))]
        b = [rng.choice("abcde") for _ in range(rng.randrange(0, 90))]
        assert lcs(a, b) == slow_lcs(a, b)


def test_nearest_is_the_maximum_over_all() -> None:
    """The bound that skips pairs must not skip the best."""
    rng = random.Random(1)
    ops = ("relu", "gelu", "mean", "exp", "sum", "linear")

    def text() -> str:
        body = "\n        ".join(f"x = F.{rng.choice(ops)}(x)" for _ in range(rng.randint(1, 6)))
        return model("pass", body)

    texts = [(f"p{i}", text()) for i in range(60)]
    suite = Suite(texts)
    for _ in range(100):
        mine = text()
        every = {name: similarity(tokens(mine), tokens(source)) for name, source in texts}
        value, name = suite.nearest(mine)
        assert value == max(every.values()) == every[name]


def test_each_problem_of_our_suite_is_nearest_to_itself() -> None:
    suite = read_suites(["ours"])
    assert len(suite.names) > 70
    for name in suite.names[::9]:
        with open(name, encoding="utf-8") as file:
            assert suite.nearest(file.read())[0] == 1.0
    assert Suite().nearest(model("pass", "return x")) == (0.0, "")


def test_a_file_without_model_is_named() -> None:
    with pytest.raises(ProblemError, match=r"bad.py: no class `Model`"):
        Suite([("bad.py", "x = 1")])
