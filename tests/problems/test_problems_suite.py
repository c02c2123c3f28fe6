"""Every bundled problem: its reference passes, and null, identity and constant outputs fail."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
import torch

from cuda_agent.errors import ProblemError
from cuda_agent.problems import level_of, load_problem, materialize, probe, suite_problems
from cuda_agent.problems.probes import TOLERANCE, close
from cuda_agent.problems.tree import nbytes, tensors

ROOT = Path(__file__).resolve().parents[2]
OURS = suite_problems("ours")
LOOSEST = 1e-2  # the paper policy: whatever passes there would pass anywhere


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def candidates(inputs, outs: list[torch.Tensor], others: list[torch.Tensor]):
    """(name, outputs) of kernels that compute nothing."""
    yield "zeros", [torch.zeros_like(t) for t in outs]
    yield "constant of another input", others
    yield "its mean", [_mean(t) for t in outs]
    yield "one everywhere", [torch.ones_like(t) for t in outs]
    for i, source in enumerate(tensors(inputs)):
        if all(source.numel() >= t.numel() for t in outs):
            yield (
                f"input {i}",
                [source.reshape(-1)[: t.numel()].reshape(t.shape).to(t.dtype) for t in outs],
            )


def _mean(t: torch.Tensor) -> torch.Tensor:
    if t.numel() == 1:  # its own mean: nothing a kernel could know beforehand
        return torch.zeros_like(t)
    return torch.full_like(t, t.double().mean().item())


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_problem_is_sound(path: Path) -> None:
    instance = materialize(load_problem(path, size="cpu"), "cpu")
    assert probe(instance) == []
    inputs = instance.inputs(101)
    reference = instance.reference(inputs)
    outs = tensors(reference)
    limit = TOLERANCE[torch.float32]
    if outs[0].is_floating_point():
        exact = [t.float() for t in tensors(instance.reference(inputs, torch.float64))]
        # Eager's own error: a long CPU norm in float32 reaches 1e-5.
        assert close(outs, exact, 10 * limit), "eager float32 must pass against float64"
    others = tensors(instance.reference(instance.inputs(202)))
    for name, fake in candidates(inputs, outs, others):
        assert not close(fake, outs, limit), f"{name} passes at the strict tolerance"
        if outs[0].numel() > 1:
            assert not close(fake, outs, LOOSEST), f"{name} passes at the loosest tolerance"


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_parameters_are_not_trivial(path: Path) -> None:
    """Ones and zeros would let a kernel pass that leaves a weight or a bias out."""
    model = materialize(load_problem(path, size="cpu"), "cpu").model
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point() and value.numel() > 1:
            assert float(value.detach().std()) > 1e-3, name


@pytest.mark.parametrize("path", OURS, ids=name_of)
def test_two_sizes(path: Path) -> None:
    """The GPU size is the default, differs in hash, and is sized for a GPU (on meta tensors)."""
    gpu, cpu = load_problem(path, size="gpu"), load_problem(path, size="cpu")
    assert gpu.source == path.read_text() and gpu.hash != cpu.hash
    tree = ast.parse(gpu.source)
    assert ast.get_docstring(tree), "says what it is"
    big = _meta_bytes(gpu.source)
    small = _meta_bytes(cpu.source)
    if path.stem != "tanh_small":
        assert big > 4 * small
    assert small < 64e6 and big < 4e9
    memory_bound = level_of(path) == 1 and "matmul" not in path.stem
    if memory_bound and path.stem != "tanh_small":
        assert big > 128e6, "inputs and outputs must not fit an L2 cache"


def _meta_bytes(source: str) -> int:
    """Bytes of inputs, parameters and outputs together."""
    scope: dict = {"__name__": "sized"}
    exec(source, scope)
    with torch.device("meta"), torch.no_grad():
        model = scope["Model"](*scope["get_init_inputs"]()).eval()
        inputs = scope["get_inputs"]()
        return nbytes([list(model.parameters()), inputs, model(*inputs)])


def test_suite_is_large_and_its_names_are_unique() -> None:
    counts = {level: len(suite_problems("ours", [level])) for level in (1, 2, 3)}
    assert counts[1] >= 26 and counts[2] >= 26 and counts[3] >= 14
    assert sum(counts.values()) == len(OURS) == len({p.stem for p in OURS})
    assert any(name_of(p) == "level2/bias_gelu_residual_layernorm" for p in OURS)


def test_readme_table_is_fresh() -> None:
    spec = importlib.util.spec_from_file_location(
        "problems_readme", ROOT / "scripts" / "problems_readme.py"
    )
    assert spec and spec.loader
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    readme = (ROOT / "problems" / "README.md").read_text()
    assert script.rendered(readme) == readme, "run: python scripts/problems_readme.py"


def test_layouts_of_other_suites(tmp_path: Path) -> None:
    checkout = tmp_path / "KernelBench"
    for level, name in ((1, "10_b"), (1, "9_a"), (2, "1_c"), (1, "_hidden")):
        folder = checkout / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("x = 1\n")
    names = [p.stem for p in suite_problems(checkout)]
    assert names == ["9_a", "10_b", "1_c"], "by level, then by number"
    assert [p.stem for p in suite_problems(checkout, levels=[2])] == ["1_c"]
    plain = checkout / "KernelBench" / "level1"
    assert [p.stem for p in suite_problems(plain)] == ["9_a", "10_b"]
    assert level_of(plain / "9_a.py") == 1 and level_of(tmp_path / "x.py") is None


def test_bad_suites(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="There is no suite folder"):
        suite_problems(tmp_path / "nothing")
    with pytest.raises(ProblemError, match="holds no problem files"):
        suite_problems(tmp_path)
    with pytest.raises(ProblemError, match="has no level 7; it has 1, 2, 3"):
        suite_problems("ours", levels=[7])
    (tmp_path / "a.py").write_text("")
    with pytest.raises(ProblemError, match="has no level folders"):
        suite_problems(tmp_path, levels=[1])
