"""Graph + plan -> candidate: `model_new.py`, `reference.py` and the kernels that skills write.

The result is meant to be read and edited: every region has a line that says what it computes and
how. It runs without this package, beside `runtime.py`, from any folder.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from cuda_agent.agents.forward import Block, body, derived_function, guards, result
from cuda_agent.agents.holder import HOLDER_INIT, Slot, state_literal, state_table
from cuda_agent.agents.plans import TORCH, Plan, complete, default_plan, plan_space
from cuda_agent.agents.statements import tensor_literal
from cuda_agent.errors import SettingsError
from cuda_agent.graph.ir import Graph, Region, leaves
from cuda_agent.records import Candidate, Problem
from cuda_agent.skills import all_skills
from cuda_agent.targets.base import DeviceFacts

__all__ = ["assemble", "default_plan", "plan_space", "state_table"]

AUTHOR = "skills"

_IMPORTS = '''\
import importlib.util
import pathlib
{partial}
import torch

_file = pathlib.Path(__file__).resolve().with_name("runtime.py")
_spec = importlib.util.spec_from_file_location(f"runtime_{{__name__}}", _file)
runtime = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runtime)
{kernels}aten = torch.ops.aten
'''

_SAME = '''\
def _same(name, value, expected):
    """Refuse an argument for whose value this solution was not built."""
    if type(value) is not type(expected) or value != expected:
        raise ValueError(f"{name}: this solution was built for {expected!r}, not {value!r}")
'''

_ONCE = '''\
def _once(self, name, function, *sources):
    """function(*sources), computed again only when one of the sources has changed."""
    cache = self.__dict__.setdefault("_computed", {})
    if name not in cache:
        cache[name] = runtime.Derived(function)
    return cache[name](*sources)
'''

_GRAPHED = '''\
if "_graphed" not in self.__dict__:
    self._graphed = runtime.Graphed(self._compute, self)
return self._graphed({arguments})
'''


def assemble(
    problem: Problem,
    graph: Graph,
    plan: Mapping[str, Any],
    device: DeviceFacts,
    *,
    live_state: Sequence[Slot] | None = None,
) -> Candidate:
    """The candidate that `plan` describes. Regions that it leaves open get their default.

    A live module has no source that could make its parameters: pass `state_table(module)` as
    `live_state`. Raises SettingsError for a plan that asks for what is not offered.
    """
    if problem.kind == "live" and live_state is None:
        raise SettingsError(f"{problem.name} is a live module: its table of parameters is needed")
    full = complete(plan, graph, device)
    files: dict[str, str] = {}
    blocks = [_block(region, full, device, files) for region in graph.regions]
    files["model_new.py"] = _module(problem, graph, blocks, full, device, live_state)
    if problem.kind == "file":
        files["reference.py"] = problem.source
    return Candidate(
        problem_hash=problem.hash,
        files=dict(sorted(files.items())),
        author=AUTHOR,
        plan=full,
        trusted=True,
    )


def _block(region: Region, plan: Plan, device: DeviceFacts, files: dict[str, str]) -> Block:
    choice = plan["regions"][region.id]
    names = _names(region)
    if choice["skill"] == TORCH:
        return Block(region, None, names if region.kind == "view" else f"{names}; torch")
    written = all_skills()[choice["skill"]].write(region, choice["knobs"], device)
    clash = sorted(set(written.files) & set(files))
    if clash:
        raise SettingsError(f"region {region.id} writes {', '.join(clash)} a second time")
    files.update(written.files)
    knobs = ", ".join(f"{name}={value}" for name, value in choice["knobs"].items())
    chosen = f"{choice['skill']} ({knobs})" if knobs else choice["skill"]
    return Block(region, written, f"{names}; {chosen}")


def _names(region: Region) -> str:
    """What the region computes, e.g. "add, gelu of 32x512"."""
    names: list[str] = []
    for name in region.op_names:
        if not names or names[-1] != name:
            names.append(name)
    shape = region.space or (region.outputs[0].shape if region.outputs else ())
    return f"{', '.join(names)} of {'x'.join(map(str, shape)) or 'one element'}"


def external_operations(blocks: Sequence[Block]) -> dict[str, list[str]]:
    """Operations that are not our own kernels, and vendor libraries, with their regions. Views
    move no data and are left out."""
    found: dict[str, list[str]] = {}
    for block in blocks:
        if block.written is not None:
            names = [f"library {name}" for name in block.written.libraries]
        elif block.region.kind == "view":
            names = []
        else:
            names = [f"aten.{name}" for name in block.region.op_names]
        for name in dict.fromkeys(names):
            found.setdefault(name, []).append(block.region.id)
    return found


# --- the text of model_new.py -------------------------------------------------------------------


def _module(
    problem: Problem,
    graph: Graph,
    blocks: Sequence[Block],
    plan: Plan,
    device: DeviceFacts,
    live_state: Sequence[Slot] | None,
) -> str:
    kernels = any(block.written is not None and block.written.files for block in blocks)
    parts = [
        _head(problem, blocks, device),
        _IMPORTS.format(
            partial="from functools import partial\n" if "partial(" in _uses(graph, blocks) else "",
            kernels="kernels = runtime.load(__file__)\n" if kernels else "",
        ),
    ]
    if problem.kind == "file":
        parts[-1] += 'Model = runtime.sibling(__file__, "reference").Model\n'
    parts += [_constant(graph, name) for name in graph.constants]
    parts += [derived_function(d.name, d.sources, d.ops) + "\n" for d in graph.derived]
    if problem.kind == "live":
        parts.append(state_literal(live_state or ()))
    if graph.baked:
        parts.append(_SAME)
    parts.append(_class(problem, graph, list(blocks), plan, device))
    return "\n\n".join(part.rstrip("\n") + "\n" for part in parts).replace("\n\n\n\n", "\n\n\n")


def _uses(graph: Graph, blocks: Sequence[Block]) -> str:
    return "\n".join(body(graph, list(blocks)))


def _head(problem: Problem, blocks: Sequence[Block], device: DeviceFacts) -> str:
    external = external_operations(blocks)
    listed = ", ".join(f"{name} ({', '.join(regions)})" for name, regions in external.items())
    lines = [
        f'"""{_plain(problem.name)}, built for {_plain(device.name)} ({device.target}).',
        "",
        *textwrap.wrap(f"Operations that are not our own kernels: {listed or 'none'}.", 98),
        "Run under torch.no_grad(). Inputs of another shape or dtype are refused.",
        '"""',
    ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'").splitlines()[0] if text else text


def _constant(graph: Graph, name: str) -> str:
    value = graph.values[name]
    literal = tensor_literal(graph.constants[name], value.shape)
    reshaped = f".view({value.shape})" if len(value.shape) > 1 or value.numel == 0 else ""
    text = f"return torch.tensor({literal}, dtype=torch.{value.dtype}, device=device){reshaped}"
    return f"def _{name}(device):\n{textwrap.indent(text, '    ')}\n"


def _class(
    problem: Problem,
    graph: Graph,
    blocks: list[Block],
    plan: Plan,
    device: DeviceFacts,
) -> str:
    methods: list[str] = []
    if problem.kind == "live":
        methods.append(HOLDER_INIT)
    device_type = "cuda" if device.target == "cuda" else "cpu"
    lines = ["runtime.inference_only(self)", *guards(graph, device_type)]
    computed = [*body(graph, blocks), "", f"return {result(graph)}"]
    names = list(leaves(graph.inputs))
    if plan["graph"].get("cuda_graph"):
        lines += _GRAPHED.format(arguments=", ".join(names)).splitlines()
        methods.append(_method(f"forward(self{_parameters(graph)})", lines))
        methods.append(_method(f"_compute(self{''.join(f', {n}' for n in names)})", computed))
    else:
        methods.append(_method(f"forward(self{_parameters(graph)})", lines + computed))
    if graph.constants or graph.derived:
        methods.append(_ONCE)
    base = "Model" if problem.kind == "file" else "torch.nn.Module"
    text = "\n".join(textwrap.indent(method, "    ") for method in methods)
    return f"class ModelNew({base}):\n{text}"


def _method(signature: str, lines: Sequence[str]) -> str:
    return f"def {signature}:\n" + textwrap.indent("\n".join(lines), "    ") + "\n"


def _parameters(graph: Graph) -> str:
    """forward's parameters as the original has them; optional ones keep their default."""
    text = ""
    for name in graph.input_names:
        default = f"={graph.baked[name]!r}" if name in graph.defaulted else ""
        text += f", {name}{default}"
    return text
