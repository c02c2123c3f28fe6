"""Plans become solutions, checked in processes where this package is not installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from cuda_agent import runtime
from cuda_agent.agents import solution, workspace
from cuda_agent.errors import OutputError, SettingsError
from cuda_agent.graph import Graph, capture
from cuda_agent.policies import PlanSpace
from cuda_agent.problems import live_instance, load_problem, materialize
from cuda_agent.records import Candidate, Problem
from cuda_agent.targets.base import DeviceFacts

PROBLEMS = Path(__file__).parents[2] / "problems"
CPU = DeviceFacts("cpu", "a CPU", "x86_64", 2, 32, 32 << 20, 8 << 30)
GPU = DeviceFacts(
    "cuda", "a GPU", "sm_90a", 132, 16, 50 << 20, 80 << 30,
    shared_bytes_per_block=227 << 10, shared_bytes_per_unit=228 << 10,
    registers_per_unit=65536, threads_per_unit=2048,
)
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="needs a C++ compiler")

RUNNER = '''
import importlib.util, sys, torch
sys.modules["cuda_agent"] = None  # importing it fails, as where it is not installed
def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
for folder in sys.argv[1:]:
    for again in range(2):  # twice in one process
        data = torch.load(folder + "/data.pt", weights_only=True)
        new = load(folder + "/model_new.py", f"solution_{again}").ModelNew(*data["init"])
        missing = new.load_state_dict(data["state"], strict=True)
        for path, value in data["extra"].items():
            parent, _, leaf = path.rpartition(".")
            setattr(new.get_submodule(parent), leaf, value)
        with torch.no_grad():
            out = new.eval()(*data["inputs"])
        out = [out] if isinstance(out, torch.Tensor) else list(out)
        for got, expected in zip(out, data["expected"], strict=True):
            assert got.stride() == expected.stride(), (got.stride(), expected.stride())
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
print("equal", len(sys.argv) - 1)
'''


def torch_plan(graph: Graph) -> dict[str, Any]:
    return {"regions": {region.id: {"skill": "torch"} for region in graph.regions}}


def tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [t for v in value for t in tensors(v)]


def written(candidate: Candidate, folder: Path) -> None:
    live = Problem("p", "", "test", kind="live")  # the reference is among the candidate's files
    solution.write_files(folder, solution.solution_files(live, candidate))


def write(candidate: Candidate, folder: Path, model: nn.Module, inputs: Any, init: Any) -> None:
    """A solution folder, and the data that the runner checks it with."""
    written(candidate, folder)
    with torch.no_grad():
        expected = tensors(model(*inputs))
    state = model.state_dict()
    extra = {n: b for n, b in model.named_buffers() if n not in state}
    data = {
        "init": list(init), "state": state, "extra": extra, "inputs": list(inputs),
        "expected": expected,
    }
    torch.save(data, folder / "data.pt")


def run(folders: list[Path], cwd: Path) -> None:
    """Check solutions in a fresh interpreter with another working directory."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-c", RUNNER, *map(str, folders)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["equal", str(len(folders))]


def problem_of(name: str) -> tuple[Problem, Any, Any, Graph]:
    instance = materialize(load_problem(next(PROBLEMS.glob(f"*/{name}.py")), size="cpu"), "cpu")
    inputs = instance.inputs(5)
    return instance.problem, instance, inputs, capture(instance.model, inputs)


TORCH_ONLY = ["softmax_rows", "linear_gelu_layernorm", "gpt_block", "lstm_cell", "selective_scan",
              "resnet_basic_block", "add_layernorm_pair"]


def test_torch_only_plans_equal_the_reference_in_another_process(tmp_path: Path) -> None:
    folders = []
    for name in TORCH_ONLY:
        problem, instance, inputs, graph = problem_of(name)
        candidate = workspace.assemble(problem, graph, torch_plan(graph), CPU)
        write(candidate, tmp_path / name, instance.model, inputs, instance.init_inputs)
        folders.append(tmp_path / name)
    run(folders, tmp_path)


WITH_SKILLS = ["softmax_rows", "rms_norm", "group_norm", "cross_entropy", "frobenius_normalize",
               "focal_loss", "distillation_kl", "masked_softmax_temperature", "prenorm_mlp"]


@needs_compiler
@pytest.mark.compiler
@pytest.mark.slow
def test_default_plans_equal_the_reference_in_another_process(tmp_path: Path) -> None:
    folders = []
    for name in WITH_SKILLS:
        problem, instance, inputs, graph = problem_of(name)
        candidate = workspace.assemble(problem, graph, {}, CPU)
        assert any(file.startswith("kernels/") for file in candidate.files), name
        write(candidate, tmp_path / name, instance.model, inputs, instance.init_inputs)
        folders.append(tmp_path / name)
    run(folders, tmp_path)


class Live(nn.Module):
    """Digits, clashing names, a tied weight, buffers of both kinds and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.table = nn.ModuleDict({"1st": nn.LayerNorm(8), "norm": nn.LayerNorm(8)})
        self.layers[1].weight = self.layers[0].weight
        self.register_buffer("shift", torch.rand(8))
        self.register_buffer("mask", torch.rand(8), persistent=False)
        self.unused = nn.Parameter(torch.rand(3))

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = self.table["1st"](torch.tanh(layer(x)))
        x = self.table["norm"](x) * torch.tensor([1.0, 2.0] * 4)
        return x * self.mask * scale + self.shift, x.sum()


def live_solution(tmp_path: Path) -> tuple[Live, Any, Candidate]:
    torch.manual_seed(3)
    model = Live().eval()
    inputs = (torch.randn(4, 8),)
    problem, instance = live_instance(model, inputs)
    graph = capture(instance.model, inputs)
    return model, inputs, workspace.assemble(problem, graph, torch_plan(graph), CPU)


def load(folder: Path) -> ModuleType:
    path = folder / "model_new.py"
    spec = importlib.util.spec_from_file_location(f"solution_{folder.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_live_module_becomes_a_tree_of_parameters(tmp_path: Path) -> None:
    model, inputs, candidate = live_solution(tmp_path)
    assert "reference.py" not in candidate.files
    write(candidate, tmp_path / "live", model, inputs, ())
    run([tmp_path / "live"], tmp_path)
    new = load(tmp_path / "live").ModelNew()
    assert set(new.state_dict()) == set(model.state_dict())


def test_live_solution_adopts_the_original_tensors(tmp_path: Path) -> None:
    model, inputs, candidate = live_solution(tmp_path)
    written(candidate, tmp_path / "live")
    new = load(tmp_path / "live").ModelNew.adopt(model)
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), model(*inputs))
        model.shift.add_(1)
        torch.testing.assert_close(new(*inputs), model(*inputs))


def small(function: Callable[..., Any], *inputs: Any) -> tuple[Problem, Graph]:
    class Small(nn.Module):
        def forward(self, *args: Any) -> Any:
            return function(*args)

    problem, instance = live_instance(Small(), inputs)
    return problem, capture(instance.model, inputs)


def test_other_inputs_are_refused(tmp_path: Path) -> None:
    problem, instance = live_instance(Live(), (torch.randn(4, 8),))
    graph = capture(instance.model, (torch.randn(4, 8),))
    candidate = workspace.assemble(problem, graph, torch_plan(graph), CPU)
    written(candidate, tmp_path / "s")
    new = load(tmp_path / "s").ModelNew()
    with torch.no_grad():
        with pytest.raises(ValueError, match="x: this solution was built for"):
            new(torch.randn(4, 9))
        with pytest.raises(ValueError, match="built for"):
            new(torch.randn(4, 8).double())
        with pytest.raises(ValueError, match=r"built for 1\.0, not 3\.0"):
            new(torch.randn(4, 8), 3.0)
        new(torch.randn(4, 8), 1.0)
        new(torch.randn(8, 4).t())  # other strides are made contiguous
    with pytest.raises(RuntimeError, match="no backward"):
        new(torch.randn(4, 8))


def test_folded_weights_follow_their_parameters(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    inputs = (torch.randn(1, 3, 6, 6),)
    problem, instance = live_instance(model, inputs)
    graph = capture(instance.model, inputs, fold=True)
    plan = torch_plan(graph) | {"graph": {"fold": True}}
    candidate = workspace.assemble(problem, graph, plan, CPU)
    assert "batch_norm" not in candidate.files["model_new.py"]
    written(candidate, tmp_path / "s")
    new = load(tmp_path / "s").ModelNew.adopt(model)
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
        model[1].running_mean.add_(0.5)
        model[0].weight.mul_(2)
        torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


def test_cuda_graph_wraps_the_forward(tmp_path: Path) -> None:
    """On a CPU `Graphed` calls through, so the wiring can be checked here."""
    model, inputs = Live().eval(), (torch.randn(4, 8),)
    problem, _ = live_instance(model, inputs)
    graph = capture(model, inputs)
    plan = torch_plan(graph) | {"graph": {"cuda_graph": True}}
    text = workspace.assemble(problem, graph, plan, GPU).files["model_new.py"]
    assert "runtime.Graphed(self.run, self)" in text
    (tmp_path / "model_new.py").write_text(text.replace('"cuda")', '"cpu")'))
    shutil.copy(runtime.__file__, tmp_path / "runtime.py")
    new = load(tmp_path).ModelNew.adopt(model)
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), model(*inputs))


def test_candidate_says_what_others_compute() -> None:
    problem, graph = small(lambda x, w: torch.conv1d(x, w).relu().view(2, -1),
                           torch.randn(2, 3, 8), torch.randn(4, 3, 3))
    candidate = workspace.assemble(problem, graph, torch_plan(graph), CPU)
    assert candidate.trusted and candidate.plan is not None
    assert candidate.plan["external_ops"] == ["convolution", "relu"]
    assert "convolution, relu" in candidate.files["model_new.py"].split('"""')[1]
    assert set(candidate.files) == {"model_new.py", "runtime.py"}


def test_layouts_that_libraries_choose_are_settled(tmp_path: Path) -> None:
    """Kernels behind a convolution read fixed strides; channels-last weights change them."""
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).eval()
    inputs = (torch.randn(2, 4, 8, 8),)
    problem, _ = live_instance(model, inputs)
    graph = capture(model, inputs)
    candidate = workspace.assemble(problem, graph, torch_plan(graph), CPU)
    written(candidate, tmp_path / "s")
    with torch.no_grad():
        other = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU()).to(memory_format=torch.channels_last)
        got = load(tmp_path / "s").ModelNew.adopt(other)(*inputs)
        torch.testing.assert_close(got, other(*inputs))
        assert got.stride() == graph.values[graph.outputs[0]].stride


def test_large_intermediates_are_deleted() -> None:
    x = torch.randn(512, 1024)
    problem, graph = small(lambda x: (x.t().contiguous() @ x).softmax(-1), x)
    text = workspace.assemble(problem, graph, torch_plan(graph), CPU).files["model_new.py"]
    assert "\n        del " in text
    problem, graph = small(lambda x: (x.t().contiguous() @ x).softmax(-1), x[:8, :8])
    text = workspace.assemble(problem, graph, torch_plan(graph), CPU).files["model_new.py"]
    assert "\n        del " not in text


def test_plan_space_offers_what_assemble_takes() -> None:
    for name, device in (("prenorm_mlp", CPU), ("softmax_rows", GPU), ("focal_loss", GPU)):
        problem, _, _, graph = problem_of(name)
        data = workspace.plan_space(graph, device)
        space = PlanSpace.from_json(data)
        assert set(data["details"]) == {region.id for region in graph.regions}
        assert space.complete(workspace.default_plan(graph, device)) == space.default()
        for plan in list(space.neighbours(space.default()))[:12]:
            candidate = workspace.assemble(problem, graph, plan, device)
            assert {k: candidate.plan[k] for k in plan} == plan  # type: ignore[index]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"region": {}}, "plan has no 'region'; there are graph, regions"),
        ({"graph": {"fast": True}}, "there are fold, cuda_graph, precision"),
        ({"graph": {"precision": "fp8"}}, r"precision='fp8'; choose from \['fp32'\]"),
        ({"graph": {"cuda_graph": True}}, "cuda_graph=True"),
        ({"regions": {"r9": {"skill": "torch"}}}, "no 'r9'; there are r0"),
        ({"regions": {"r0": {"skill": "scan"}}}, "no skill 'scan' for region r0.*torch"),
        ({"regions": {"r0": {"skill": "softmax", "knobs": {"x": 1}}}}, "no knob 'x'"),
        ({"regions": {"r0": {"skill": "torch", "knob": {}}}}, "region r0 has no 'knob'"),
        ({"regions": []}, "plan's regions is a list"),
    ],
)
def test_plans_that_do_not_exist_name_the_choices(plan: Any, message: str) -> None:
    problem, graph = small(lambda x: x.softmax(-1), torch.randn(4, 64))
    with pytest.raises(SettingsError, match=message):
        workspace.assemble(problem, graph, plan, CPU)


def test_writing_replaces_the_whole_folder_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Candidate("p", {"model_new.py": "old = 1\n", "kernels/a.cu": "// old\n"})
    new = Candidate("p", {"model_new.py": "new = 1\n"})
    out = tmp_path / "solution"
    written(old, out)
    assert (out / "runtime.py").exists() and (out / "runtime_gemm.py").exists()
    plain = solution.write_file

    def full(path: Path, data: bytes) -> None:
        if path.name == "model_new.py":
            raise OSError(28, "No space left on device")
        plain(path, data)

    monkeypatch.setattr(solution, "write_file", full)
    with pytest.raises(OutputError, match=r"No space left on device.*is kept"):
        written(new, out)
    assert (out / "model_new.py").read_text() == "old = 1\n" and (out / "kernels/a.cu").exists()
    monkeypatch.undo()
    written(new, out)
    assert (out / "model_new.py").read_text() == "new = 1\n" and not (out / "kernels").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["solution"]


def test_files_stay_inside_the_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not a path inside"):
        written(Candidate("p", {"../evil.py": ""}), tmp_path / "s")
    assert list(tmp_path.iterdir()) == []
