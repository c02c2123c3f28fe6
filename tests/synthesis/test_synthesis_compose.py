"""Crawl, compose, render: what comes out are problems that load and run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_agent.problems import load_problem
from cuda_agent.synthesis.compose import Composition, Rejected, compose, infer
from cuda_agent.synthesis.render import render
from cuda_agent.synthesis.seeds import Seed, crawl


@pytest.fixture(scope="module")
def seeds() -> list[Seed]:
    return crawl()


@pytest.fixture(scope="module")
def made(seeds: list[Seed]) -> list[Composition]:
    found = []
    for index in range(120):
        try:
            found.append(compose(seeds, 0, index, max_ops=5, target="cpu"))
        except Rejected:
            continue
    return found


def test_the_crawl_finds_classes_and_functions(seeds: list[Seed]) -> None:
    names = {seed.name for seed in seeds}
    assert len(names) >= 150
    assert {"nn.LayerNorm", "nn.Linear", "torch.relu"} <= names


def test_most_draws_lead_somewhere(made: list[Composition]) -> None:
    assert len(made) > 60
    assert {1, 2, 3, 4, 5} >= {len(m.ops) for m in made}
    assert len({tuple(m.ops) for m in made}) > 0.8 * len(made)


def test_the_same_seed_gives_the_same_text(seeds: list[Seed], made: list[Composition]) -> None:
    again = []
    for index in range(20):
        try:
            again.append(render(compose(seeds, 0, index, max_ops=5, target="cpu")))
        except Rejected:
            continue
    assert again == [render(m) for m in made[: len(again)]]


def test_rendered_problems_load_and_give_the_inferred_shape(
    made: list[Composition], tmp_path: Path
) -> None:
    for number, composition in enumerate(made[:12]):
        file = tmp_path / f"problem_{number}.py"
        file.write_text(render(composition))
        namespace: dict[str, object] = {}
        exec(compile(file.read_text(), str(file), "exec"), namespace)
        assert load_problem(file).hash
        model = namespace["Model"](*namespace["get_init_inputs"]())  # type: ignore[operator]
        with torch.no_grad():
            out = model(*namespace["get_inputs"]())  # type: ignore[operator]
        assert out.shape == infer(composition)[composition.output].shape
